// `specd check` tells what `specd serve` would refuse, and where it stands.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "tests/host/daemon/daemon_rig.h"

namespace specd::host {
namespace {

// The exit code, and what was printed.
std::pair<int, std::string> check(const Daemon& daemon) {
  return run_command(std::string(SPECD_BINARY) + " check --config " +
                     (daemon.folder() / "c.yaml").string());
}

TEST(Check, accepts_what_serve_would_load) {
  Daemon daemon;
  daemon.write_config();
  const auto [code, text] = check(daemon);
  EXPECT_EQ(code, 0) << text;
  EXPECT_NE(text.find("weights of pico (bf16, 16.00 bits a weight)  "), std::string::npos) << text;
}

TEST(Check, refuses_a_wrong_file_with_its_place) {
  Daemon daemon;
  daemon.write_config("  bad:\n    drafter: {plugin: specd.drafter.prompt_lookup}\n");
  const auto [code, text] = check(daemon);
  EXPECT_EQ(code, 3);
  EXPECT_NE(text.find("c.yaml:11:5: routes.bad.verifier: missing"), std::string::npos) << text;
}

TEST(Check, tells_the_place_of_what_only_a_plugin_knows) {
  const std::pair<std::string, const char*> table[] = {
      {"    drafter: {plugin: specd.drafter.prompt_lokup}\n    verifier: {plugin: specd.verifier.match}\n",
       "c.yaml:11:15: routes.bad.drafter.plugin: plugin 'specd.drafter.prompt_lokup' is not there; did "
       "you mean 'specd.drafter.prompt_lookup'?"},
      {"    drafter:\n      plugin: specd.drafter.prompt_lookup\n      config:\n        max_ngam: 3\n"
       "    verifier: {plugin: specd.verifier.match}\n",
       "c.yaml:14:9: routes.bad.drafter.config.max_ngam: "},
  };
  for (const auto& [lines, expected] : table) {
    Daemon daemon;
    daemon.write_config("  bad:\n" + lines);
    const auto [code, text] = check(daemon);
    EXPECT_EQ(code, 3) << text;
    EXPECT_NE(text.find(expected), std::string::npos) << text;
  }
}

TEST(Check, refuses_a_cache_that_holds_no_page) {
  Daemon daemon;
  daemon.write_config();
  const auto [code, text] =
      run_command(std::string(SPECD_BINARY) + " check --config " +
                  (daemon.folder() / "c.yaml").string() + " --set model.kv.bytes_max=10");
  EXPECT_EQ(code, 3) << text;
  EXPECT_NE(text.find("--set model.kv.bytes_max: 10 bytes hold no page; one takes 65536"),
            std::string::npos)
      << text;
}

TEST(Check, refuses_a_socket_whose_name_something_else_has) {
  Daemon daemon;
  daemon.write_config();
  fs::create_directory(daemon.folder() / "specd.sock");
  const auto [code, text] = check(daemon);
  EXPECT_EQ(code, 3) << text;
  EXPECT_NE(text.find("c.yaml:1:9: listen: expected the path of a socket or of nothing yet"),
            std::string::npos)
      << text;
}

TEST(Check, refuses_a_damaged_model) {
  Daemon daemon;
  daemon.write_config();
  const fs::path model = daemon.folder() / "model";
  fs::copy(fs::path(SPECD_SOURCE_DIR) / "configs/zoo/pico-target", model);
  fs::resize_file(model / "model.safetensors", 1000);
  std::string config = read_file(daemon.folder() / "c.yaml");
  const std::string zoo = std::string(SPECD_SOURCE_DIR) + "/configs/zoo/pico-target";
  config.replace(config.find(zoo), zoo.size(), "model");
  std::ofstream(daemon.folder() / "c.yaml") << config;
  const auto [code, text] = check(daemon);
  EXPECT_EQ(code, 3) << text;
  EXPECT_NE(text.find("c.yaml:3:21: model.path: "), std::string::npos) << text;
  EXPECT_NE(text.find("model.safetensors"), std::string::npos) << text;
}

}  // namespace
}  // namespace specd::host
