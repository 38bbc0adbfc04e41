#include "host/http/http_server.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <cerrno>
#include <limits>
#include <map>
#include <new>
#include <optional>
#include <sstream>
#include <string_view>
#include <thread>
#include <utility>

#include "core/base/file_descriptor.h"
#include "core/base/log.h"
#include "core/base/mutex.h"
#include "core/base/thread.h"
#include "core/base/words.h"
#include "host/base/parent_only.h"

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

using Response = http::response<http::string_body>;

Response make_response(http::status status, unsigned version, std::string body,
                       const std::string& content_type = "text/plain; charset=utf-8") {
  Response response(status, version);
  response.set(http::field::server, "specd");
  response.set(http::field::content_type, content_type);
  response.set(http::field::cache_control, "no-store");
  response.body() = std::move(body);
  return response;
}

// "/metrics" of "http://host:9090/metrics", which a proxy sends (RFC 9112, 3.2.2).
std::string origin_form(std::string target) {
  constexpr std::string_view kScheme = "http://";
  if (!target.starts_with(kScheme)) return target;
  const size_t path = target.find('/', kScheme.size());
  return path == std::string::npos ? "/" : target.substr(path);
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

class Connection;

// The places of the connections. One that waits for its client gives its place up when a new
// connection needs it: the one that has waited longest.
class Places {
 public:
  explicit Places(int n) : n_free_(n) {}
  // [any] Takes a place for a new connection. False when handlers run for all others. Throws
  // std::bad_alloc, and then has changed nothing.
  bool take(Connection& connection);
  // [any] From now on `connection` waits for its client, until the call of stop_waiting(). False
  // when its place is gone.
  bool wait(const std::shared_ptr<Connection>& connection);
  void stop_waiting(Connection& connection);
  // [any] In the destructor of a connection.
  void leave(Connection& connection);

 private:
  Mutex mutex_;
  int n_free_ SPECD_GUARDED_BY(mutex_);
  uint64_t n_waits_ SPECD_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, std::weak_ptr<Connection>> waiting_ SPECD_GUARDED_BY(mutex_);
};

// Shared by the connections.
struct Shared {
  std::vector<HttpRoute> routes;
  HttpLimits limits;
  Places places{limits.connections_max};
};

// One connection: reads a header and a body, answers, starts again. Its pending operation keeps it
// alive; operations run one at a time, on its strand.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(tcp::socket socket, Shared& shared) : stream_(std::move(socket)), shared_(shared) {}
  ~Connection() { shared_.places.leave(*this); }

  // REQUIRES a place.
  void start() {
    // Otherwise the second of two pipelined answers waits for the client's delayed acknowledgement.
    error_code ignored;
    stream_.socket().set_option(tcp::no_delay(true), ignored);
    shared_.places.wait(shared_from_this());
    asio::dispatch(stream_.get_executor(), [self = shared_from_this()] { self->read(); });
  }
  // [any] Places gives its place away.
  void make_room() {
    asio::post(stream_.get_executor(), [self = shared_from_this()] { self->stream_.close(); });
  }
  // Instead of start(), without a place. Answers without waiting: an answer this small fits the
  // send buffer of a new socket.
  void turn_away() {
    Response response =
        make_response(http::status::service_unavailable, 11, "too many connections\n");
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
  friend class Places;

  void read() {
    if (!shared_.places.wait(shared_from_this())) return;
    parser_.emplace();
    parser_->header_limit(kHeaderBytesMax);
    // The route's own limit is known only after the header.
    parser_->body_limit(std::numeric_limits<uint64_t>::max());
    // One limit for header and body together, however slowly they arrive.
    stream_.expires_after(shared_.limits.time_limit);
    http::async_read_header(
        stream_, buffer_, *parser_,
        [self = shared_from_this()](const error_code& error, size_t) { self->on_header(error); });
  }

  void on_header(const error_code& error) {
    if (error) return refuse(error);
    const auto& request = parser_->get();
    const bool is_head = request.method() == http::verb::head;
    const std::string target = origin_form(std::string(request.target()));
    request_ = {.method = is_head ? "GET" : std::string(request.method_string()),
                .path = target.substr(0, target.find('?')),
                .body = {}};
    std::vector<std::string> paths, methods;
    for (const HttpRoute& route : shared_.routes) {
      add_once(paths, route.path);
      if (route.path != request_.path) continue;
      if (route.method == request_.method) return take(route);
      add_once(methods, route.method);
      if (route.method == "GET") add_once(methods, "HEAD");
    }
    if (methods.empty()) {
      return answer({.status = 404, .body = "expected " + joined_or(paths) + "\n"},
                    !parser_->is_done());
    }
    Response refusal = make_response(http::status::method_not_allowed, request.version(),
                                     "expected " + joined_or(methods) + "\n");
    refusal.set(http::field::allow, joined(methods));
    send(std::move(refusal), true);
  }

  void take(const HttpRoute& route) {
    route_ = &route;
    if (parser_->is_done()) return handle();
    if (route.body_bytes_max == 0 || parser_->content_length().value_or(0) > route.body_bytes_max)
      return refuse_body();
    parser_->body_limit(route.body_bytes_max);
    if (!beast::iequals(parser_->get()[http::field::expect], "100-continue")) return read_body();
    // The client sends the body only after this.
    static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
    asio::async_write(stream_, asio::buffer(kContinue),
                      [self = shared_from_this()](const error_code& error, size_t) {
                        if (!error) self->read_body();
                      });
  }

  void read_body() {
    http::async_read(stream_, buffer_, *parser_,
                     [self = shared_from_this()](const error_code& error, size_t) {
                       if (error == http::error::body_limit) return self->refuse_body();
                       if (error) return self->refuse(error);
                       self->request_.body = std::move(self->parser_->get().body());
                       self->handle();
                     });
  }

  void handle() {
    shared_.places.stop_waiting(*this);
    answer(route_->handler(request_), false);
  }

  void refuse_body() {
    const std::string most = std::to_string(route_->body_bytes_max);
    answer(
        {.status = 413,
         .body = route_->body_bytes_max == 0 ? "expected a request without a body\n"
                                             : "expected a body of at most " + most + " bytes\n"},
        true);
  }

  void refuse(const error_code& error) {
    const std::optional<http::status> status = status_of(error);
    if (!status) return;
    send(make_response(*status, 11, std::string(http::obsolete_reason(*status)) + "\n"), true);
  }

  void answer(HttpAnswer answer, bool close) {
    const auto& request = parser_->get();
    Response response = make_response(static_cast<http::status>(answer.status), request.version(),
                                      std::move(answer.body), answer.content_type);
    send(std::move(response), close || !request.keep_alive());
  }

  void send(Response response, bool close) {
    // Clients that do not read their answers must not keep others out.
    shared_.places.wait(shared_from_this());
    response_ = std::move(response);
    response_.keep_alive(!close);
    response_.prepare_payload();
    serializer_.emplace(response_);
    stream_.expires_after(shared_.limits.time_limit);
    const auto done = [self = shared_from_this(), close](const error_code& error, size_t) {
      if (error) return;
      if (close) return self->hang_up();
      self->read();
    };
    if (parser_->get().method() == http::verb::head) {
      http::async_write_header(stream_, *serializer_, done);
    } else {
      http::async_write(stream_, *serializer_, done);
    }
  }

  // Reads what the client still sends, up to the limits, so that closing does not reset the
  // connection before the answer is read.
  void hang_up() {
    error_code ignored;
    stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
    if (shared_.places.wait(shared_from_this())) drain();  // else a new connection has its place
  }
  void drain() {
    buffer_.consume(buffer_.size());
    stream_.async_read_some(buffer_.prepare(kHeaderBytesMax),
                            [self = shared_from_this()](const error_code& error, size_t n) {
                              self->drained_ += n;
                              if (!error && self->drained_ < kDrainBytesMax) self->drain();
                            });
  }

  static constexpr size_t kDrainBytesMax = size_t{1} << 20;

  beast::tcp_stream stream_;
  beast::flat_buffer buffer_{kReadBytesMax};
  std::optional<http::request_parser<http::string_body>> parser_;
  Response response_;
  std::optional<http::response_serializer<http::string_body>> serializer_;
  size_t drained_ = 0;
  const HttpRoute* route_ = nullptr;
  HttpRequest request_;
  bool has_place_ = false;  // guarded by the mutex of Places, as is the next
  uint64_t wait_ = 0;       // its key there while it waits, else 0
  Shared& shared_;
};

bool Places::take(Connection& connection) {
  std::shared_ptr<Connection> oldest;  // let go outside of the lock
  const MutexLock lock(mutex_);
  if (n_free_ > 0) {
    --n_free_;
  } else {
    while (oldest == nullptr && !waiting_.empty()) {
      oldest = waiting_.begin()->second.lock();
      if (oldest == nullptr) waiting_.erase(waiting_.begin());  // it is being destroyed
    }
    if (oldest == nullptr) return false;
    oldest->make_room();  // first, since it may throw
    waiting_.erase(std::exchange(oldest->wait_, 0));
    oldest->has_place_ = false;
  }
  connection.has_place_ = true;
  return true;
}

bool Places::wait(const std::shared_ptr<Connection>& connection) {
  const MutexLock lock(mutex_);
  if (connection->has_place_ && connection->wait_ == 0) {
    connection->wait_ = ++n_waits_;
    waiting_.emplace(connection->wait_, connection);
  }
  return connection->has_place_;
}

void Places::stop_waiting(Connection& connection) {
  const MutexLock lock(mutex_);
  if (connection.wait_ != 0) waiting_.erase(std::exchange(connection.wait_, 0));
}

void Places::leave(Connection& connection) {
  const MutexLock lock(mutex_);
  if (connection.wait_ != 0) waiting_.erase(connection.wait_);
  if (connection.has_place_) ++n_free_;
}

void warn_of_memory() { log(LogLevel::kWarn, "http: not enough memory for an answer"); }

}  // namespace

struct HttpServer::Impl {
  Impl(std::vector<HttpRoute> routes, const HttpLimits& limits)
      : shared{.routes = std::move(routes), .limits = limits} {
    for (int i = 0; i < limits.connections_max; ++i) strands.push_back(asio::make_strand(context));
  }

  Shared shared;  // outlives the connections, which `context` owns
  asio::io_context context;
  // Otherwise the threads would end when nothing waits for a connection.
  asio::executor_work_guard<asio::io_context::executor_type> work{context.get_executor()};
  // For the connections, in turn: Boost 1.74 crashes when it finds no memory for a new one.
  std::vector<asio::strand<asio::io_context::executor_type>> strands;
  size_t n_taken = 0;
  tcp::acceptor acceptor{context};
  asio::steady_timer retry{context};
  std::atomic<bool> is_deaf{false};  // there was no memory to wait for the next connection
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
      if (!stopped) accept_one();
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
    const auto connection = std::make_shared<Connection>(std::move(socket), shared);
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
                                                      const HttpLimits& limits) {
  std::unique_ptr<HttpServer> server(new HttpServer);
  server->impl_ = std::make_unique<Impl>(std::move(routes), limits);
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

HttpServer::~HttpServer() {
  if (impl_ == nullptr) return;
  impl_->context.stop();
  for (std::thread& thread : impl_->threads) thread.join();
  forget_descriptor(impl_->acceptor.native_handle());
}

}  // namespace specd::host
