// A small HTTP/1.1 server: a table of routes, bounded bodies, several threads. http_server.cc is
// the one file that knows Boost.Beast.
//
//   HttpServer::start("127.0.0.1", 9090, {{"GET", "/metrics", answer_metrics}});
//
// A request that is not accepted gets an error answer: 400 not HTTP, 404 an unknown path, 405
// another method, 413 a body larger than the route takes, 431 headers of more than 8 KiB, 503 one
// connection too many. The connection then closes, except after a 404 to a request without a body.
// When all connections are in use, a new one takes the place of the one that has waited longest for
// its client, which has not sent a whole request or not read the answer; it gets 503 only when
// handlers run for all others.
// A client that does not finish a request, or does not read the answer, within the time limit is
// disconnected.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/status.h"

namespace specd::host {

struct HttpRequest {
  std::string method;  // "GET"; also for HEAD, whose answer is that of GET without the body
  std::string path;    // without the query
  std::string body;
};
struct HttpAnswer {
  unsigned status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
};
// [server threads] May be called on all of them at once, and must not throw. A slow handler blocks
// its thread.
using HttpHandler = std::function<HttpAnswer(const HttpRequest&)>;

struct HttpRoute {
  std::string method, path;
  HttpHandler handler;
  size_t body_bytes_max = 0;  // by Content-Length or chunked; 0 = no body
};

struct HttpLimits {
  int threads = 1;
  int connections_max = 64;
  // For reading one request with its body, idle time since the last answer included; then again for
  // writing its answer.
  std::chrono::milliseconds time_limit{10'000};
};

class HttpServer {
 public:
  // Listens on a literal IPv4 or IPv6 address; port 0 = one that is free. kUnavailable naming the
  // address when that fails. Handlers are called until the destructor returns.
  static Result<std::unique_ptr<HttpServer>> start(const std::string& address, uint16_t port,
                                                   std::vector<HttpRoute> routes,
                                                   const HttpLimits& limits = {});
  ~HttpServer();  // closes every connection, joins the threads

  // "127.0.0.1:9090", with the port that was taken.
  const std::string& endpoint() const { return endpoint_; }

 private:
  HttpServer();
  struct Impl;
  std::string endpoint_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace specd::host
