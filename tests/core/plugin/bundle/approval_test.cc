// Only approved code: a test vector of RFC 8032, and bundles that are signed, unsigned, and signed for
// something else.
#include "core/plugin/bundle/approval.h"

#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>

#include <filesystem>
#include <memory>
#include <string>

#include "tests/core/plugin/bundle_fixture.h"

namespace specd {
namespace {

class Approvals : public testing::Test {
 protected:
  // A key of the test's own.
  struct Signer {
    std::unique_ptr<EVP_PKEY, void (*)(EVP_PKEY*)> key{
        EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519"), EVP_PKEY_free};

    std::string pem() const {
      const std::unique_ptr<BIO, void (*)(BIO*)> bytes(BIO_new(BIO_s_mem()), BIO_free_all);
      PEM_write_bio_PUBKEY(bytes.get(), key.get());
      char* data = nullptr;
      const long size = BIO_get_mem_data(bytes.get(), &data);
      return {data, static_cast<size_t>(size)};
    }
    std::string sign(const std::string& text) const {
      const std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context(EVP_MD_CTX_new(),
                                                                       EVP_MD_CTX_free);
      std::string signature(kSignatureBytes, '\0');
      size_t size = signature.size();
      EXPECT_EQ(EVP_DigestSignInit(context.get(), nullptr, nullptr, nullptr, key.get()), 1);
      EXPECT_EQ(
          EVP_DigestSign(context.get(), reinterpret_cast<unsigned char*>(signature.data()), &size,
                         reinterpret_cast<const unsigned char*>(text.data()), text.size()),
          1);
      return signature;
    }
  };

  std::string file(const std::string& name, const std::string& text) {
    const std::string path = tree_.plugins() + "/../" + name;
    const std::string plain = std::filesystem::path(path).lexically_normal().string();
    write_bytes(plain, text, 0644);
    return plain;
  }
  // The state of the tree's only bundle, with the reason.
  std::string state(const std::optional<Approval::Options>& approved) {
    auto registry = PluginRegistry::open(
        {.directories = {tree_.plugins()}, .cache_directory = tree_.cache(), .approved = approved},
        host_);
    EXPECT_TRUE(registry.ok()) << registry.status().text();
    const BundleInfo info = registry.value()->list().at(0);
    return info.state == PluginState::kDiscovered ? "discovered" : info.reason;
  }

  BundleTree tree_;
  TestServices services_;
  const specd_host* host_ = make_host(&services_);
};

TEST_F(Approvals, a_signature_of_rfc_8032_is_known_and_one_with_a_changed_bit_is_not) {
  const std::string key = file("key.pem",
                               "-----BEGIN PUBLIC KEY-----\n"
                               "MCowBQYDK2VwAyEAPUAXw+hDiVqStwqnTRt+vJyYLM8uxJaMwM1V8Sr0Zgw=\n"
                               "-----END PUBLIC KEY-----\n");
  const auto approval = Approval::make(Approval::Options{.keys = {key}});
  ASSERT_TRUE(approval.ok()) << approval.status().text();
  // Test 2: the message 0x72.
  const std::string hex =
      "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
      "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00";
  std::string signature;
  for (size_t i = 0; i < hex.size(); i += 2)
    signature += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  EXPECT_TRUE(approval.value().check("\x72", signature).ok());
  EXPECT_FALSE(approval.value().check("\x73", signature).ok());
  for (size_t i = 0; i < signature.size(); ++i) {
    std::string other = signature;
    other[i] = static_cast<char>(other[i] ^ (1 << (i % 8)));
    EXPECT_FALSE(approval.value().check("\x72", other).ok()) << i;
    EXPECT_FALSE(approval.value().check("\x72", signature.substr(0, i)).ok()) << i;
  }
  EXPECT_FALSE(approval.value().check("\x72", signature + "x").ok());
}

TEST_F(Approvals, a_bundle_runs_when_its_manifest_is_listed_or_signed_by_a_known_key) {
  const Signer signer, other;
  const std::string key = file("key.pem", signer.pem());
  const std::string folder = tree_.add("a", read_bytes(fixture("good")));
  const std::string manifest = read_bytes(folder + "/plugin.json");
  const std::string hash = to_hex(sha256(manifest)), wrong(64, 'a');
  EXPECT_EQ(state(std::nullopt), "discovered");
  EXPECT_NE(state(Approval::Options{}).find("it is not approved"), std::string::npos) << "no list";
  EXPECT_EQ(state(Approval::Options{.sha256 = {wrong, hash}}), "discovered");
  EXPECT_EQ(state(Approval::Options{.sha256 = {wrong}}),
            "it is not approved: plugins.approved.sha256 does not list " + hash +
                ", the hash of its plugin.json");
  EXPECT_NE(state(Approval::Options{.keys = {key}}).find(", and it has no plugin.json.sig"),
            std::string::npos);
  const std::string signature = folder + "/plugin.json.sig";
  write_bytes(signature, signer.sign(manifest));
  EXPECT_EQ(state(Approval::Options{.keys = {key}}), "discovered");
  EXPECT_EQ(
      state(Approval::Options{.sha256 = {wrong}, .keys = {file("other.pem", other.pem()), key}}),
      "discovered");
  const std::string by_nobody = "no key of plugins.approved.keys has made its plugin.json.sig";
  for (const std::string& bad : {other.sign(manifest), signer.sign(manifest + " "),
                                 signer.sign(manifest).substr(0, 63), std::string("x")}) {
    write_bytes(signature, bad);
    EXPECT_NE(state(Approval::Options{.keys = {key}}).find(by_nobody), std::string::npos)
        << state(Approval::Options{.keys = {key}});
  }
  write_bytes(signature, signer.sign(manifest) + "x");
  EXPECT_NE(state(Approval::Options{.keys = {key}}).find("expected at most 64"), std::string::npos);
  EXPECT_EQ(state(Approval::Options{.sha256 = {hash}}), "discovered") << "nobody asks for it";
  EXPECT_EQ(state(Approval::Options{.sha256 = {hash}, .keys = {key}}), "discovered");
  // The signature is of the old manifest, the library of a new one.
  write_bytes(signature, signer.sign(manifest));
  tree_.add("a", read_bytes(fixture("newer")));
  EXPECT_NE(state(Approval::Options{.keys = {key}}).find(by_nobody), std::string::npos);
}

TEST_F(Approvals, a_signature_that_goes_is_missed_at_the_next_look_even_of_a_retired_plugin) {
  const Signer signer;
  const std::string folder = tree_.add("a", read_bytes(fixture("good")));
  write_bytes(folder + "/plugin.json.sig", signer.sign(read_bytes(folder + "/plugin.json")));
  const Approval::Options approved{.keys = {file("key.pem", signer.pem())}};
  auto opened = PluginRegistry::open(
      {.directories = {tree_.plugins()}, .cache_directory = tree_.cache(), .approved = approved},
      host_);
  ASSERT_TRUE(opened.ok()) << opened.status().text();
  PluginRegistry& registry = *opened.value();
  const std::string id = "org.example.fixture";
  EXPECT_TRUE(registry.retire(id).value());
  std::filesystem::remove(folder + "/plugin.json.sig");
  ASSERT_TRUE(registry.rescan().ok());
  EXPECT_NE(registry.load(id).text().find("it is not approved"), std::string::npos);
  EXPECT_EQ(registry.find(id)->state, PluginState::kRefused);
}

TEST_F(Approvals, a_key_that_is_none_is_refused_with_its_place) {
  const auto refusal = [&](const std::string& path) {
    return PluginRegistry::open({.directories = {tree_.plugins()},
                                 .cache_directory = tree_.cache(),
                                 .approved = Approval::Options{.keys = {path}}},
                                host_)
        .status()
        .text();
  };
  const std::string none = refusal(tree_.plugins() + "/none.pem");
  EXPECT_NE(none.find("approved.keys[0]: "), std::string::npos) << none;
  EXPECT_NE(none.find("none.pem"), std::string::npos) << none;
  const std::string words = "expected an Ed25519 public key as PEM";
  EXPECT_NE(refusal(file("text.pem", "no key")).find(words), std::string::npos);
  Signer wrong;  // a key that cannot sign
  wrong.key.reset(EVP_PKEY_Q_keygen(nullptr, nullptr, "X25519"));
  EXPECT_NE(refusal(file("wrong.pem", wrong.pem())).find(words), std::string::npos);
  const std::string open = file("open.pem", Signer().pem());
  std::filesystem::permissions(open, std::filesystem::perms::all);
  EXPECT_NE(refusal(open).find("writable"), std::string::npos) << refusal(open);
}

}  // namespace
}  // namespace specd
