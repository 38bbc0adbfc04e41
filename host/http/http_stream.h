// A connection with TLS or without, as one stream for Boost.Asio and Boost.Beast. For http_server.cc only.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <chrono>
#include <memory>
#include <new>
#include <optional>
#include <utility>

namespace specd::host {

// All calls, and all completions, are on the strand of the socket. At most one read and one write at once, which share
// no time limit. What reads or writes keeps the stream alive.
class HttpStream {
 public:
  using executor_type = boost::beast::tcp_stream::executor_type;

  // `tls`: the context of a server, of which the stream keeps a share; null = no TLS. Throws std::bad_alloc.
  HttpStream(boost::asio::ip::tcp::socket socket, const std::shared_ptr<ssl_ctx_st>& tls)
      : plain_(std::move(socket)) {
    if (tls == nullptr) return;
    SSL_CTX_up_ref(tls.get());  // for the context, which gives it back
    boost::asio::ssl::context context(tls.get());
    try {
      tls_.emplace(plain_, context);
    } catch (const boost::system::system_error&) {  // OpenSSL has no memory
      throw std::bad_alloc();
    }
  }
  HttpStream(const HttpStream&) = delete;  // tls_ refers to plain_
  HttpStream& operator=(const HttpStream&) = delete;

  executor_type get_executor() { return plain_.get_executor(); }
  boost::asio::ip::tcp::socket& socket() { return plain_.socket(); }
  bool has_tls() const { return tls_.has_value(); }
  // For the read and the write that begin from now on, not for those under way. REQUIRES that not both are under way.
  void expires_after(std::chrono::milliseconds limit) { plain_.expires_after(limit); }
  void expires_never() { plain_.expires_never(); }
  // Ends what is under way with an error.
  void cancel() { plain_.cancel(); }
  void close() { plain_.close(); }

  // REQUIRES bytes to write, or room to read: over TLS an empty write reads, and so collides with a read.
  template <typename Buffers, typename Handler>
  void async_read_some(const Buffers& buffers, Handler&& handler) {
    if (tls_.has_value()) {
      tls_->async_read_some(buffers, std::forward<Handler>(handler));
    } else {
      plain_.async_read_some(buffers, std::forward<Handler>(handler));
    }
  }
  template <typename Buffers, typename Handler>
  void async_write_some(const Buffers& buffers, Handler&& handler) {
    if (tls_.has_value()) {
      tls_->async_write_some(buffers, std::forward<Handler>(handler));
    } else {
      plain_.async_write_some(buffers, std::forward<Handler>(handler));
    }
  }
  // Below TLS.
  template <typename Buffers, typename Handler>
  void async_read_raw(const Buffers& buffers, Handler&& handler) {
    plain_.async_read_some(buffers, std::forward<Handler>(handler));
  }
  // The server's side of TLS's handshake. `handler` gets its error. REQUIRES has_tls()
  template <typename Handler>
  void async_handshake(Handler&& handler) {
    tls_->async_handshake(boost::asio::ssl::stream_base::server, std::forward<Handler>(handler));
  }
  // Says TLS's goodbye, and waits for the client's; `done` gets nothing, since the end comes either way. REQUIRES
  // has_tls()
  template <typename Done>
  void async_shutdown(Done&& done) {
    tls_->async_shutdown(
        [done = std::forward<Done>(done)](const boost::system::error_code&) { done(); });
  }

 private:
  boost::beast::tcp_stream plain_;
  std::optional<boost::asio::ssl::stream<boost::beast::tcp_stream&>> tls_;
};

}  // namespace specd::host
