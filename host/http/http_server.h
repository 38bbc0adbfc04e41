// A small HTTP/1.1 server: a table of routes, bounded bodies, answers in parts, several threads.
// http_server.cc and its http_stream.h are the files that know Boost.Beast.
//
//   HttpServer::start("127.0.0.1", 9090, {{"GET", "/metrics", answer_metrics}});
//
// Errors that the server answers itself: 400 malformed HTTP, also several Host headers, or a Transfer-Encoding other than
// chunked; 404 an unknown path; 405 another method; 413 a body
// larger than the route takes; 415 a compressed body; 431 headers of more than 8 KiB; 503 too many connections; and
// the status of HttpPolicy. Then it closes the connection, except after a 404 or a refusal by HttpPolicy of a request
// without a body. A client that sends more than 16 KiB while its request is being answered is disconnected, too.
// When all connections are in use, a new one takes the place of the one that has waited longest for
// its client, which has not sent a whole request or not read the answer; it gets 503 only when
// handlers run for all others, or when its own address has as many as it may have.
// A client that does not finish a request, or does not read the answer or a part of it, within the
// time limit is disconnected.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "host/http/http_message.h"

struct ssl_ctx_st;  // OpenSSL's SSL_CTX

namespace specd::host {

struct HttpLimits {
  int threads = 1;
  int connections_max = 64;
  int of_address_max =
      64;  // connections of one address, or of an IPv6 network of 64 bits; loopback has no limit
  // For reading one request with its body, idle time since the last answer included; then again for
  // writing its answer, or each part of it.
  std::chrono::milliseconds time_limit{10'000};
  std::chrono::milliseconds idle_text_after{15'000};
};

// How requests are refused before a handler gets them. Both are called on several server threads at once.
struct HttpPolicy {
  // Asked with the head of a request that fits a route, before its body is read: nothing = it is admitted. Empty =
  // every request is.
  std::function<std::optional<HttpRefusal>(const HttpRequest&)> admit;
  // Makes the answer to a request that `admit` or the server refuses, such as JSON for the paths of an API. `path` is
  // empty where the request could not be read. Empty = the text as it is.
  std::function<HttpAnswer(const std::string& path, const HttpRefusal&)> refuse;
};

// The TLS context of a new connection, an SSL_CTX, which the server shares; empty = no TLS. Called on a server thread.
using HttpTls = std::function<std::shared_ptr<ssl_ctx_st>()>;

class HttpServer {
 public:
  // Listens on a literal IPv4 or IPv6 address; port 0 = one that is free. kUnavailable naming the
  // address when that fails. Calls handlers until stop().
  static Result<std::unique_ptr<HttpServer>> start(const std::string& address, uint16_t port,
                                                   std::vector<HttpRoute> routes,
                                                   const HttpLimits& limits = {},
                                                   HttpPolicy policy = {}, HttpTls tls = {});
  // [control] Accepts nothing more, closes the connections that wait for a request, and waits so long for the others'
  // clients to read their answers. A second call does nothing.
  void stop(std::chrono::milliseconds limit);
  // Closes every connection, and blocks until every HttpReply is released: whoever has one must let it go without
  // waiting for this thread.
  ~HttpServer();

  // "127.0.0.1:9090", with the port that was taken.
  const std::string& endpoint() const { return endpoint_; }

 private:
  HttpServer();
  struct Impl;
  std::string endpoint_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace specd::host
