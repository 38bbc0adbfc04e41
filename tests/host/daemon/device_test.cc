// The daemon and `devices:`: on a fake CUDA device (tests/device/fake_cuda.h), where there is none,
// and when one fails under it.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "host/daemon/daemon.h"
#include "tests/host/daemon/daemon_rig.h"

namespace specd::host {
namespace {

class DeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    setenv("SPECD_CUDA_LIBRARY", SPECD_FAKE_CUDA, 1);
    unsetenv("SPECD_FAKE_CUDA");
  }
  void TearDown() override {
    unsetenv("SPECD_CUDA_LIBRARY");
    unsetenv("SPECD_FAKE_CUDA");
  }
  static v1::GenerateRequest request(int32_t max_tokens) {
    v1::GenerateRequest r;
    r.set_text("def add(a, b):\n    return a + b\n\ndef sub(a, b):\n");
    r.set_route("lookup");
    r.set_max_tokens(max_tokens);
    r.set_ignore_eos(true);
    return r;
  }
  static std::vector<int32_t> tokens_of(Daemon& daemon) {
    const auto text = daemon.client().generate(request(24), {});
    EXPECT_TRUE(text.ok()) << text.status().text();
    return text.ok() ? text.value().token_ids : std::vector<int32_t>();
  }
  // Exits by itself, with these words.
  static void expect_refused(const std::string& device, const std::string& words) {
    Daemon daemon;
    daemon.write_config("", SPECD_PLUGINS, "devices: [" + device + "]\n");
    daemon.spawn();
    EXPECT_EQ(daemon.wait(), kExitFailed) << daemon.output();
    EXPECT_NE(daemon.output().find("c.yaml:2:"), std::string::npos) << daemon.output();
    EXPECT_NE(daemon.output().find("devices[0]: " + words), std::string::npos) << daemon.output();
  }
};

TEST_F(DeviceTest, one_line_of_yaml_moves_the_models) {
  std::vector<std::vector<int32_t>> texts;
  for (const std::string device : {"cpu", "cuda:0"}) {
    Daemon daemon;
    daemon.write_config("", SPECD_PLUGINS, "devices: [" + device + "]\n");
    ASSERT_TRUE(daemon.start()) << daemon.output();
    EXPECT_NE(daemon.output().find("(" + device + " ("), std::string::npos) << daemon.output();
    texts.push_back(tokens_of(daemon));
    EXPECT_EQ(daemon.client().status().value().device().find(device), 0u);
    EXPECT_EQ(daemon.stop(), kExitOk) << daemon.output();
  }
  EXPECT_EQ(texts[0].size(), 24u);
  EXPECT_EQ(texts[0], texts[1]);
}

TEST_F(DeviceTest, what_cannot_be_used_is_named_and_the_daemon_does_not_start) {
  setenv("SPECD_FAKE_CUDA", "no_driver", 1);
  expect_refused("cuda:0", "cuda:0: no CUDA driver is installed");
  setenv("SPECD_FAKE_CUDA", "old_gpu", 1);
  expect_refused("cuda:0", "cuda:0: Fake GPU has compute capability 6.1, needed is 8.0");
  unsetenv("SPECD_FAKE_CUDA");
  expect_refused("cuda:3", "cuda:3: this machine has 1 CUDA devices");
  setenv("SPECD_CUDA_LIBRARY", "/nonexistent/libspecd_cuda.so", 1);
  expect_refused("cuda:0",
                 "cuda:0: this installation has no CUDA library (looked for /nonexistent/");
  setenv("SPECD_CUDA_LIBRARY", SPECD_PLUGINS "/verifier_match/verifier_match.so", 1);
  expect_refused("cuda:0", "cuda:0: " SPECD_PLUGINS
                           "/verifier_match/verifier_match.so exports no specd_cuda_library");
  setenv("SPECD_CUDA_LIBRARY", SPECD_BINARY, 1);
  expect_refused("cuda:0", "cuda:0: " SPECD_BINARY " cannot be loaded: ");
}

// The real library, where it is built, on a machine that need not have a driver.
TEST_F(DeviceTest, auto_starts_on_the_cpu_and_says_why) {
  unsetenv("SPECD_CUDA_LIBRARY");
  Daemon daemon;
  daemon.write_config("", SPECD_PLUGINS, "devices: [auto]\n");
  ASSERT_TRUE(daemon.start()) << daemon.output();
  const std::string output = daemon.output();
  if (output.find("(cuda:0 (") != std::string::npos) GTEST_SKIP() << "this machine has a GPU";
  EXPECT_NE(output.find("devices: auto: models run on the CPU: cuda:0: "), std::string::npos)
      << output;
  EXPECT_EQ(tokens_of(daemon).size(), 24u);
  EXPECT_EQ(daemon.stop(), kExitOk) << daemon.output();
}

TEST_F(DeviceTest, a_device_that_fails_ends_requests_with_the_reason_and_then_the_daemon) {
  setenv("SPECD_FAKE_CUDA", "fail_after=120", 1);
  Daemon daemon;
  daemon.write_config("", SPECD_PLUGINS, "devices: [cuda:0]\n");
  ASSERT_TRUE(daemon.start()) << daemon.output();
  Client client = daemon.client();
  Status status;
  for (int i = 0; i < 50 && status.ok(); ++i) {
    status = client.generate(request(48), {}).status();
  }
  EXPECT_EQ(status.code(), Code::kUnavailable) << status.text();
  EXPECT_NE(status.text().find("no step can run any more: cuda:0 (Fake GPU): unspecified launch"),
            std::string::npos)
      << status.text();
  EXPECT_EQ(daemon.wait(), kExitFailed) << daemon.output();
  EXPECT_NE(daemon.output().find("nothing can be computed any more"), std::string::npos)
      << daemon.output();
}

}  // namespace
}  // namespace specd::host
