#include "host/http/http_listener.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>

namespace specd::host {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using tcp = asio::ip::tcp;
using boost::system::error_code;

constexpr uint32_t kHeaderBytesMax = 8 << 10;
// More than a header, so that the parser says what is too long; bounds what a client can make us
// hold.
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

// What a failed read is worth an answer; none for who hung up or was too slow.
std::optional<http::status> status_of(const error_code& error) {
  if (error.category() != make_error_code(http::error::bad_method).category()) return std::nullopt;
  if (error == http::error::end_of_stream || error == http::error::partial_message)
    return std::nullopt;
  if (error == http::error::header_limit || error == http::error::buffer_overflow)
    return http::status::request_header_fields_too_large;
  if (error == http::error::body_limit) return http::status::payload_too_large;
  return http::status::bad_request;
}

// One connection: read a header, answer, again. Lives as long as an operation of it.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(tcp::socket socket, const HttpHandler& handler, const HttpLimits& limits,
             int& n_connections)
      : stream_(std::move(socket)),
        handler_(handler),
        limits_(limits),
        n_connections_(n_connections) {
    ++n_connections_;
  }
  ~Connection() { --n_connections_; }

  void read() {
    parser_.emplace();
    parser_->header_limit(kHeaderBytesMax);
    stream_.expires_after(limits_.time_limit);  // for the whole header, however it trickles in
    http::async_read_header(
        stream_, buffer_, *parser_,
        [self = shared_from_this()](const error_code& error, size_t) { self->on_read(error); });
  }

 private:
  void on_read(const error_code& error) {
    if (error) {
      const std::optional<http::status> status = status_of(error);
      if (!status) return;
      send(make_response(*status, 11, std::string(http::obsolete_reason(*status)) + "\n"), true);
      return;
    }
    const auto& request = parser_->get();
    const unsigned version = request.version();
    const bool head = request.method() == http::verb::head;
    if (!head && request.method() != http::verb::get) {
      Response refusal =
          make_response(http::status::method_not_allowed, version, "expected GET or HEAD\n");
      refusal.set(http::field::allow, "GET, HEAD");
      return send(std::move(refusal), true);
    }
    if (parser_->chunked() || parser_->content_length().value_or(0) > 0) {
      return send(make_response(http::status::payload_too_large, version,
                                "expected a request without a body\n"),
                  true);
    }
    const std::string target(request.target());
    HttpAnswer answer = handler_(target.substr(0, target.find('?')));
    Response response = make_response(static_cast<http::status>(answer.status), version,
                                      std::move(answer.body), answer.content_type);
    const bool close = !request.keep_alive();
    if (!head) return send(std::move(response), close);
    const size_t length = response.body().size();
    response.body().clear();
    response.content_length(length);
    response.keep_alive(!close);
    write(std::move(response), close);
  }

  void send(Response response, bool close) {
    response.keep_alive(!close);
    response.prepare_payload();
    write(std::move(response), close);
  }

  void write(Response response, bool close) {
    response_ = std::move(response);
    serializer_.emplace(response_);
    stream_.expires_after(limits_.time_limit);
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
    drain();
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
  std::optional<http::request_parser<http::empty_body>> parser_;
  Response response_;
  std::optional<http::response_serializer<http::string_body>> serializer_;
  size_t drained_ = 0;
  const HttpHandler& handler_;
  const HttpLimits& limits_;
  int& n_connections_;
};

// Says so and closes, without waiting for anything: what a fresh socket can always take.
void turn_away(tcp::socket socket) {
  Response response =
      make_response(http::status::service_unavailable, 11, "too many connections\n");
  response.keep_alive(false);
  response.prepare_payload();
  std::ostringstream text;
  text << response;
  error_code ignored;
  socket.non_blocking(true, ignored);
  socket.write_some(asio::buffer(text.str()), ignored);
  char rest[1024];  // unread bytes would turn the close into a reset
  socket.shutdown(tcp::socket::shutdown_send, ignored);
  socket.read_some(asio::buffer(rest), ignored);
}

}  // namespace

struct HttpListener::Impl {
  HttpHandler handler;
  HttpLimits limits;
  int n_connections = 0;  // listener thread only; outlives the connections, which `context` holds
  asio::io_context context{1};
  tcp::acceptor acceptor{context};
  asio::steady_timer retry{context};
  std::thread thread;

  void accept() {
    acceptor.async_accept([this](const error_code& error, tcp::socket socket) {
      if (error == asio::error::operation_aborted) return;
      if (error) {  // out of descriptors, most likely: they come back when connections end
        retry.expires_after(kAcceptRetry);
        retry.async_wait([this](const error_code& stopped) {
          if (!stopped) accept();
        });
        return;
      }
      if (n_connections >= limits.connections_max) {
        turn_away(std::move(socket));
      } else {
        std::make_shared<Connection>(std::move(socket), handler, limits, n_connections)->read();
      }
      accept();
    });
  }
};

HttpListener::HttpListener() = default;

Result<std::unique_ptr<HttpListener>> HttpListener::start(const std::string& address, uint16_t port,
                                                          HttpHandler handler,
                                                          const HttpLimits& limits) {
  std::unique_ptr<HttpListener> listener(new HttpListener);
  listener->impl_ = std::make_unique<Impl>();
  Impl& impl = *listener->impl_;
  impl.handler = std::move(handler);
  impl.limits = limits;
  error_code error;
  const tcp::endpoint wanted(asio::ip::make_address(address, error), port);
  if (!error) impl.acceptor.open(wanted.protocol(), error);
  // A restart must not wait for connections of the last process to be forgotten.
  if (!error) impl.acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) impl.acceptor.bind(wanted, error);
  if (!error) impl.acceptor.listen(asio::socket_base::max_listen_connections, error);
  tcp::endpoint taken;
  if (!error) taken = impl.acceptor.local_endpoint(error);
  if (error) {
    return Status(Code::kUnavailable, "cannot listen on " + address + " port " +
                                          std::to_string(port) + ": " + error.message());
  }
  std::ostringstream endpoint;
  endpoint << taken;
  listener->endpoint_ = endpoint.str();
  impl.accept();
  impl.thread = std::thread([&impl] { impl.context.run(); });
  return listener;
}

HttpListener::~HttpListener() {
  if (impl_ == nullptr || !impl_->thread.joinable()) return;
  impl_->context.stop();
  impl_->thread.join();
}

}  // namespace specd::host
