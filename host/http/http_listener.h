// A small HTTP/1.1 listener for probes and scrapes: GET and HEAD, no bodies, one thread. The one
// file that knows Boost.Beast.
//
// What it does not take gets an answer and the connection closes: 400 what is not HTTP, 405 another
// method, 413 a body, 431 headers of more than 8 KiB, 503 one connection too many. Who does not
// finish a request, or does not read the answer, within the time limit is cut without an answer.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "core/base/status.h"

namespace specd::host {

struct HttpAnswer {
  unsigned status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
};
// Gets the path without its query. [listener thread] must not throw; whoever is slow here delays
// every other client of the listener, and nobody else.
using HttpHandler = std::function<HttpAnswer(const std::string& path)>;

struct HttpLimits {
  int connections_max = 64;
  // For one request from the end of the last answer, idle time included; then for its answer.
  std::chrono::milliseconds time_limit{10'000};
};

class HttpListener {
 public:
  // Listens on a literal IPv4 or IPv6 address; port 0 = one that is free. kUnavailable naming the
  // address when that fails. `handler` is called until stop().
  static Result<std::unique_ptr<HttpListener>> start(const std::string& address, uint16_t port,
                                                     HttpHandler handler,
                                                     const HttpLimits& limits = {});
  ~HttpListener();  // closes every connection, joins the thread

  // "127.0.0.1:9090", with the port that was taken.
  const std::string& endpoint() const { return endpoint_; }

 private:
  HttpListener();
  struct Impl;
  std::string endpoint_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace specd::host
