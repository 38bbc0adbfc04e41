// Keys, and pages of other sites.
#include "host/http/http_door.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

namespace specd::host {
namespace {

constexpr char kKey[] = "sixteen-bytes-ok";

class HttpDoorTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = (std::filesystem::temp_directory_path() / "specd-door-XXXXXX").string();
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string keys(const std::string& text, mode_t mode = 0600) const {
    const std::string path = folder_ + "/keys";
    std::filesystem::remove(path);
    std::ofstream(path) << text;
    EXPECT_EQ(chmod(path.c_str(), mode), 0);
    return path;
  }
  // The status of the refusal; 200 = none.
  static unsigned status(const HttpDoor& door, const std::string& path, HttpFields headers) {
    HttpRequest request;
    request.path = path;
    request.headers = std::move(headers);
    const auto refusal = door.refuse(request);
    return refusal.has_value() ? refusal->status : 200;
  }

  std::string folder_;
};

TEST_F(HttpDoorTest, a_loopback_address_needs_no_key) {
  for (const char* address : {"127.0.0.1", "127.8.0.1", "::1"}) {
    const auto door = HttpDoor::open(address, "");
    ASSERT_TRUE(door.ok());
    EXPECT_EQ(status(door.value(), "/v1/models", {}), 200u) << address;
    // An OpenAI client always sends one, lm-eval perhaps an empty one.
    EXPECT_EQ(status(door.value(), "/v1/models", {{"authorization", "Bearer "}}), 200u);
  }
}

TEST_F(HttpDoorTest, another_address_serves_metrics_and_probes_only) {
  for (const char* address : {"10.0.0.1", "128.0.0.1", "fe80::1"}) {
    // Keys would go over the network as they are.
    const auto with_keys = HttpDoor::open(address, keys(std::string(kKey)));
    ASSERT_TRUE(with_keys.ok());
    EXPECT_EQ(
        status(with_keys.value(), "/v1/models", {{"authorization", std::string("Bearer ") + kKey}}),
        403u);
    const auto door = HttpDoor::open(address, "");
    ASSERT_TRUE(door.ok());
    for (const char* path :
         {"/metrics", "/health", "/health/live", "/health/ready", "/ping", "/version"})
      EXPECT_EQ(status(door.value(), path, {}), 200u) << path;
    for (const char* path : {"/v1/models", "/v1/completions", "/tokenize", "/health/other"})
      EXPECT_EQ(status(door.value(), path, {}), 403u) << path;
  }
}

TEST_F(HttpDoorTest, one_key_of_the_file_is_needed_and_enough) {
  const auto door = HttpDoor::open(
      "127.0.0.1", keys("# for people\n\n" + std::string(kKey) + "\r\nanother-key-of-22-chars\n"));
  ASSERT_TRUE(door.ok()) << door.status().text();
  const auto with = [&](const std::string& value) {
    return status(door.value(), "/v1/models", {{"authorization", value}});
  };
  EXPECT_EQ(with("Bearer sixteen-bytes-ok"), 200u);
  EXPECT_EQ(with("bEARER another-key-of-22-chars"), 200u);
  for (const char* wrong : {"", "Bearer", "Bearer ", "Bearer sixteen-bytes-o",
                            "Bearer sixteen-bytes-okk", "Basic sixteen-bytes-ok",
                            "sixteen-bytes-ok", "Bearer  sixteen-bytes-ok", "Bearer # for people"})
    EXPECT_EQ(with(wrong), 401u) << wrong;
  EXPECT_EQ(status(door.value(), "/v1/models", {}), 401u);
  EXPECT_EQ(status(door.value(), "/health/ready", {}), 200u);
}

TEST_F(HttpDoorTest, a_file_that_gives_no_key_or_gives_it_to_others_is_refused_by_name) {
  const auto refused = [&](const std::string& path) {
    const auto door = HttpDoor::open("127.0.0.1", path);
    EXPECT_FALSE(door.ok());
    return door.ok() ? "" : door.status().text();
  };
  EXPECT_NE(refused(folder_ + "/nowhere").find("/nowhere"), std::string::npos);
  EXPECT_NE(refused(keys("")).find("expected at least one key"), std::string::npos);
  EXPECT_NE(refused(keys("# none\n\n")).find("expected at least one key"), std::string::npos);
  EXPECT_NE(refused(keys("# a\nshort\n")).find("keys:2: expected a key of 16"), std::string::npos);
  EXPECT_NE(refused(keys("with space in it here\n")).find("keys:1:"), std::string::npos);
  EXPECT_NE(refused(keys(std::string(257, 'k'))).find("keys:1:"), std::string::npos);
  const std::string open = refused(keys(std::string(kKey), 0644));
  EXPECT_NE(open.find("others may read or change it"), std::string::npos) << open;
  EXPECT_EQ(open.find(kKey), std::string::npos) << "a key in a message";
}

TEST_F(HttpDoorTest, pages_of_other_sites_are_kept_out_whatever_name_they_call_this_machine_by) {
  const auto door = HttpDoor::open("127.0.0.1", "");
  ASSERT_TRUE(door.ok());
  const auto with = [&](const std::string& origin, const std::string& host) {
    return status(door.value(), "/v1/completions", {{"host", host}, {"origin", origin}});
  };
  EXPECT_EQ(with("http://127.0.0.1:8000", "127.0.0.1:8000"), 200u);
  EXPECT_EQ(with("http://localhost:8000", "localhost:8000"), 200u);
  EXPECT_EQ(with("http://[::1]:8000", "[::1]:8000"), 200u);
  EXPECT_EQ(with("https://evil.example", "127.0.0.1:8000"), 403u);
  EXPECT_EQ(with("null", "127.0.0.1:8000"), 403u);
  EXPECT_EQ(with("http://127.0.0.1:9000", "127.0.0.1:8000"), 403u);
  // A name that its owner lets point to this machine (DNS rebinding).
  EXPECT_EQ(with("http://evil.example:8000", "evil.example:8000"), 403u);
  EXPECT_EQ(with("http://127.0.0.1.evil.example:8000", "127.0.0.1.evil.example:8000"), 403u);
  EXPECT_EQ(status(door.value(), "/metrics", {{"origin", "https://evil.example"}}), 200u);
  // Browsers send no Origin when such a page reads.
  EXPECT_EQ(status(door.value(), "/v1/models", {{"host", "evil.example:8000"}}), 403u);
  for (const char* host : {"localhost:8000", "localhost", "127.0.0.1:8000", "[::1]:8000", "[::1]"})
    EXPECT_EQ(status(door.value(), "/v1/models", {{"host", host}}), 200u) << host;
  const auto with_keys = HttpDoor::open("127.0.0.1", keys(std::string(kKey)));
  ASSERT_TRUE(with_keys.ok());
  EXPECT_EQ(status(with_keys.value(), "/v1/models",
                   {{"host", "llm.example"}, {"authorization", std::string("Bearer ") + kKey}}),
            200u);
  // The live page behind a proxy.
  const auto from = [&](const std::string& origin) {
    return status(with_keys.value(), "/page/follow/1",
                  {{"host", "llm.example"},
                   {"origin", origin},
                   {"authorization", std::string("Bearer ") + kKey}});
  };
  EXPECT_EQ(from("https://llm.example"), 200u);
  EXPECT_EQ(from("https://evil.example"), 403u);
}

TEST_F(HttpDoorTest, the_page_needs_no_key_but_what_it_shows_does) {
  const auto door = HttpDoor::open("127.0.0.1", keys(std::string(kKey)));
  ASSERT_TRUE(door.ok());
  EXPECT_EQ(status(door.value(), "/", {{"host", "127.0.0.1:8000"}}), 200u);
  EXPECT_EQ(status(door.value(), "/", {{"origin", "https://evil.example"}}), 403u);
  EXPECT_EQ(status(door.value(), "/page/state", {{"host", "127.0.0.1:8000"}}), 401u);
  const auto without = HttpDoor::open("127.0.0.1", "");
  EXPECT_EQ(status(without.value(), "/", {{"host", "evil.example"}}), 403u);
  const auto elsewhere = HttpDoor::open("10.0.0.1", "");
  EXPECT_EQ(status(elsewhere.value(), "/", {}), 403u);
}

TEST_F(HttpDoorTest, other_addresses_need_tls_and_keys_for_the_api) {
  const HttpFields shown{{"authorization", std::string("Bearer ") + kKey}};
  const std::string file = keys(std::string(kKey));
  for (const char* address : {"10.0.0.7", "2001:db8::7"}) {
    const auto both = HttpDoor::open(address, file, true);
    ASSERT_TRUE(both.ok());
    EXPECT_EQ(status(both.value(), "/v1/models", shown), 200u);
    EXPECT_EQ(status(both.value(), "/v2/models/m", shown), 200u);
    EXPECT_EQ(status(both.value(), "/v1/models", {}), 401u);
    EXPECT_EQ(status(HttpDoor::open(address, file).value(), "/v1/models", shown), 403u);
    EXPECT_EQ(status(HttpDoor::open(address, "", true).value(), "/v1/models", shown), 403u);
    EXPECT_EQ(status(HttpDoor::open(address, "").value(), "/v2/health/live", {}), 200u);
  }
}

}  // namespace
}  // namespace specd::host
