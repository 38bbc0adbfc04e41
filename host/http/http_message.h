// A request, its answer, and the table that leads from one to the other. Knows no sockets.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace specd::host {

using HttpFields = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;     // "GET"; also for HEAD, whose answer is that of GET without the body
  std::string path;       // without the query
  HttpFields headers;     // names in lower case
  HttpFields parameters;  // of the route's path, decoded: {model} of "/v1/models/{model}"
  std::string body;

  // Empty where there is none; the first of several.
  std::string_view header(std::string_view name) const;
  std::string_view parameter(std::string_view name) const;
};

struct HttpAnswer {
  unsigned status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body = {};
  HttpFields headers = {};
};

// Why a request gets no handler's answer.
struct HttpRefusal {
  unsigned status = 400;
  std::string text;  // one line
};

// The answer to one request. [any] Either answer() or answer_later(), once; or start(), then write() any number of times, in
// order, in `done` or without waiting for it, then finish(). A reply that is released without an answer closes the connection. A
// call that throws std::bad_alloc has done nothing. Once the client is gone, calls do nothing but call `done(false)` or `gone`.
// Only routes that nobody asks by HEAD, so none of GET, answer in parts: the parts are sent after any head.
class HttpReply {
 public:
  virtual ~HttpReply() = default;
  virtual void answer(HttpAnswer whole) = 0;
  // The same with what `make` returns, which is called on a thread of the server, if at all: for one that takes long to make.
  virtual void answer_later(std::function<HttpAnswer()> make) = 0;
  // The head; `head.body` is not sent. `idle_text` is sent whenever nothing else was for HttpLimits::idle_text_after.
  virtual void start(HttpAnswer head, std::string idle_text) = 0;
  // A part of the body, which is sent in one piece. `done` is called once, on a thread of the server: true when
  // the part is on its way, false when the client is gone.
  virtual void write(std::string part, std::function<void(bool)> done) = 0;
  virtual void finish() = 0;
  // Called once, on a thread of the server, when the client disconnects before the end of the answer, or at once
  // when it already has. A client that closes only its sending side counts as gone.
  virtual void when_gone(std::function<void()> gone) = 0;
};

// [server threads] Several calls run at once. Throws nothing but std::bad_alloc, after which the connection is
// closed. Answers through the reply, on any thread, before or after it returns. One that takes long blocks its thread.
using HttpHandler = std::function<void(HttpRequest, std::shared_ptr<HttpReply>)>;

struct HttpRoute {
  std::string method;
  std::string path;  // "/v1/models/{model}": a segment in braces fits every one that is not empty
  HttpHandler handler;
  size_t body_bytes_max = 0;  // by Content-Length or chunked; 0 = no body
};

// Names that a client has sent, as one value of a header; cut when it gets long.
std::string header_list(const std::vector<std::string>& names);

// Sets `parameters` where the route's path fits.
bool fits(const HttpRoute& route, std::string_view path, HttpFields& parameters);

}  // namespace specd::host
