// Certificates made on the spot, and a client that shows them.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "core/base/file_descriptor.h"

namespace specd::host {

struct FreeTls {
  void operator()(EVP_PKEY* each) const { EVP_PKEY_free(each); }
  void operator()(X509* each) const { X509_free(each); }
  void operator()(X509_EXTENSION* each) const { X509_EXTENSION_free(each); }
  void operator()(BIO* each) const { BIO_free(each); }
  void operator()(SSL* each) const { SSL_free(each); }
  void operator()(SSL_CTX* each) const { SSL_CTX_free(each); }
};
template <typename T>
using OwnedTls = std::unique_ptr<T, FreeTls>;

// What a certificate says.
struct Wanted {
  std::string common_name = {};
  std::string alternative_names = {};  // "DNS:localhost,URI:spiffe://x"
  std::string usage = "clientAuth";
  bool is_authority = false;
  long begin_seconds = -60, end_seconds = 3600;  // from now
};

// A key with its certificate.
class Identity {
 public:
  // Signed by `issuer`, or by itself.
  explicit Identity(const Wanted& wanted, const Identity* issuer = nullptr)
      : key_(EVP_EC_gen("P-256")), certificate_(X509_new()) {
    X509* const made = certificate_.get();
    X509_set_version(made, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(made), ++last_serial_);
    X509_gmtime_adj(X509_getm_notBefore(made), wanted.begin_seconds);
    X509_gmtime_adj(X509_getm_notAfter(made), wanted.end_seconds);
    X509_set_pubkey(made, key_.get());
    X509_NAME_add_entry_by_NID(X509_get_subject_name(made), NID_commonName, MBSTRING_UTF8,
                               reinterpret_cast<const unsigned char*>(wanted.common_name.data()),
                               static_cast<int>(wanted.common_name.size()), -1, 0);
    const Identity& signs = issuer == nullptr ? *this : *issuer;
    X509_set_issuer_name(made, X509_get_subject_name(signs.certificate_.get()));
    if (wanted.is_authority) add(NID_basic_constraints, "critical,CA:TRUE");
    if (!wanted.is_authority) add(NID_ext_key_usage, wanted.usage);
    if (!wanted.alternative_names.empty()) add(NID_subject_alt_name, wanted.alternative_names);
    EXPECT_GT(X509_sign(made, signs.key_.get(), EVP_sha256()), 0);
  }

  // Writes STEM.pem and STEM.key.
  void write(const std::filesystem::path& stem) const {
    std::ofstream(stem.string() + ".pem") << certificate_text();
    std::ofstream(stem.string() + ".key") << key_text();
    chmod((stem.string() + ".key").c_str(), 0600);
  }
  std::string certificate_text() const {
    return text([&](BIO* to) { PEM_write_bio_X509(to, certificate_.get()); });
  }
  std::string key_text() const {
    return text([&](BIO* to) {
      PEM_write_bio_PrivateKey(to, key_.get(), nullptr, nullptr, 0, nullptr, nullptr);
    });
  }
  X509* certificate() const { return certificate_.get(); }
  EVP_PKEY* key() const { return key_.get(); }

 private:
  void add(int kind, const std::string& value) {
    const OwnedTls<X509_EXTENSION> made(X509V3_EXT_conf_nid(nullptr, nullptr, kind, value.c_str()));
    ASSERT_NE(made, nullptr) << value;
    X509_add_ext(certificate_.get(), made.get(), -1);
  }
  template <typename Write>
  static std::string text(Write write) {
    const OwnedTls<BIO> memory(BIO_new(BIO_s_mem()));
    write(memory.get());
    char* begin = nullptr;
    const long n = BIO_get_mem_data(memory.get(), &begin);
    return {begin, static_cast<size_t>(n)};
  }

  static inline long last_serial_ = 0;
  OwnedTls<EVP_PKEY> key_;
  OwnedTls<X509> certificate_;
};

// A socket that is connected to "127.0.0.1:PORT"; it waits for at most 10 s.
inline FileDescriptor connect_tcp(const std::string& address) {
  FileDescriptor made(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  const timeval limit{.tv_sec = 10, .tv_usec = 0};
  setsockopt(made.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  setsockopt(made.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
  EXPECT_EQ(connect(made.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0) << address;
  return made;
}

// A blocking TLS client that trusts everybody.
class TlsClient {
 public:
  // Shows `shown`, if that is not null.
  TlsClient(const std::string& address, const Identity* shown)
      : context_(SSL_CTX_new(TLS_client_method())), socket_(connect_tcp(address)) {
    if (shown != nullptr) {
      SSL_CTX_use_certificate(context_.get(), shown->certificate());
      SSL_CTX_use_PrivateKey(context_.get(), shown->key());
    }
    ssl_.reset(SSL_new(context_.get()));
    SSL_set_fd(ssl_.get(), socket_.get());
    is_connected_ = SSL_connect(ssl_.get()) == 1;
  }

  bool is_connected() const { return is_connected_; }
  // What was sent.
  size_t send(std::string_view bytes) {
    size_t n = 0;
    return SSL_write_ex(ssl_.get(), bytes.data(), bytes.size(), &n) == 1 ? n : 0;
  }
  // Until the end, or an alert.
  std::string read_all() {
    std::string all, block(30'000, '\0');
    size_t n = 0;
    while (SSL_read_ex(ssl_.get(), block.data(), block.size(), &n) == 1) all.append(block, 0, n);
    const bool is_late = errno == EAGAIN && SSL_get_error(ssl_.get(), -1) == SSL_ERROR_WANT_READ;
    return is_late ? all + " (and no end)" : all;
  }
  // Asks for new keys as often.
  void update_keys(int n) {
    for (int i = 0; i < n; ++i) {
      SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED);
      SSL_do_handshake(ssl_.get());
    }
  }
  // Some bytes, or none at the end.
  std::string read_some() {
    std::string block(30'000, '\0');
    size_t n = 0;
    if (SSL_read_ex(ssl_.get(), block.data(), block.size(), &n) != 1) n = 0;
    block.resize(n);
    return block;
  }
  // Whether the server said goodbye, so that nothing was cut off.
  bool has_ended() const { return (SSL_get_shutdown(ssl_.get()) & SSL_RECEIVED_SHUTDOWN) != 0; }
  void finish() {
    SSL_shutdown(ssl_.get());
    shutdown(socket_.get(), SHUT_WR);
  }

 private:
  OwnedTls<SSL_CTX> context_;
  FileDescriptor socket_;
  OwnedTls<SSL> ssl_;
  bool is_connected_ = false;
};

// One whose records can be sent piece by piece.
class SlowTlsClient {
 public:
  SlowTlsClient(const std::string& address, const Identity& shown)
      : context_(SSL_CTX_new(TLS_client_method())), socket_(connect_tcp(address)) {
    SSL_CTX_use_certificate(context_.get(), shown.certificate());
    SSL_CTX_use_PrivateKey(context_.get(), shown.key());
    ssl_.reset(SSL_new(context_.get()));
    in_ = BIO_new(BIO_s_mem());
    out_ = BIO_new(BIO_s_mem());
    SSL_set_bio(ssl_.get(), in_, out_);  // which owns them
    SSL_set_connect_state(ssl_.get());
    while (SSL_do_handshake(ssl_.get()) != 1) {
      send(taken_out());
      std::string block(20'000, '\0');
      const ssize_t n = recv(socket_.get(), block.data(), block.size(), 0);
      if (n <= 0) break;
      BIO_write(in_, block.data(), static_cast<int>(n));
    }
    send(taken_out());
  }

  // The bytes of `text` on the wire; at most 16 KiB make one record.
  std::string record_of(std::string_view text) {
    SSL_write(ssl_.get(), text.data(), static_cast<int>(text.size()));
    return taken_out();
  }
  void send(const std::string& bytes) const {
    EXPECT_EQ(::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  // Until the other side has acknowledged all, and a little longer, so that it has most likely read it.
  void wait_until_taken() const {
    int left = 1;
    while (ioctl(socket_.get(), SIOCOUTQ, &left) == 0 && left > 0)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }

 private:
  std::string taken_out() const {
    std::string bytes(BIO_ctrl_pending(out_), '\0');
    if (!bytes.empty()) BIO_read(out_, bytes.data(), static_cast<int>(bytes.size()));
    return bytes;
  }

  OwnedTls<SSL_CTX> context_;
  FileDescriptor socket_;
  OwnedTls<SSL> ssl_;
  BIO *in_ = nullptr, *out_ = nullptr;
};

}  // namespace specd::host
