// A client that treats HTTP as plain bytes: sends what it is given, reads what arrives.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>

namespace specd::host {

class RawClient {
 public:
  // "127.0.0.1:9090"
  explicit RawClient(const std::string& endpoint) {
    const size_t colon = endpoint.rfind(':');
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(std::atoi(endpoint.c_str() + colon + 1)));
    inet_pton(AF_INET, endpoint.substr(0, colon).c_str(), &to.sin_addr);
    fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    connected_ = connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0;
  }
  RawClient(RawClient&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), connected_(other.connected_) {}
  RawClient& operator=(RawClient&&) = delete;
  ~RawClient() {
    if (fd_ >= 0) close(fd_);
  }

  bool connected() const { return connected_; }
  bool send(const std::string& bytes) {
    return ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }
  // Up to the end of the stream, or until nothing comes for `patience`.
  std::string read_all(std::chrono::milliseconds patience = std::chrono::seconds(10)) {
    std::string all;
    while (!ended_ && read_some(all, patience)) {
    }
    return all;
  }
  // Up to what ends with `end`, or the end of the stream, or until nothing comes for a while.
  std::string read_until(const std::string& end) {
    std::string all;
    while (!all.ends_with(end) && read_some(all, std::chrono::seconds(10))) {
    }
    return all;
  }
  // One answer with a Content-Length; `head`: without the body it announces.
  std::string read_answer(bool head = false) {
    std::string all;
    while (!complete(all, head) && read_some(all, std::chrono::seconds(10))) {
    }
    return all;
  }
  // Sends nothing more, and reads on.
  void finish() { shutdown(fd_, SHUT_WR); }
  bool ended() const { return ended_; }  // the other side closed, as far as was read

 private:
  static bool complete(const std::string& all, bool head) {
    const size_t end = all.find("\r\n\r\n");
    if (end == std::string::npos) return false;
    if (head) return true;
    const size_t length = all.find("Content-Length: ");
    if (length == std::string::npos || length > end) return false;
    return all.size() >= end + 4 + static_cast<size_t>(std::atoi(all.c_str() + length + 16));
  }
  bool read_some(std::string& all, std::chrono::milliseconds patience) {
    pollfd wait{.fd = fd_, .events = POLLIN, .revents = 0};
    if (poll(&wait, 1, static_cast<int>(patience.count())) <= 0) return false;
    char bytes[4096];
    const ssize_t n = recv(fd_, bytes, sizeof(bytes), 0);
    if (n <= 0) {
      ended_ = true;
      return false;
    }
    all.append(bytes, static_cast<size_t>(n));
    return true;
  }

  int fd_ = -1;
  bool connected_ = false, ended_ = false;
};

inline std::string http_body(const std::string& answer) {
  const size_t end = answer.find("\r\n\r\n");
  return end == std::string::npos ? "" : answer.substr(end + 4);
}
// GET on a new connection.
inline std::string http_get(const std::string& endpoint, const std::string& path) {
  RawClient client(endpoint);
  if (!client.send("GET " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")) return "";
  return client.read_all();
}

}  // namespace specd::host
