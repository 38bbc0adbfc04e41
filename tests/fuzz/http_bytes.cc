// Any bytes on a connection of the HTTP server, in two pieces: what comes back are answers, nothing reaches a handler that its
// route does not take, and the next client is served.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>

#include "host/http/http_server.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace specd;
using namespace specd::host;

constexpr size_t kBodyBytesMax = 1000;

HttpServer& server() {
  static const std::unique_ptr<HttpServer> made = [] {
    const HttpHandler echo = [](const HttpRequest& request,
                                const std::shared_ptr<HttpReply>& reply) {
      if (request.body.size() > kBodyBytesMax) fuzz::fail("a body beyond the limit");
      reply->answer({.body = request.path + request.body});
    };
    const HttpHandler parts = [](const HttpRequest&, const std::shared_ptr<HttpReply>& reply) {
      reply->start({}, "");
      for (const char* part : {"one", "two"}) reply->write(part, [](bool) {});
      reply->finish();
    };
    auto started = HttpServer::start("127.0.0.1", 0,
                                     {{"GET", "/a", echo},
                                      {"POST", "/b/{name}", echo, kBodyBytesMax},
                                      {"POST", "/c", parts, kBodyBytesMax}});
    if (!started.ok()) fuzz::fail(started.status().text());
    return std::move(started).value();
  }();
  return *made;
}

// What comes back. `reset`: the connection was not made, or did not end in order.
std::string ask(const std::string& first, const std::string& second, bool& reset) {
  const std::string& endpoint = server().endpoint();
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(std::stoi(endpoint.substr(endpoint.rfind(':') + 1))));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0 || connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)) != 0) {
    close(fd);
    reset = true;
    return "";
  }
  for (const std::string& each : {first, second})
    (void)!send(fd, each.data(), each.size(), MSG_NOSIGNAL);  // the server may have closed
  shutdown(fd, SHUT_WR);
  std::string answer;
  char bytes[4096];
  ssize_t n = 0;
  while ((n = recv(fd, bytes, sizeof(bytes), 0)) > 0) answer.append(bytes, static_cast<size_t>(n));
  reset = n < 0;
  close(fd);
  return answer;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(fuzz::text_of(data, size));
  const size_t cut = size == 0 ? 0 : data[0] * size / 256;
  bool reset = false;
  const std::string answer = ask(bytes.substr(0, cut), bytes.substr(cut), reset);
  if (!answer.empty() && !answer.starts_with("HTTP/1.")) fuzz::fail("no answer of HTTP: " + answer);
  // Some thousand connections a second leave the machine without ports for a while, and then it resets new ones.
  std::string good;
  for (int i = 0; i < 1000; ++i) {
    good = ask("GET /a HTTP/1.1\r\nConnection: close\r\n\r\n", "", reset);
    if (!reset) break;
    usleep(2000);
  }
  if (!good.ends_with("\r\n\r\n/a")) fuzz::fail("the next client got '" + good + "'");
  return 0;
}
