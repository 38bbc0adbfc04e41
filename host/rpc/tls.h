// TLS 1.3. tls.cc is the one file of the daemon that knows OpenSSL, but for the HTTP server, which runs Boost's TLS with
// the context that is made here.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/base/file_descriptor.h"
#include "core/base/mutex.h"
#include "core/base/status.h"
#include "host/config/config.h"
#include "host/rpc/stream.h"

struct ssl_ctx_st;  // OpenSSL's SSL_CTX

namespace specd::host {

// A connection of a client that has to show a certificate.
class TlsStream : public Stream {
 public:
  enum class Greeting { kWaiting, kDone, kFailed };

  // Carries the handshake on. kDone: the client has a certificate that `client_ca` signed. Until then nothing may
  // be received or sent.
  virtual Greeting greet() = 0;
  // Why greet() failed.
  virtual std::string problem() const = 0;
  // After kDone: whom the client's certificate names, by its alternative names (DNS, URI, email), or where it has
  // none by its common name.
  virtual std::vector<std::string> names() const = 0;

 protected:
  using Stream::Stream;
};

class TlsKeys {
 public:
  struct Read;  // keys as they were read

  // With `client_ca` for gRPC, to clients that show a certificate; without for HTTP/1.1, to everybody. Errors have the
  // field of the wrong file: "certificate", "key" or "client_ca".
  static Result<std::unique_ptr<TlsKeys>> load(const TlsOptions& files);
  ~TlsKeys();

  // [any] Reads the files again, for new certificates at the same paths.
  Result<std::shared_ptr<const Read>> read() const;
  // [any] Whether these differ from those in use.
  bool are_new(const Read& keys) const;
  // When their certificate expires: "Jan 31 12:00:00 2027 GMT".
  static std::string end_of(const Read& keys);
  // [any] Connections that start from now on use these.
  void use(std::shared_ptr<const Read> keys);
  // [any] Null when there is no memory.
  std::unique_ptr<TlsStream> accept(FileDescriptor client) const;
  // [any] The SSL_CTX of connections that start now.
  std::shared_ptr<ssl_ctx_st> context() const;

 private:
  explicit TlsKeys(TlsOptions files) : files_(std::move(files)) {}

  const TlsOptions files_;
  mutable Mutex mutex_;
  std::shared_ptr<const Read> keys_ SPECD_GUARDED_BY(mutex_);
};

}  // namespace specd::host
