#include "host/http/http_server.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <cerrno>
#include <cstdio>
#include <deque>
#include <limits>
#include <new>
#include <optional>
#include <sstream>
#include <string_view>
#include <thread>
#include <utility>

#include "core/base/file_descriptor.h"
#include "core/base/log.h"
#include "core/base/thread.h"
#include "core/base/words.h"
#include "host/base/parent_only.h"
#include "host/http/connection_places.h"
#include "host/http/http_stream.h"

namespace specd::host {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using tcp = asio::ip::tcp;
using boost::system::error_code;

constexpr uint32_t kHeaderBytesMax = 8 << 10;
// Larger than kHeaderBytesMax, so that the parser reports a header that is too long. Bounds the
// memory of a connection apart from the body.
constexpr size_t kReadBytesMax = 16 << 10;
constexpr std::chrono::milliseconds kAcceptRetry{100};
constexpr std::chrono::milliseconds kCloseRetry{100};
constexpr std::chrono::milliseconds kCancelRetry{20};

using Response = http::response<http::string_body>;

Response make_response(HttpAnswer answer, unsigned version) {
  Response response(static_cast<http::status>(answer.status), version);
  response.set(http::field::server, "specd");
  response.set(http::field::content_type, answer.content_type);
  response.set(http::field::cache_control, "no-store");
  for (const auto& [name, value] : answer.headers) response.set(name, value);
  response.body() = std::move(answer.body);
  return response;
}

std::string lower_case(std::string name) {
  for (char& c : name) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return name;
}

// As a chunk of RFC 9112, 7.1.
std::string chunk(const std::string& part) {
  char size[32];
  std::snprintf(size, sizeof(size), "%zx\r\n", part.size());
  return size + part + "\r\n";
}

// "/metrics" of "http://host:9090/metrics", which a proxy sends (RFC 9112, 3.2.2).
std::string origin_form(std::string target) {
  constexpr std::string_view kScheme = "http://";
  if (!target.starts_with(kScheme)) return target;
  const size_t path = target.find_first_of("/?", kScheme.size());
  if (path == std::string::npos) return "/";
  return (target[path] == '/' ? "" : "/") + target.substr(path);
}

void add_once(std::vector<std::string>& words, const std::string& word) {
  if (std::find(words.begin(), words.end(), word) == words.end()) words.push_back(word);
}

// The answer to a read that failed; none for a client that hung up or was too slow.
std::optional<http::status> status_of(const error_code& error) {
  if (error.category() != make_error_code(http::error::bad_method).category()) return std::nullopt;
  if (error == http::error::end_of_stream || error == http::error::partial_message)
    return std::nullopt;
  if (error == http::error::header_limit || error == http::error::buffer_overflow)
    return http::status::request_header_fields_too_large;
  return http::status::bad_request;
}

void warn_of_memory() { log(LogLevel::kWarn, "http: not enough memory for an answer"); }

// Shared by the connections.
struct Shared {
  std::vector<HttpRoute> routes;
  HttpLimits limits;
  HttpPolicy policy;
  ConnectionPlaces places{limits.connections_max, limits.of_address_max};

  HttpAnswer refusal(const std::string& path, const HttpRefusal& why) const {
    return policy.refuse ? policy.refuse(path, why)
                         : HttpAnswer{.status = why.status, .body = why.text + "\n"};
  }
  HttpAnswer refusal(const std::string& path, http::status status, std::string text) const {
    return refusal(path, {static_cast<unsigned>(status), std::move(text)});
  }
};

// One connection: reads a head and a body, lets a handler answer, starts again. Its pending
// operation, or the handler's reply, keeps it alive. What it does runs on its strand.
class Connection final : public SeatedConnection {
 public:
  using Done = std::function<void(bool)>;

  Connection(tcp::socket socket, std::string origin, Shared& shared,
             const std::shared_ptr<ssl_ctx_st>& tls)
      : SeatedConnection(std::move(origin), shared.places),
        stream_(std::move(socket), tls),
        idle_timer_(stream_.get_executor()),
        shared_(shared) {}

  // REQUIRES a place.
  void start() {
    // Otherwise the second of two pipelined answers waits for the client's delayed acknowledgement.
    error_code ignored;
    stream_.socket().set_option(tcp::no_delay(true), ignored);
    shared_.places.wait(*this);
    asio::dispatch(stream_.get_executor(), [self = this_one()] {
      if (!self->stream_.has_tls()) return self->read();
      self->stream_.expires_after(self->shared_.limits.time_limit);
      self->stream_.async_handshake([self](const error_code& error) {
        if (!error) self->guarded([&] { self->read(); });
      });
    });
  }
  void close() override {
    asio::post(stream_.get_executor(), [self = this_one()] { self->lose(); });
  }
  void retire() override {
    asio::post(stream_.get_executor(), [self = this_one()] {
      self->is_last_ = true;
      if (!self->has_request_ && !self->is_answering_ && !self->is_hanging_up_) self->lose();
    });
  }
  // Instead of start(), without a place. Answers without waiting: an answer this small fits the
  // send buffer of a new socket. Over TLS it says nothing.
  void turn_away() {
    if (stream_.has_tls()) return;
    Response response = make_response(
        shared_.refusal("", http::status::service_unavailable, "too many connections"), 11);
    response.keep_alive(false);
    response.prepare_payload();
    std::ostringstream text;
    text << response;
    tcp::socket& socket = stream_.socket();
    error_code ignored;
    socket.non_blocking(true, ignored);
    socket.write_some(asio::buffer(text.str()), ignored);
    char rest[1024];  // unread bytes would turn the close into a reset
    socket.shutdown(tcp::socket::shutdown_send, ignored);
    socket.read_some(asio::buffer(rest), ignored);
  }

 private:
  // Of one request; without effect once that is answered or its client is gone.
  class Reply final : public HttpReply {
   public:
    Reply(std::shared_ptr<Connection> connection, uint64_t request)
        : connection_(std::move(connection)), request_(request) {}
    Reply(const Reply&) = delete;
    Reply& operator=(const Reply&) = delete;
    // A request that was not answered, as for want of memory, ends its connection.
    ~Reply() override {
      try {
        // Behind what other threads have asked for: dispatch() would overtake it on the strand.
        asio::post(connection_->stream_.get_executor(), [to = connection_, request = request_] {
          if (to->has(request) && !to->is_finishing_) to->lose();
        });
      } catch (const std::bad_alloc&) {
        warn_of_memory();  // the client goes in its own time
      }
    }

    void answer(HttpAnswer whole) override {
      run([whole = std::move(whole)](Connection& to) mutable { to.answer(std::move(whole)); });
    }
    void answer_later(std::function<HttpAnswer()> make) override {
      run([make = std::move(make)](Connection& to) { to.answer(make()); });
    }
    void start(HttpAnswer head, std::string idle_text) override {
      run([head = std::move(head), idle_text = std::move(idle_text)](Connection& to) mutable {
        to.start_parts(std::move(head), std::move(idle_text));
      });
    }
    void write(std::string part, Done done) override {
      asio::dispatch(connection_->stream_.get_executor(),
                     [to = connection_, request = request_, part = std::move(part),
                      done = std::move(done)]() mutable {
                       bool is_taken = false;
                       if (to->has(request)) {
                         to->guarded([&] {
                           to->write_part(part, done);
                           is_taken = true;
                         });
                       }
                       if (!is_taken) done(false);
                     });
    }
    void finish() override {
      run([](Connection& to) { to.finish_parts(); });
    }
    void when_gone(std::function<void()> gone) override {
      asio::dispatch(connection_->stream_.get_executor(),
                     [to = connection_, request = request_, gone = std::move(gone)]() mutable {
                       if (!to->has(request)) return gone();
                       to->gone_ = std::move(gone);
                     });
    }

   private:
    template <typename Fn>
    void run(Fn&& fn) {
      asio::dispatch(connection_->stream_.get_executor(),
                     [to = connection_, request = request_, fn = std::forward<Fn>(fn)]() mutable {
                       if (to->has(request)) to->guarded([&] { fn(*to); });
                     });
    }

    const std::shared_ptr<Connection> connection_;
    const uint64_t request_;
  };
  struct Part {
    std::string bytes;
    Done done;  // may be empty
  };

  // Without memory nothing can be told to the client.
  template <typename Fn>
  void guarded(Fn&& fn) {
    try {
      fn();
    } catch (const std::bad_alloc&) {
      warn_of_memory();
      lose();
    }
  }
  std::shared_ptr<Connection> this_one() {
    return std::static_pointer_cast<Connection>(shared_from_this());
  }
  bool has(uint64_t request) const { return has_request_ && request == n_requests_; }

  // ---- a request ----

  void read() {
    if (!shared_.places.wait(*this)) return;
    parser_.emplace();
    parser_->header_limit(kHeaderBytesMax);
    // The route's own limit is known only after the header.
    parser_->body_limit(std::numeric_limits<uint64_t>::max());
    // One limit for header and body together, however slowly they arrive.
    stream_.expires_after(shared_.limits.time_limit);
    http::async_read_header(
        stream_, buffer_, *parser_,
        [self = this_one()](const error_code& error, size_t) { self->on_header(error); });
  }

  void on_header(const error_code& error) {
    if (error) return refuse(error);
    const auto& head = parser_->get();
    const std::string target = origin_form(std::string(head.target()));
    request_ = {};
    request_.method = head.method() == http::verb::head ? "GET" : std::string(head.method_string());
    request_.path = target.substr(0, target.find('?'));
    for (const auto& field : head) {
      request_.headers.emplace_back(lower_case(std::string(field.name_string())),
                                    std::string(field.value()));
    }
    if (const std::string why = ambiguity(); !why.empty()) {
      return send(response(shared_.refusal(request_.path, http::status::bad_request, why)), true);
    }
    std::vector<std::string> paths, methods;
    for (const HttpRoute& route : shared_.routes) {
      add_once(paths, route.path);
      if (!fits(route, request_.path, request_.parameters)) continue;
      if (route.method == request_.method) return take(route);
      add_once(methods, route.method);
      if (route.method == "GET") add_once(methods, "HEAD");
    }
    if (methods.empty()) {
      return send(response(shared_.refusal(request_.path, http::status::not_found,
                                           "expected " + joined_or(paths))),
                  !parser_->is_done() || !head.keep_alive());
    }
    Response refused = response(shared_.refusal(request_.path, http::status::method_not_allowed,
                                                "expected " + joined_or(methods)));
    refused.set(http::field::allow, joined(methods));
    send(std::move(refused), true);
  }

  // Why a proxy before this server may read the request as another one (RFC 9112, 3.2 and 6.3); empty = it cannot. The
  // parser itself refuses two lengths, and a length with chunks.
  std::string ambiguity() const {
    const auto& head = parser_->get();
    if (const size_t n = head.count(http::field::host); n > 1)
      return "expected one Host header, found " + std::to_string(n);
    const size_t n_codings = head.count(http::field::transfer_encoding);
    const bool is_chunked = n_codings == 1 && head.version() >= 11 &&
                            beast::iequals(head[http::field::transfer_encoding], "chunked");
    if (n_codings == 0 || is_chunked) return "";
    return "expected Content-Length or, of HTTP/1.1, Transfer-Encoding: chunked";
  }

  void take(const HttpRoute& route) {
    route_ = &route;
    if (shared_.policy.admit) {
      if (const auto why = shared_.policy.admit(request_)) {
        return send(response(shared_.refusal(request_.path, *why)),
                    !parser_->is_done() || !parser_->get().keep_alive());
      }
    }
    if (parser_->is_done()) return handle();
    if (route.body_bytes_max == 0 || parser_->content_length().value_or(0) > route.body_bytes_max)
      return refuse_body();
    const auto coding = parser_->get()[http::field::content_encoding];
    if (!coding.empty() && !beast::iequals(coding, "identity")) {
      return send(response(shared_.refusal(request_.path, http::status::unsupported_media_type,
                                           "expected a body that is not compressed")),
                  true);
    }
    parser_->body_limit(route.body_bytes_max);
    // RFC 9110, 10.1.1: nobody of HTTP/1.0 waits.
    const bool waits = parser_->get().version() >= 11 &&
                       beast::iequals(parser_->get()[http::field::expect], "100-continue");
    if (!waits) return read_body();
    // The client sends the body only after this.
    static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
    asio::async_write(stream_, asio::buffer(kContinue),
                      [self = this_one()](const error_code& error, size_t) {
                        if (!error) self->read_body();
                      });
  }

  void read_body() {
    http::async_read(stream_, buffer_, *parser_,
                     [self = this_one()](const error_code& error, size_t) {
                       if (error == http::error::body_limit) return self->refuse_body();
                       if (error) return self->refuse(error);
                       self->request_.body = std::move(self->parser_->get().body());
                       self->handle();
                     });
  }

  void handle() {
    shared_.places.stop_waiting(*this);
    has_request_ = true;
    ++n_requests_;
    const auto self = this_one();
    guarded([&] {
      route_->handler(std::move(request_), std::make_shared<Reply>(self, n_requests_));
      watch();
    });
  }

  // While a handler works, reads to see whether the client goes. What it sends is its next request;
  // more than the buffer takes would hide that it goes.
  void watch() {
    if (!has_request_ || is_finishing_ || is_watching_) return;
    const size_t room = buffer_.max_size() - buffer_.size();
    if (room == 0) return lose();
    stream_.expires_never();  // a write that is under way keeps its limit
    stream_.async_read_some(buffer_.prepare(std::min(room, kWatchBytes)),
                            [self = this_one()](const error_code& error, size_t n) {
                              self->is_watching_ = false;
                              self->buffer_.commit(n);
                              if (!self->has_request_) return self->next();
                              if (error) return self->lose();
                              self->guarded([&] { self->watch(); });
                            });
    is_watching_ = true;
  }

  // ---- its answer ----

  void refuse_body() {
    const std::string most = std::to_string(route_->body_bytes_max);
    send(response(shared_.refusal(request_.path, http::status::payload_too_large,
                                  route_->body_bytes_max == 0
                                      ? "expected a request without a body"
                                      : "expected a body of at most " + most + " bytes")),
         true);
  }

  void refuse(const error_code& error) {
    const std::optional<http::status> status = status_of(error);
    if (!status) return;
    std::string why =
        *status == http::status::bad_request
            ? "malformed HTTP: " + error.message()
            : "expected headers of at most " + std::to_string(kHeaderBytesMax) + " bytes";
    send(make_response(shared_.refusal("", *status, std::move(why)), 11), true);
  }

  Response response(HttpAnswer answer) const {
    return make_response(std::move(answer), parser_->get().version());
  }

  void answer(HttpAnswer whole) {
    is_finishing_ = true;
    send(response(std::move(whole)), !parser_->get().keep_alive());
  }

  void send(Response response, bool close) {
    // Clients that do not read their answers must not keep others out.
    shared_.places.wait(*this);
    is_last_ = is_last_ || close;
    is_answering_ = true;
    response_ = std::move(response);
    response_.keep_alive(!is_last_);
    response_.prepare_payload();
    // RFC 9110, 8.6: not even a length of 0.
    if (response_.result() == http::status::no_content)
      response_.erase(http::field::content_length);
    serializer_.emplace(response_);
    stream_.expires_after(shared_.limits.time_limit);
    const auto done = [self = this_one()](const error_code& error, size_t) {
      if (error) return self->lose();
      self->complete();
    };
    if (parser_->get().method() == http::verb::head) {
      http::async_write_header(stream_, *serializer_, done);
    } else {
      http::async_write(stream_, *serializer_, done);
    }
  }

  // Chunks, or for a client of HTTP/1.0 everything up to the end of the connection.
  void start_parts(HttpAnswer head, std::string idle_text) {
    const bool has_chunks = parser_->get().version() >= 11;
    is_chunked_ = has_chunks;
    is_last_ = is_last_ || !has_chunks || !parser_->get().keep_alive();
    head.body.clear();
    Response response = this->response(std::move(head));
    response.chunked(has_chunks);
    response.keep_alive(!is_last_);
    std::ostringstream text;
    text << response.base();
    idle_text_ = std::move(idle_text);
    push({text.str(), {}});
    if (!is_lost_) wait_idle();
  }

  void write_part(const std::string& part, Done done) {
    // An empty chunk would end the body, and an empty write over TLS collides with the read of watch().
    if (part.empty()) return done ? done(true) : void();
    push({is_chunked_ ? chunk(part) : part, std::move(done)});
  }

  void finish_parts() {
    is_finishing_ = true;
    if (is_chunked_) return push({"0\r\n\r\n", {}});
    if (parts_.empty()) complete();  // else once they are written
  }

  void push(Part part) {
    parts_.push_back(std::move(part));
    pushed_at_ = std::chrono::steady_clock::now();
    if (parts_.size() == 1) guarded([&] { write_next(); });
  }

  void write_next() {
    shared_.places.wait(*this);
    stream_.expires_after(shared_.limits.time_limit);
    asio::async_write(
        stream_, asio::buffer(parts_.front().bytes),
        [self = this_one()](const error_code& error, size_t) { self->on_written(error); });
    is_writing_ = true;
  }

  void on_written(const error_code& error) {
    is_writing_ = false;
    const Done done = std::move(parts_.front().done);
    parts_.pop_front();
    if (done) done(!error);
    if (error) return lose();
    if (is_writing_ || !has_request_) return;  // `done` wrote the next part, or finished
    if (!parts_.empty()) return guarded([&] { write_next(); });
    if (is_finishing_) return complete();
    shared_.places.stop_waiting(*this);
  }

  // Sends idle_text_ when nothing was sent for some time.
  void wait_idle() {
    idle_timer_.expires_at(pushed_at_ + shared_.limits.idle_text_after);
    idle_timer_.async_wait([self = this_one(), request = n_requests_](const error_code& error) {
      if (error || !self->has(request) || self->is_finishing_) return;
      self->guarded([&] {
        const bool is_idle = std::chrono::steady_clock::now() >=
                             self->pushed_at_ + self->shared_.limits.idle_text_after;
        if (is_idle && self->parts_.empty()) self->write_part(self->idle_text_, {});
        if (is_idle) self->pushed_at_ = std::chrono::steady_clock::now();
        self->wait_idle();
      });
    });
  }

  // ---- its end ----

  void complete() {
    has_request_ = is_finishing_ = is_answering_ = false;
    gone_ = nullptr;
    error_code ignored;
    idle_timer_.cancel(ignored);
    if (!is_watching_) return next();
    guarded([&] { stop_watching(); });
  }

  // next() follows. TLS may have begun another read for the rest of a record, so cancel until it stops.
  void stop_watching() {
    stream_.cancel();
    if (!stream_.has_tls()) return;
    idle_timer_.expires_after(kCancelRetry);
    idle_timer_.async_wait([self = this_one()](const error_code& error) {
      if (!error && self->is_watching_ && !self->has_request_)
        self->guarded([&] { self->stop_watching(); });
    });
  }

  void next() {
    if (is_lost_) return;
    if (is_last_) return hang_up();
    guarded([&] { read(); });
  }

  // The client is gone, or has to go.
  void lose() {
    is_lost_ = true;
    stream_.close();
    error_code ignored;
    idle_timer_.cancel(ignored);
    if (!std::exchange(has_request_, false)) return;
    while (parts_.size() > (is_writing_ ? 1 : 0)) {  // the write that is under way fails by itself
      const Done done = std::move(parts_.back().done);
      parts_.pop_back();
      if (done) done(false);
    }
    if (const auto gone = std::exchange(gone_, nullptr)) gone();
  }

  // Reads what the client still sends, up to the limits, so that closing does not reset the
  // connection before the answer is read.
  void hang_up() {
    is_hanging_up_ = true;
    stream_.expires_after(shared_.limits.time_limit);
    // Without TLS's own goodbye the client could not tell the end from a cut.
    if (stream_.has_tls())
      return stream_.async_shutdown([self = this_one()] { self->half_close(); });
    half_close();
  }
  void half_close() {
    error_code ignored;
    stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
    stream_.expires_after(shared_.limits.time_limit);
    if (shared_.places.wait(*this)) drain();  // else a new connection has its place
  }
  void drain() {
    buffer_.consume(buffer_.size());
    stream_.async_read_raw(buffer_.prepare(kHeaderBytesMax),
                           [self = this_one()](const error_code& error, size_t n) {
                             self->drained_ += n;
                             if (!error && self->drained_ < kDrainBytesMax) self->drain();
                           });
  }

  static constexpr size_t kDrainBytesMax = size_t{1} << 20;
  static constexpr size_t kWatchBytes = 4096;

  HttpStream stream_;
  beast::flat_buffer buffer_{kReadBytesMax};
  std::optional<http::request_parser<http::string_body>> parser_;
  const HttpRoute* route_ = nullptr;
  HttpRequest request_;
  bool has_request_ = false;  // a handler has it, and its answer is not complete
  uint64_t n_requests_ = 0;   // that handlers got
  bool is_watching_ = false;
  std::function<void()> gone_;
  // A whole answer, or the parts of one, the first of which is being written.
  Response response_;
  std::optional<http::response_serializer<http::string_body>> serializer_;
  std::deque<Part> parts_;
  bool is_writing_ = false, is_chunked_ = false;
  bool is_finishing_ = false;  // the handler has given all of its answer
  bool is_last_ = false;       // the connection ends with this answer
  bool is_answering_ = false;  // a whole answer is being written
  bool is_hanging_up_ = false, is_lost_ = false;
  std::string idle_text_;
  asio::steady_timer idle_timer_;
  std::chrono::steady_clock::time_point pushed_at_;
  size_t drained_ = 0;
  Shared& shared_;
};

// What a connection counts against: its IPv4 address, or its IPv6 network. Empty = nothing.
std::string origin_of(const tcp::endpoint& remote) {
  asio::ip::address address = remote.address();
  // A socket of IPv6 that takes both calls 192.0.2.1 "::ffff:192.0.2.1": all of IPv4 would be one network.
  if (address.is_v6() && address.to_v6().is_v4_mapped())
    address = asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6());
  if (address.is_loopback()) return "";
  if (address.is_v4()) return address.to_string();
  auto bytes = address.to_v6().to_bytes();
  std::fill(bytes.begin() + 8, bytes.end(), 0);
  return asio::ip::address_v6(bytes).to_string();
}

}  // namespace

struct HttpServer::Impl {
  Impl(std::vector<HttpRoute> routes, const HttpLimits& limits, HttpPolicy policy, HttpTls keys)
      : shared{.routes = std::move(routes), .limits = limits, .policy = std::move(policy)},
        tls(std::move(keys)) {
    for (int i = 0; i < limits.connections_max; ++i) strands.push_back(asio::make_strand(context));
  }

  Shared shared;  // outlives the connections, which `context` owns
  const HttpTls tls;
  asio::io_context context;
  // Otherwise the threads would end when nothing waits for a connection.
  asio::executor_work_guard<asio::io_context::executor_type> work{context.get_executor()};
  // For the connections, in turn: Boost 1.74 crashes when it finds no memory for a new one.
  std::vector<asio::strand<asio::io_context::executor_type>> strands;
  size_t n_taken = 0;
  tcp::acceptor acceptor{context};
  asio::steady_timer retry{context};
  std::atomic<bool> is_deaf{false};  // there was no memory to wait for the next connection
  std::atomic<bool> is_stopping{false};
  std::vector<std::thread> threads;

  void run() {
    while (!context.stopped()) {
      try {
        if (is_deaf.exchange(false)) accept_next();
        context.run();
      } catch (const std::bad_alloc&) {  // the connection is gone, the others go on
        warn_of_memory();
        if (is_deaf) std::this_thread::sleep_for(kAcceptRetry);
      }
    }
  }

  // Throws std::bad_alloc, and then run() calls it again.
  void accept_next(bool later = false) {
    const auto take = [this](const error_code& stopped) {
      if (!stopped && !is_stopping) accept_one();
    };
    try {
      if (later) {
        retry.expires_after(kAcceptRetry);
        retry.async_wait(take);
      } else {
        acceptor.async_wait(tcp::acceptor::wait_read, take);
      }
    } catch (const std::bad_alloc&) {
      is_deaf = true;
      throw;
    }
  }

  void accept_one() {
    bool is_short = false;  // of descriptors, until a connection closes, or of memory
    try {
      is_short = !take_one();
    } catch (const std::bad_alloc&) {
      warn_of_memory();
      is_short = true;
    }
    accept_next(is_short);
  }

  // False when the connection cannot be taken now. Throws std::bad_alloc, and then it is closed.
  bool take_one() {
    FileDescriptor client(accept4(acceptor.native_handle(), nullptr, nullptr, SOCK_CLOEXEC));
    if (client.get() < 0) return errno == EAGAIN;  // it has gone
    tcp::socket socket(strands[n_taken++ % strands.size()]);
    error_code error;
    const tcp::endpoint own = acceptor.local_endpoint(error);
    if (!error) socket.assign(own.protocol(), client.get(), error);
    if (error) return false;
    client.release();
    const tcp::endpoint remote = socket.remote_endpoint(error);
    if (error) return true;  // it has gone
    const auto connection = std::make_shared<Connection>(std::move(socket), origin_of(remote),
                                                         shared, tls ? tls() : nullptr);
    if (shared.places.take(*connection)) {
      connection->start();
    } else {
      connection->turn_away();
    }
    return true;
  }
};

HttpServer::HttpServer() = default;

Result<std::unique_ptr<HttpServer>> HttpServer::start(const std::string& address, uint16_t port,
                                                      std::vector<HttpRoute> routes,
                                                      const HttpLimits& limits, HttpPolicy policy,
                                                      HttpTls tls) {
  std::unique_ptr<HttpServer> server(new HttpServer);
  server->impl_ =
      std::make_unique<Impl>(std::move(routes), limits, std::move(policy), std::move(tls));
  Impl& impl = *server->impl_;
  error_code error;
  const tcp::endpoint wanted(asio::ip::make_address(address, error), port);
  if (!error) impl.acceptor.open(wanted.protocol(), error);
  // A restart must not wait for connections of the last process to be forgotten.
  if (!error) impl.acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) impl.acceptor.bind(wanted, error);
  if (!error) impl.acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (!error) impl.acceptor.native_non_blocking(true, error);
  tcp::endpoint taken;
  if (!error) taken = impl.acceptor.local_endpoint(error);
  if (error) {
    return Status(Code::kUnavailable, "cannot listen on " + address + " port " +
                                          std::to_string(port) + ": " + error.message());
  }
  std::ostringstream endpoint;
  endpoint << taken;
  server->endpoint_ = endpoint.str();
  // Boost opens it without the flag, and a program that a plugin starts would keep it.
  fcntl(impl.acceptor.native_handle(), F_SETFD, FD_CLOEXEC);
  keep_from_children(impl.acceptor.native_handle());
  impl.accept_next();
  for (int i = 0; i < limits.threads; ++i)
    impl.threads.push_back(start_thread("specd-http", [&impl] { impl.run(); }));
  return server;
}

void HttpServer::stop(std::chrono::milliseconds limit) {
  if (impl_->is_stopping.exchange(true)) return;
  for (const auto& connection : impl_->shared.places.all()) connection->retire();
  impl_->shared.places.wait_empty(limit);
}

HttpServer::~HttpServer() {
  if (impl_ == nullptr) return;
  stop(std::chrono::milliseconds(0));
  // The loop, for one that was accepted just before.
  do {
    for (const auto& connection : impl_->shared.places.all()) connection->close();
  } while (!impl_->shared.places.wait_empty(kCloseRetry));
  impl_->context.stop();
  for (std::thread& thread : impl_->threads) thread.join();
  forget_descriptor(impl_->acceptor.native_handle());
}

}  // namespace specd::host
