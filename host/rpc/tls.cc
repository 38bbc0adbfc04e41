#include "host/rpc/tls.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <string_view>
#include <utility>

#include "core/base/json.h"
#include "core/base/quote.h"
#include "core/base/sha256.h"
#include "host/base/file_owner.h"

namespace specd::host {
namespace {

constexpr uint64_t kPemBytesMax = uint64_t{1} << 20;
constexpr size_t kNamesMax = 64;  // of one certificate
constexpr long kClientChainBytesMax = 16 << 10;

struct Free {
  void operator()(SSL_CTX* each) const { SSL_CTX_free(each); }
  void operator()(SSL* each) const { SSL_free(each); }
  void operator()(BIO* each) const { BIO_free(each); }
  void operator()(X509* each) const { X509_free(each); }
  void operator()(EVP_PKEY* each) const { EVP_PKEY_free(each); }
  void operator()(GENERAL_NAMES* each) const { GENERAL_NAMES_free(each); }
};
template <typename T>
using Owned = std::unique_ptr<T, Free>;

// What OpenSSL says about its last error.
std::string reason() {
  const unsigned long error = ERR_peek_last_error();
  const char* const text = error == 0 ? nullptr : ERR_reason_error_string(error);
  return text == nullptr ? "no reason given" : text;
}

Status wrong(const char* field, const std::string& path, const std::string& why) {
  return {Code::kInvalidArgument, field, quote(path, 400) + ": " + why};
}

Result<std::string> read_pem(const char* field, const std::string& path, bool is_secret = false) {
  // Who can change such a file can be anybody, and who can read the key can be the server.
  SPECD_OK_OR_RETURN(check_file_owner(path, is_secret).in_field(field));
  Result<std::string> text = read_text_file(path, kPemBytesMax);
  if (!text.ok()) return text.status().in_field(field);
  return text;
}

Owned<BIO> bytes_of(const std::string& text) {
  return Owned<BIO>(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

Result<std::vector<Owned<X509>>> certificates_of(const char* field, const std::string& path,
                                                 const std::string& text) {
  const Owned<BIO> bytes = bytes_of(text);
  std::vector<Owned<X509>> all;
  ERR_clear_error();
  while (Owned<X509> one{PEM_read_bio_X509(bytes.get(), nullptr, nullptr, nullptr)})
    all.push_back(std::move(one));
  if (ERR_GET_REASON(ERR_peek_last_error()) != PEM_R_NO_START_LINE || all.empty())
    return wrong(field, path,
                 "expected certificates as PEM (-----BEGIN CERTIFICATE-----); number " +
                     std::to_string(all.size() + 1) + ": " + reason());
  return all;
}

std::string day_of(const ASN1_TIME* time) {
  const Owned<BIO> text(BIO_new(BIO_s_mem()));
  ASN1_TIME_print(text.get(), time);
  char* begin = nullptr;
  const long n = BIO_get_mem_data(text.get(), &begin);
  return {begin, static_cast<size_t>(n)};
}

int no_password(char*, int, int, void*) { return -1; }

Status use_own(SSL_CTX& context, const TlsOptions& files, const std::string& certificate,
               const std::string& key_text) {
  SPECD_TRY(const std::vector<Owned<X509>> chain,
            certificates_of("certificate", files.certificate, certificate));
  X509* const own = chain.front().get();
  if (X509_cmp_current_time(X509_get0_notAfter(own)) < 0)
    return wrong(
        "certificate", files.certificate,
        "it expired on " + day_of(X509_get0_notAfter(own)) + "; put a new one there, with its key");
  if (X509_cmp_current_time(X509_get0_notBefore(own)) > 0)
    return wrong("certificate", files.certificate,
                 "it is valid from " + day_of(X509_get0_notBefore(own)) +
                     "; is the clock of this machine right?");
  if (SSL_CTX_use_certificate(&context, own) != 1)
    return wrong("certificate", files.certificate, reason());
  for (size_t i = 1; i < chain.size(); ++i)
    if (SSL_CTX_add1_chain_cert(&context, chain[i].get()) != 1)
      return wrong("certificate", files.certificate, reason());
  const Owned<EVP_PKEY> key(
      PEM_read_bio_PrivateKey(bytes_of(key_text).get(), nullptr, no_password, nullptr));
  if (key == nullptr)
    return wrong("key", files.key,
                 "expected a private key as PEM, without a password: " + reason());
  if (SSL_CTX_use_PrivateKey(&context, key.get()) != 1)
    return wrong(
        "key", files.key,
        "expected the key of the certificate " + quote(files.certificate, 400) + ": " + reason());
  return Status();
}

Status trust(SSL_CTX& context, const TlsOptions& files, const std::string& client_ca) {
  SPECD_TRY(const std::vector<Owned<X509>> authorities,
            certificates_of("client_ca", files.client_ca, client_ca));
  // An authority counts without the one above it, whose others are not meant.
  X509_STORE_set_flags(SSL_CTX_get_cert_store(&context), X509_V_FLAG_PARTIAL_CHAIN);
  for (const Owned<X509>& each : authorities) {
    if (X509_check_ca(each.get()) == 0)
      return wrong("client_ca", files.client_ca,
                   "expected certificates of authorities, which may sign those of clients; "
                   "one is of another kind");
    if (X509_STORE_add_cert(SSL_CTX_get_cert_store(&context), each.get()) != 1 ||
        SSL_CTX_add_client_CA(&context, each.get()) != 1)
      return wrong("client_ca", files.client_ca, reason());
  }
  return Status();
}

// gRPC's clients insist on an answer to their ALPN. The protocol has its length in front.
template <const std::string_view& kProtocol>
int choose(SSL*, const unsigned char** chosen, unsigned char* chosen_size,
           const unsigned char* offered, unsigned int offered_size, void*) {
  unsigned char* found = nullptr;
  if (SSL_select_next_proto(
          &found, chosen_size, reinterpret_cast<const unsigned char*>(kProtocol.data()),
          static_cast<unsigned>(kProtocol.size()), offered, offered_size) != OPENSSL_NPN_NEGOTIATED)
    return SSL_TLSEXT_ERR_ALERT_FATAL;
  *chosen = found;
  return SSL_TLSEXT_ERR_OK;
}
constexpr std::string_view kHttp2 = "\x02h2", kHttp1 = "\x08http/1.1";

std::string text_of(const ASN1_STRING* string) {
  return {reinterpret_cast<const char*>(ASN1_STRING_get0_data(string)),
          static_cast<size_t>(ASN1_STRING_length(string))};
}

// `has_none`: the certificate has no such names, which is something else than names that cannot be read.
std::vector<std::string> alternative_names(X509& certificate, bool& has_none) {
  std::vector<std::string> found;
  int state = 0;
  const Owned<GENERAL_NAMES> names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(&certificate, NID_subject_alt_name, &state, nullptr)));
  constexpr int kAbsent = -1;
  has_none = names == nullptr && state == kAbsent;
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* const name = sk_GENERAL_NAME_value(names.get(), i);
    const bool is_text = name->type == GEN_DNS || name->type == GEN_URI || name->type == GEN_EMAIL;
    if (is_text && found.size() < kNamesMax) found.push_back(text_of(name->d.ia5));
  }
  return found;
}

// Of certificates without alternative names.
std::vector<std::string> common_name(X509& certificate) {
  X509_NAME* const subject = X509_get_subject_name(&certificate);
  const int index = X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
  if (index < 0) return {};
  unsigned char* utf8 = nullptr;
  const int n =
      ASN1_STRING_to_UTF8(&utf8, X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, index)));
  if (n < 0) return {};
  std::string name(reinterpret_cast<const char*>(utf8), static_cast<size_t>(n));
  OPENSSL_free(utf8);
  return {std::move(name)};
}

class OpenSslStream final : public TlsStream {
 public:
  OpenSslStream(FileDescriptor client, Owned<SSL> ssl)
      : TlsStream(std::move(client)), ssl_(std::move(ssl)) {
    SSL_set_msg_callback(ssl_.get(), on_message);
    SSL_set_msg_callback_arg(ssl_.get(), this);
  }

  Greeting greet() override {
    ERR_clear_error();
    const int result = SSL_accept(ssl_.get());
    n_without_data_ = 0;
    if (result == 1) return Greeting::kDone;
    if (failed(result) < 0 && errno == EAGAIN) return Greeting::kWaiting;
    return Greeting::kFailed;
  }

  std::string problem() const override {
    const long verified = SSL_get_verify_result(ssl_.get());
    if (verified != X509_V_OK) return X509_verify_cert_error_string(verified);
    return problem_;
  }

  std::vector<std::string> names() const override {
    const Owned<X509> certificate(SSL_get1_peer_certificate(ssl_.get()));
    if (certificate == nullptr) return {};
    bool has_none = false;
    std::vector<std::string> names = alternative_names(*certificate, has_none);
    return has_none ? common_name(*certificate) : names;
  }

  // A record may hold no data but a new key. OpenSSL then returns as if it had to wait for more.
  ssize_t receive(char* to, size_t n) override {
    while (n_without_data_ <= kWithoutDataMax) {
      ERR_clear_error();
      size_t got = 0;
      const int result = SSL_read_ex(ssl_.get(), to, n, &got);
      if (result == 1) {
        n_without_data_ = 0;
        return static_cast<ssize_t>(got);
      }
      const ssize_t n_got = failed(result);
      if (n_got == 0 || errno != EAGAIN || !has_more()) return n_got;
    }
    is_broken_ = true;
    errno = ECONNRESET;
    return -1;
  }

  // OpenSSL writes a record at a time.
  ssize_t send(const char* from, size_t n) override {
    size_t sent = 0;
    while (sent < n) {
      ERR_clear_error();
      size_t now = 0;
      const int result = SSL_write_ex(ssl_.get(), from + sent, n - sent, &now);
      if (result != 1) return failed(result) < 0 && sent == 0 ? -1 : static_cast<ssize_t>(sent);
      sent += now;
    }
    return static_cast<ssize_t>(sent);
  }

  void finish() override {
    ERR_clear_error();
    const int result = is_broken_ ? 0 : SSL_shutdown(ssl_.get());
    must_say_goodbye_ = result < 0 && SSL_get_error(ssl_.get(), result) == SSL_ERROR_WANT_WRITE;
    if (!must_say_goodbye_) Stream::finish();
  }
  ssize_t linger() override {
    if (must_say_goodbye_) finish();
    return Stream::linger();
  }

 private:
  static constexpr int kWithoutDataMax = 32;  // messages of TLS in a row

  // Whether more has come from the client, be it the end. OpenSSL keeps no whole record back.
  bool has_more() const {
    pollfd wait{.fd = descriptor(), .events = POLLIN, .revents = 0};
    return poll(&wait, 1, 0) == 1;
  }
  static void on_message(int is_sent, int, int kind, const void*, size_t, SSL*, void* self) {
    if (is_sent == 0 && kind == SSL3_RT_HANDSHAKE)
      ++static_cast<OpenSslStream*>(self)->n_without_data_;
  }
  // What receive() returns: -1 and errno, or 0 when the client has closed.
  ssize_t failed(int result) {
    const int error = SSL_get_error(ssl_.get(), result);
    if (error == SSL_ERROR_ZERO_RETURN) {
      problem_ = "it hung up";
      return 0;
    }
    if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) {
      errno = EAGAIN;
      return -1;
    }
    is_broken_ = true;
    problem_ = ERR_peek_last_error() == 0 ? "it hung up" : reason();
    errno = ECONNRESET;
    return -1;
  }

  const Owned<SSL> ssl_;
  bool is_broken_ = false;
  bool must_say_goodbye_ = false;
  int n_without_data_ = 0;  // messages of TLS since the last data
  std::string problem_;
};

}  // namespace

struct TlsKeys::Read {
  Owned<SSL_CTX> context{SSL_CTX_new(TLS_server_method())};
  std::string sha256;  // of the files
};

TlsKeys::~TlsKeys() = default;

Result<std::unique_ptr<TlsKeys>> TlsKeys::load(const TlsOptions& files) {
  std::unique_ptr<TlsKeys> made(new TlsKeys(files));
  SPECD_TRY(std::shared_ptr<const Read> keys, made->read());
  made->use(std::move(keys));
  return made;
}

Result<std::shared_ptr<const TlsKeys::Read>> TlsKeys::read() const {
  ERR_clear_error();
  auto read = std::make_shared<Read>();
  SSL_CTX* const context = read->context.get();
  if (context == nullptr) return Status(Code::kExhausted, "no memory for TLS");
  SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_max_cert_list(context, kClientChainBytesMax);
  // Each connection shows its certificate anew: an earlier one may have been checked by other rules.
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(context, 0);
  SPECD_TRY(const std::string certificate, read_pem("certificate", files_.certificate));
  SPECD_TRY(const std::string key, read_pem("key", files_.key, /*is_secret=*/true));
  SPECD_OK_OR_RETURN(use_own(*context, files_, certificate, key));
  std::string client_ca;
  if (files_.client_ca.empty()) {
    SSL_CTX_set_alpn_select_cb(context, choose<kHttp1>, nullptr);
  } else {
    // receive() looks at what came without data itself, so that nobody is busy with one client alone.
    SSL_CTX_clear_mode(context, SSL_MODE_AUTO_RETRY);
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
    SSL_CTX_set_alpn_select_cb(context, choose<kHttp2>, nullptr);
    SPECD_TRY(client_ca, read_pem("client_ca", files_.client_ca));
    SPECD_OK_OR_RETURN(trust(*context, files_, client_ca));
  }
  read->sha256 = to_hex(sha256(certificate)) + to_hex(sha256(key)) + to_hex(sha256(client_ca));
  return std::shared_ptr<const Read>(std::move(read));
}

bool TlsKeys::are_new(const Read& keys) const {
  const MutexLock lock(mutex_);
  return keys_->sha256 != keys.sha256;
}

std::string TlsKeys::end_of(const Read& keys) {
  return day_of(X509_get0_notAfter(SSL_CTX_get0_certificate(keys.context.get())));
}

void TlsKeys::use(std::shared_ptr<const Read> keys) {
  const MutexLock lock(mutex_);
  keys_ = std::move(keys);
}

std::shared_ptr<ssl_ctx_st> TlsKeys::context() const {
  const MutexLock lock(mutex_);
  return {keys_, keys_->context.get()};
}

std::unique_ptr<TlsStream> TlsKeys::accept(FileDescriptor client) const {
  // It holds the context.
  Owned<SSL> ssl(SSL_new(context().get()));
  if (ssl == nullptr || SSL_set_fd(ssl.get(), client.get()) != 1) return nullptr;
  SSL_set_accept_state(ssl.get());
  return std::make_unique<OpenSslStream>(std::move(client), std::move(ssl));
}

}  // namespace specd::host
