#include "core/plugin/bundle/registry.h"

#include <elf.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <string>
#include <thread>

#include "core/base/last_words.h"
#include "core/base/sanitizer.h"
#include "core/plugin/instance/tensor.h"
#include "tests/core/plugin/bundle_fixture.h"
#include "tests/entries_of.h"

namespace specd {
namespace {

namespace fs = std::filesystem;

class Registry : public testing::Test {
 protected:
  // The bundle in `name` is refused at discovery with these words in its reason.
  void expect_refused(const std::string& name, const std::vector<std::string>& words) {
    auto registry = tree_.open(host_);
    ASSERT_TRUE(registry.ok()) << registry.status().text();
    for (const BundleInfo& info : registry.value()->list()) {
      if (info.directory != tree_.bundle(name)) continue;
      EXPECT_EQ(info.state, PluginState::kRefused);
      for (const std::string& word : words) {
        EXPECT_NE(info.reason.find(word), std::string::npos) << info.reason << "\nlacks " << word;
      }
      return;
    }
    FAIL() << name << " was not found";
  }

  // Discovery takes the bundle, loading refuses it with these words, and says so in list().
  void expect_load_refused(const std::string& library, const std::vector<std::string>& words) {
    tree_.add(library, read_bytes(fixture(library)));
    expect_bundle_load_refused(words);
  }
  void expect_bundle_load_refused(const std::vector<std::string>& words) {
    auto registry = tree_.open(host_);
    ASSERT_TRUE(registry.ok()) << registry.status().text();
    ASSERT_EQ(registry.value()->list()[0].state, PluginState::kDiscovered)
        << registry.value()->list()[0].reason;
    std::string first;
    for (int attempt = 0; attempt < 2; ++attempt) {
      auto made = make(*registry.value());
      ASSERT_FALSE(made.ok());
      const std::string& text = made.status().text();
      for (const std::string& word : words) {
        EXPECT_NE(text.find(word), std::string::npos) << text << "\nlacks " << word;
      }
      if (attempt == 0) first = text;
      EXPECT_EQ(text, first) << "remembered";
    }
    EXPECT_EQ(registry.value()->list()[0].state, PluginState::kRefused);
    EXPECT_NE(registry.value()->list()[0].reason, "");
  }

  Result<std::unique_ptr<Drafter>> make(PluginRegistry& registry,
                                        const std::string& config = "{}") {
    return registry.make_drafter("org.example.fixture", "", Json::parse(config), target_, "d");
  }

  TestServices services_;
  const specd_host* host_ = make_host(&services_);
  specd_target_info target_ = test_target();
  BundleTree tree_;
  const std::string good_ = read_bytes(fixture("good"));
};

TEST_F(Registry, good_bundle_is_listed_without_loading) {
  tree_.add("a", good_);
  auto registry = tree_.open(host_);
  ASSERT_TRUE(registry.ok()) << registry.status().text();
  const auto list = registry.value()->list();
  ASSERT_EQ(list.size(), 1u);
  EXPECT_EQ(list[0].state, PluginState::kDiscovered) << list[0].reason;
  EXPECT_EQ(list[0].id, "org.example.fixture");
  EXPECT_EQ(list[0].version, "1.0.0");
  EXPECT_EQ(list[0].license, "Apache-2.0");
  EXPECT_EQ(list[0].sha256, to_hex(sha256(good_)));
  ASSERT_EQ(list[0].factories.size(), 2u);
  EXPECT_EQ(list[0].factories[1].kind, "verifier");
  EXPECT_TRUE(fs::is_empty(tree_.cache())) << "nothing is copied before first use";
}

TEST_F(Registry, rescan_sees_what_came_what_changed_and_what_has_gone) {
  auto opened = tree_.open(host_);
  ASSERT_TRUE(opened.ok()) << opened.status().text();
  PluginRegistry& registry = *opened.value();
  EXPECT_TRUE(registry.list().empty());
  EXPECT_FALSE(registry.find("org.example.fixture").has_value());
  tree_.add("a", good_);
  EXPECT_TRUE(registry.list().empty()) << "not before rescan()";
  ASSERT_TRUE(registry.rescan().ok());
  ASSERT_EQ(registry.list().size(), 1u);
  auto old = make(registry);
  ASSERT_TRUE(old.ok()) << old.status().text();
  // Nothing changed: it stays loaded.
  ASSERT_TRUE(registry.rescan().ok());
  EXPECT_EQ(registry.list()[0].state, PluginState::kLoaded);
  const std::string content = registry.find("org.example.fixture")->content_sha256;
  // Other bytes: another version, to be loaded anew; the old instance lives on.
  const std::string newer = read_bytes(fixture("newer"));
  tree_.add("a", newer, BundleTree::manifest(newer, "2.0.0"));
  ASSERT_TRUE(registry.rescan().ok());
  EXPECT_EQ(registry.list()[0].state, PluginState::kDiscovered);
  EXPECT_EQ(registry.list()[0].version, "2.0.0");
  EXPECT_EQ(registry.list()[0].sha256, to_hex(sha256(newer)));
  EXPECT_NE(registry.list()[0].content_sha256, content);
  auto fresh = make(registry);
  ASSERT_TRUE(fresh.ok()) << fresh.status().text();
  specd_drafter_grant grant{};
  grant.struct_size = sizeof(grant);
  grant.max_nodes = grant.max_depth = 4;
  grant.memory_bytes_max = 1024;
  EXPECT_TRUE(old.value()->activate(grant).ok());
  EXPECT_TRUE(fresh.value()->activate(grant).ok());
  // A file of the bundle changed and its manifest did not, as while it is being copied.
  write_bytes(tree_.bundle("a") + "/plugin.so", good_, 0755);
  ASSERT_TRUE(registry.rescan().ok());
  EXPECT_EQ(registry.list()[0].state, PluginState::kRefused);
  EXPECT_NE(registry.list()[0].reason.find("hash mismatch"), std::string::npos);
  EXPECT_FALSE(make(registry).ok());
  tree_.add("a", good_);
  ASSERT_TRUE(registry.rescan().ok());
  EXPECT_TRUE(make(registry).ok()) << "the first version, whose code is there";
  EXPECT_EQ(registry.find("org.example.fixture")->content_sha256, content);
  fs::remove_all(tree_.bundle("a"));
  ASSERT_TRUE(registry.rescan().ok());
  EXPECT_TRUE(registry.list().empty());
  EXPECT_FALSE(make(registry).ok());
  // A directory that has gone is an error and leaves the list.
  tree_.add("b", good_);
  ASSERT_TRUE(registry.rescan().ok());
  fs::rename(tree_.plugins(), tree_.plugins() + ".away");
  EXPECT_FALSE(registry.rescan().ok());
  EXPECT_EQ(registry.list().size(), 1u);
  fs::rename(tree_.plugins() + ".away", tree_.plugins());
}

TEST_F(Registry, what_failed_is_tried_again_after_it_was_put_right) {
  tree_.add("a", good_);
  tree_.add("b", good_);
  auto opened = tree_.open(host_);
  ASSERT_TRUE(opened.ok()) << opened.status().text();
  PluginRegistry& registry = *opened.value();
  ASSERT_EQ(registry.list()[1].state, PluginState::kRefused) << "the id is taken";
  fs::remove_all(tree_.bundle("a"));
  ASSERT_TRUE(registry.rescan().ok());
  ASSERT_EQ(registry.list().size(), 1u);
  EXPECT_EQ(registry.list()[0].state, PluginState::kDiscovered);
  EXPECT_EQ(registry.list()[0].reason, "");
  // The cache cannot be written: loading fails, which stays in the list, and works later.
  const std::string bytes = good_ + std::string(1, '\0');  // content that no test has loaded yet
  tree_.add("b", bytes);
  ASSERT_TRUE(registry.rescan().ok());
  fs::rename(tree_.cache(), tree_.cache() + ".away");
  write_bytes(tree_.cache(), "a file");
  EXPECT_FALSE(make(registry).ok());
  EXPECT_EQ(registry.list()[0].state, PluginState::kRefused);
  ASSERT_TRUE(registry.rescan().ok());
  EXPECT_EQ(registry.list()[0].state, PluginState::kRefused) << "still true";
  EXPECT_NE(registry.list()[0].reason, "");
  fs::remove(tree_.cache());
  fs::rename(tree_.cache() + ".away", tree_.cache());
  EXPECT_TRUE(make(registry).ok());
  EXPECT_EQ(registry.list()[0].state, PluginState::kLoaded);
  EXPECT_EQ(registry.list()[0].reason, "");
}

TEST_F(Registry, directory_that_is_absent_is_an_error) {
  auto registry = PluginRegistry::open({{tree_.bundle("absent")}, tree_.cache()}, host_);
  ASSERT_FALSE(registry.ok());
  EXPECT_NE(registry.status().text().find("absent"), std::string::npos);
}

TEST_F(Registry, cache_directory_must_be_private) {
  fs::create_directory(tree_.cache());
  chmod(tree_.cache().c_str(), 0750);
  auto registry = tree_.open(host_);
  ASSERT_FALSE(registry.ok());
  EXPECT_NE(registry.status().text().find("0700"), std::string::npos) << registry.status().text();
}

TEST_F(Registry, build_folders_and_files_are_no_bundles) {
  fs::create_directories(tree_.bundle("CMakeFiles/x.dir"));
  write_bytes(tree_.plugins() + "/README.md", "text");
  fs::create_directory(tree_.bundle(".hidden"));
  write_bytes(tree_.bundle(".hidden") + "/plugin.json", "{}");
  auto registry = tree_.open(host_);
  ASSERT_TRUE(registry.ok());
  EXPECT_TRUE(registry.value()->list().empty());
}

TEST_F(Registry, manifest_that_is_missing_is_refused) {
  fs::remove(tree_.add("a", good_) + "/plugin.json");
  expect_refused("a", {"manifest", "plugin.json", "is missing", "specd_add_plugin"});
}

TEST_F(Registry, library_that_is_missing_is_refused) {
  fs::remove(tree_.add("a", good_) + "/plugin.so");
  expect_refused("a", {"/a/plugin.so' does not exist"});
}

TEST_F(Registry, manifest_is_read_strictly) {
  const auto expect = [this](const std::function<void(Json&)>& edit,
                             const std::vector<std::string>& words) {
    Json manifest = BundleTree::manifest(good_);
    edit(manifest);
    tree_.add("a", good_, manifest);
    expect_refused("a", words);
  };
  expect([](Json& m) { m["extra"] = 1; }, {"plugin.json", "unknown key 'extra'", "a manifest has"});
  expect([](Json& m) { m["manifest"] = 2; }, {"key 'manifest': found format 2, this host reads 1"});
  expect([](Json& m) { m.erase("id"); }, {"id"});
  expect([](Json& m) { m["id"] = "a b"; }, {"key 'id' is 'a b'"});
  expect([](Json& m) { m["id"] = std::string(300, 'x'); }, {"key 'id'", "1 to 256"});
  expect([](Json& m) { m["library"] = "../x.so"; }, {"library '../x.so'", "plain file name"});
  expect([](Json& m) { m["library"] = "/lib/x.so"; }, {"library '/lib/x.so'", "plain file name"});
  expect([](Json& m) { m["library"] = ".."; }, {"library '..'", "plain file name"});
  expect([](Json& m) { m["library"] = "other.so"; }, {"library 'other.so' has no hash"});
  expect([](Json& m) { m["files"]["../y"] = m["files"]["plugin.so"]; }, {"file '../y'", "plain"});
  expect([](Json& m) { m["files"]["plugin.so"] = "md5:00"; }, {"expected 'sha256:'", "'md5:00'"});
  expect([](Json& m) { m["factories"] = Json::array(); }, {"'factories' needs a list"});
  expect([](Json& m) { m["factories"][0]["kind"] = "driver"; },
         {"'driver', expected 'drafter' or 'verifier'"});
  expect([](Json& m) { m["factories"][1]["id"] = "next"; }, {"factory 'next' is there twice"});
  expect([](Json& m) { m["factories"][1]["x"] = 1; }, {"unknown key 'x'"});
  expect([](Json& m) { m["abi"] = "v0-00"; },
         {"expected abi " SPECD_ABI_LAYOUT, "found 'v0-00'", "rebuild"});
}

TEST_F(Registry, manifest_that_is_garbled_or_huge_is_refused) {
  const std::string path = tree_.add("a", good_) + "/plugin.json";
  write_bytes(path, "{\"manifest\": 1,");
  expect_refused("a", {"/a/plugin.json"});
  write_bytes(path, "\xff\xfe{}");
  expect_refused("a", {"/a/plugin.json"});
  write_bytes(path, "[1]");
  expect_refused("a", {"expected an object"});
  write_bytes(path, std::string(70000, ' '));
  expect_refused("a", {"70000 bytes, expected at most 65536"});
}

TEST_F(Registry, what_is_not_an_elf_file_of_this_machine_is_refused) {
  const auto expect = [this](const std::string& bytes, const std::vector<std::string>& words) {
    tree_.add("a", bytes);
    expect_refused("a", words);
  };
  expect("#!/bin/sh\n", {"/a/plugin.so'", "not an ELF file"});
  expect("", {"not an ELF file"});
  expect(good_.substr(0, 40), {"truncated ELF file: 40 bytes"});
  const auto with = [this](size_t at, char value) {
    std::string bytes = good_;
    bytes[at] = value;
    return bytes;
  };
  expect(with(EI_CLASS, ELFCLASS32), {"wrong ELF class: expected 64 bits, found 32 bits"});
  expect(with(EI_DATA, ELFDATA2MSB), {"wrong byte order"});
  expect(with(offsetof(Elf64_Ehdr, e_machine), static_cast<char>(EM_RISCV)),
         {"wrong architecture: expected", "found RISC-V"});
  expect(with(offsetof(Elf64_Ehdr, e_type), ET_EXEC), {"not a shared object"});
}

TEST_F(Registry, other_bytes_than_the_manifest_says_are_refused) {
  tree_.add("a", good_ + "x", BundleTree::manifest(good_));
  expect_refused("a", {"/a/plugin.so'", "hash mismatch: expected sha256:" + to_hex(sha256(good_)),
                       "found sha256:" + to_hex(sha256(good_ + "x"))});
}

TEST_F(Registry, file_changed_after_discovery_is_refused) {
  tree_.add("a", good_);
  auto registry = tree_.open(host_);
  ASSERT_TRUE(registry.ok());
  write_bytes(tree_.bundle("a") + "/plugin.so", good_ + "x", 0755);
  auto made = make(*registry.value());
  ASSERT_FALSE(made.ok());
  EXPECT_NE(made.status().text().find("hash mismatch"), std::string::npos) << made.status().text();
  // The half-made copy is gone.
  EXPECT_TRUE(fs::is_empty(tree_.cache()));
}

TEST_F(Registry, what_others_can_change_is_refused) {
  const std::string bundle = tree_.add("a", good_);
  const auto expect = [&](const std::string& path, mode_t bad, mode_t good, const char* who) {
    chmod(path.c_str(), bad);
    expect_refused("a", {"'" + path + "' is writable by " + who, "chmod go-w"});
    chmod(path.c_str(), good);
  };
  expect(bundle, 0777, 0755, "others (mode 0777)");
  expect(bundle, 01777, 0755, "others (mode 1777)");
  expect(bundle, 0775, 0755, "its group (mode 0775)");
  expect(bundle + "/plugin.json", 0664, 0644, "its group");
  expect(bundle + "/plugin.so", 0757, 0755, "others");
  expect(tree_.plugins(), 0777, 0755, "others");
}

TEST_F(Registry, what_belongs_to_another_user_is_refused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give files away";
  const std::string bundle = tree_.add("a", good_);
  ASSERT_EQ(chown((bundle + "/plugin.so").c_str(), 12345, 0), 0);
  expect_refused("a", {"/a/plugin.so' is owned by uid 12345, expected root or uid 0"});
}

TEST_F(Registry, symbolic_links_are_refused) {
  const std::string bundle = tree_.add("a", good_);
  fs::rename(bundle + "/plugin.so", bundle + "/real.so");
  fs::create_symlink("real.so", bundle + "/plugin.so");
  expect_refused("a", {"/a/plugin.so' is a symbolic link", "use '" + bundle + "/real.so'"});
  fs::create_directory_symlink(bundle, tree_.bundle("b"));
  expect_refused("b", {"/b' is a symbolic link"});
}

TEST_F(Registry, what_is_no_file_is_refused_and_nobody_waits_for_it) {
  const std::string bundle = tree_.add("a", good_);
  for (const std::string name : {"plugin.so", "plugin.json"}) {
    const std::string path = bundle + "/" + name;
    fs::rename(path, bundle + "/away");
    ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
    expect_refused("a", {"/a/" + name + "'", "regular file"});
    fs::remove(path);
    fs::create_directory(path);
    chmod(path.c_str(), 0755);
    expect_refused("a", {"/a/" + name + "'"});
    fs::remove(path);
    fs::create_symlink("/dev/zero", path);
    expect_refused("a", {"/a/" + name + "' is a symbolic link"});
    fs::remove(path);
    fs::rename(bundle + "/away", path);
  }
  auto registry = tree_.open(host_);
  ASSERT_TRUE(registry.ok());
  EXPECT_TRUE(make(*registry.value()).ok());
}

TEST_F(Registry, second_bundle_of_a_version_is_refused_and_the_first_works) {
  tree_.add("a", good_);
  tree_.add("b", good_);
  expect_refused("b", {"plugin id 'org.example.fixture' version '1.0.0'", "already taken by", "/a'",
                       "a version of its own"});
  auto registry = tree_.open(host_);
  ASSERT_TRUE(registry.ok());
  EXPECT_TRUE(make(*registry.value()).ok());
}

TEST_F(Registry, versions_of_a_plugin_are_there_side_by_side) {
  const std::string id = "org.example.fixture", newer = read_bytes(fixture("newer"));
  tree_.add("new", newer, BundleTree::manifest(newer, "2.0.0"));
  tree_.add("old", good_, BundleTree::manifest(good_, "1.0.0"));
  auto opened = tree_.open(host_);
  ASSERT_TRUE(opened.ok()) << opened.status().text();
  PluginRegistry& registry = *opened.value();
  const auto version_of = [&](const std::string& asked) {
    const auto found = registry.find(asked);
    return found.has_value() ? found->version + " " + found->asked : "none";
  };
  EXPECT_EQ(version_of(id), "2.0.0 " + id) << "the newest";
  EXPECT_EQ(version_of(id + "@1.0.0"), "1.0.0 " + id + "@1.0.0");
  EXPECT_EQ(version_of(id + "@1.0"), "none");
  EXPECT_EQ(version_of("@1.0.0"), "none");
  EXPECT_TRUE(registry.load(id + "@1.0.0").ok());
  EXPECT_EQ(registry.find(id + "@1.0.0")->state, PluginState::kLoaded);
  EXPECT_EQ(registry.find(id)->state, PluginState::kDiscovered);
  EXPECT_TRUE(registry.load(id).ok());
  const Status none = registry.load(id + "@3.0.0");
  EXPECT_EQ(none.code(), Code::kNotFound);
  EXPECT_NE(none.text().find("its versions are '2.0.0', '1.0.0'"), std::string::npos)
      << none.text();
  // A version that is refused does not hide the others.
  EXPECT_TRUE(registry.retire(id + "@2.0.0").value());
  EXPECT_EQ(version_of(id), "1.0.0 " + id);
  EXPECT_TRUE(registry.load(id + "@2.0.0").ok());
  EXPECT_EQ(version_of(id), "2.0.0 " + id);
  registry.set_aside(id + "@2.0.0", Status(Code::kDeadlineExceeded, "it hangs"));
  EXPECT_FALSE(registry.load(id + "@2.0.0").ok()) << "not undone";
  EXPECT_FALSE(registry.retire(id + "@2.0.0").ok());
  EXPECT_FALSE(registry.load(id + "@2.0.0").ok()) << "nor in two steps";
}

TEST_F(Registry, bad_bundle_does_not_hide_the_good_one) {
  tree_.add("a", "junk");
  tree_.add("b", good_);
  auto registry = tree_.open(host_);
  ASSERT_TRUE(registry.ok());
  auto made = make(*registry.value());
  EXPECT_TRUE(made.ok()) << made.status().text();
}

TEST_F(Registry, plugin_that_is_absent_or_refused_says_so) {
  Json manifest = BundleTree::manifest(good_);
  manifest["abi"] = "v0-00";
  tree_.add("a", good_, manifest);
  auto registry = tree_.open(host_);
  ASSERT_TRUE(registry.ok());
  auto made = make(*registry.value());
  ASSERT_FALSE(made.ok());
  EXPECT_NE(made.status().text().find("plugin 'org.example.fixture' was refused: "),
            std::string::npos);
  made = registry.value()->make_drafter("org.example.absent", "", Json::object(), target_, "d");
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().code(), Code::kNotFound);
  EXPECT_NE(made.status().text().find("found 'org.example.fixture'"), std::string::npos);
}

// ---- loading ---------------------------------------------------------------------------------

TEST_F(Registry, a_plugin_that_is_not_there_may_be_the_one_that_was_refused) {
  tree_.add("a", good_);
  chmod(tree_.bundle("a").c_str(), 0777);
  fs::create_symlink("/nowhere", tree_.bundle("link"));
  auto registry = tree_.open(host_);
  ASSERT_TRUE(registry.ok());
  ASSERT_EQ(registry.value()->list().size(), 2u);
  for (const BundleInfo& each : registry.value()->list())
    EXPECT_EQ(each.state, PluginState::kRefused);
  EXPECT_NE(registry.value()->list()[1].reason.find("is a symbolic link"), std::string::npos);
  const auto made = make(*registry.value());
  ASSERT_FALSE(made.ok());
  const std::string text = made.status().text();
  EXPECT_NE(text.find("is not there; no usable bundle was found; "), std::string::npos) << text;
  EXPECT_NE(text.find("was refused: "), std::string::npos) << text;
  EXPECT_NE(text.find("is writable by others"), std::string::npos) << text;
  EXPECT_TRUE(text.ends_with("; and 1 more")) << text;
}

TEST_F(Registry, truncated_library_with_a_matching_hash_is_refused_before_it_is_mapped) {
  tree_.add("a", good_.substr(0, 4096 + 100));
  expect_bundle_load_refused({"/a/plugin.so'", "damaged ELF file: truncated"});
}

TEST_F(Registry, library_without_the_entry_is_refused) {
  expect_load_refused("no_entry", {"expected exactly one exported symbol, 'specd_plugin_entry_v0'",
                                   "found 'specd_plugin_entry_v9'"});
}

TEST_F(Registry, library_with_another_export_is_refused) {
  expect_load_refused("two_exports",
                      {"expected exactly one exported symbol", "'specd_test_second_export'"});
}

TEST_F(Registry, library_that_asks_for_an_executable_stack_is_refused) {
  expect_load_refused("executable_stack", {"asks for an executable stack", "noexecstack"});
}

TEST_F(Registry, library_whose_entry_is_chosen_by_a_resolver_is_refused) {
  expect_load_refused("ifunc_entry", {"'specd_plugin_entry_v0' is not a plain function"});
}

#if !SPECD_HAS_SANITIZER
TEST_F(Registry, library_that_needs_the_runtime_of_a_sanitizer_is_refused) {
  expect_load_refused("sanitized", {"built with a sanitizer", "__asan_init"});
}
#endif

TEST_F(Registry, table_without_a_list_of_factories_is_refused) {
  expect_load_refused("null_factories", {"its list of factories is null"});
}

TEST_F(Registry, copies_that_nobody_loaded_for_a_month_are_removed_from_the_cache) {
  tree_.add("a", good_);
  ASSERT_TRUE(tree_.open(host_).ok());
  const std::string hash(64, 'a');
  const auto put = [&](const std::string& name, int days) {
    const std::filesystem::path path = std::filesystem::path(tree_.cache()) / name;
    std::ofstream(path) << "x";
    std::filesystem::last_write_time(
        path, std::filesystem::file_time_type::clock::now() - std::chrono::hours(24 * days));
  };
  put(hash + ".so", 40);
  put("." + hash + ".123", 40);
  put(std::string(64, 'b') + ".so", 20);
  put("notes.txt", 400);
  ASSERT_TRUE(tree_.open(host_).ok());
  const auto has = [&](const std::string& name) {
    return std::filesystem::exists(std::filesystem::path(tree_.cache()) / name);
  };
  EXPECT_FALSE(has(hash + ".so"));
  EXPECT_FALSE(has("." + hash + ".123"));
  EXPECT_TRUE(has(std::string(64, 'b') + ".so"));
  EXPECT_TRUE(has("notes.txt"));
}

TEST_F(Registry, cache_directory_that_was_removed_is_made_again) {
  tree_.add("a", good_);
  auto registry = tree_.open(host_);
  ASSERT_TRUE(registry.ok());
  std::filesystem::remove_all(tree_.cache());
  const auto made = make(*registry.value());
  EXPECT_TRUE(made.ok()) << made.status().text();
}

TEST_F(Registry, table_of_another_layout_is_refused) {
  expect_load_refused("other_layout", {"expected layout " SPECD_ABI_LAYOUT,
                                       "found 'v0-0123456789abcdef'", "rebuild"});
}

TEST_F(Registry, entry_without_a_table_is_refused) {
  expect_load_refused("no_table", {"the entry stored no table"});
}

TEST_F(Registry, table_of_another_size_is_refused) {
  expect_load_refused("struct_size",
                      {"struct_size", "expected " + std::to_string(sizeof(specd_plugin))});
}

TEST_F(Registry, api_with_a_null_function_is_refused) {
  expect_load_refused("null_function", {"factory 'next': function 'propose' is null"});
}

TEST_F(Registry, failing_init_is_refused_with_its_report_and_not_run_again) {
  expect_load_refused("init_fails", {"init() returned SPECD_E_UNSUPPORTED (2): no device here"});
}

TEST_F(Registry, library_that_needs_an_absent_library_is_refused_in_the_linkers_words) {
  expect_load_refused("needs_absent", {"the dynamic linker refused it", "libspecd_absent.so",
                                       "cannot open shared object file"});
}

// Its symbol table has the entry, and the filter in front of the hash table says no.
TEST_F(Registry, library_whose_entry_the_linker_does_not_find_is_refused) {
  std::string bytes = good_;
  Elf64_Ehdr header;
  std::memcpy(&header, bytes.data(), sizeof header);
  for (size_t i = 0; i < header.e_shnum; ++i) {
    Elf64_Shdr section;
    std::memcpy(&section, bytes.data() + header.e_shoff + i * sizeof section, sizeof section);
    if (section.sh_type != SHT_GNU_HASH) continue;
    uint32_t n_words;
    std::memcpy(&n_words, bytes.data() + section.sh_offset + 8, sizeof n_words);
    std::memset(bytes.data() + section.sh_offset + 16, 0, n_words * sizeof(uint64_t));
  }
  ASSERT_NE(bytes, good_);
  tree_.add("a", bytes);
  expect_bundle_load_refused(
      {"/a/plugin.so'", "the dynamic linker finds no symbol 'specd_plugin_"});
}

TEST_F(Registry, library_with_an_undefined_symbol_is_refused_at_once) {
  expect_load_refused("undefined", {"undefined symbol: specd_test_symbol_that_nobody_defines"});
}

// An exception that leaves dlopen() leaves the linker locked: the process ends, and says which
// library it was.
TEST_F(Registry, constructor_that_throws_or_exits_ends_the_process_with_the_name_of_the_library) {
  const auto load = [this](const char* name) {
    install_last_words();
    tree_.add("a", read_bytes(fixture(name)));
    auto registry = tree_.open(host_);
    if (!registry.ok()) _exit(70);
    const auto made = make(*registry.value());
    _exit(71);
  };
  const std::string who = " in plugin org.example.fixture, version .*, in a constructor";
  constexpr int kStatus = SPECD_TSAN ? 66 : 1;  // TSan's own, for an end inside of dlopen()
  EXPECT_EXIT(load("exits"), testing::ExitedWithCode(kStatus), "exit\\(\\) was called" + who);
  EXPECT_EXIT(load("throws"), testing::KilledBySignal(SIGABRT),
              "an exception that nothing catches" + who);
}

TEST_F(Registry, constructor_that_sleeps_is_waited_for) {
  tree_.add("a", read_bytes(fixture("sleeps")));
  auto registry = tree_.open(host_);
  ASSERT_TRUE(registry.ok());
  const auto made = make(*registry.value());
  EXPECT_TRUE(made.ok()) << made.status().text();
}

TEST_F(Registry, constructor_that_returns_late_is_the_last_code_that_runs) {
  tree_.add("sleeps", read_bytes(fixture("sleeps")) + "late");
  auto registry = tree_.open(host_);
  ASSERT_TRUE(registry.ok()) << registry.status().text();
  std::atomic<bool> is_late{false};
  std::thread clock([&is_late] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    is_late = true;
  });
  const auto late = registry.value()->make_drafter("org.example.fixture", "", Json::object(),
                                                   target_, "d", is_late);
  clock.join();
  ASSERT_FALSE(late.ok()) << "the entry, init(), describe() and create() were called";
  EXPECT_EQ(late.status().code(), Code::kDeadlineExceeded) << late.status().text();
  const auto next = make(*registry.value());
  EXPECT_TRUE(next.ok()) << next.status().text();
}

TEST_F(Registry, manifest_that_differs_from_the_library_is_refused) {
  const auto expect = [this](const std::function<void(Json&)>& edit,
                             const std::vector<std::string>& words) {
    Json manifest = BundleTree::manifest(good_);
    edit(manifest);
    tree_.add("a", good_, manifest);
    auto registry = tree_.open(host_);
    ASSERT_TRUE(registry.ok());
    auto made = registry.value()->make_drafter(manifest["id"].get<std::string>(), "",
                                               Json::object(), target_, "d");
    ASSERT_FALSE(made.ok());
    for (const std::string& word : words) {
      EXPECT_NE(made.status().text().find(word), std::string::npos) << made.status().text();
    }
  };
  expect([](Json& m) { m["id"] = "org.example.other"; },
         {"disagree: id: plugin.json says 'org.example.other', the library 'org.example.fixture'"});
  expect([](Json& m) { m["version"] = "1.0.1"; }, {"version: plugin.json says '1.0.1'"});
  expect([](Json& m) { m["license"] = "MIT"; }, {"license: plugin.json says 'MIT'"});
  expect([](Json& m) { m["factories"].erase(1); }, {"number of factories"});
  expect([](Json& m) { m["factories"][0]["id"] = "nxt"; }, {"factory 'nxt'"});
  expect([](Json& m) { m["factories"][1]["kind"] = "drafter"; },
         {"kind of factory 'none': plugin.json says drafter, the library verifier"});
}

TEST_F(Registry, good_bundle_loads_from_the_private_copy) {
  tree_.add("a", good_);
  auto registry = tree_.open(host_);
  ASSERT_TRUE(registry.ok());
  auto drafter = make(*registry.value());
  ASSERT_TRUE(drafter.ok()) << drafter.status().text();
  EXPECT_EQ(registry.value()->list()[0].state, PluginState::kLoaded);
  const std::string copy = tree_.cache() + "/" + to_hex(sha256(good_)) + ".so";
  struct stat info;
  // Another test of this process may have loaded the same content: then there is nothing to copy.
  if (stat(copy.c_str(), &info) == 0) {
    EXPECT_EQ(info.st_mode & 07777, 0500u);
    EXPECT_EQ(read_bytes(copy), good_);
  }
  EXPECT_EQ(drafter.value()->caps().max_nodes, 8u);
}

TEST_F(Registry, damaged_copy_in_the_cache_is_replaced) {
  // Content of its own, so that this process has not loaded it before.
  const std::string bytes = read_bytes(fixture("newer")) + "damaged_copy";
  tree_.add("a", bytes, BundleTree::manifest(bytes, "2.0.0"));
  auto registry = tree_.open(host_);
  ASSERT_TRUE(registry.ok());
  const std::string copy = tree_.cache() + "/" + to_hex(sha256(bytes)) + ".so";
  write_bytes(copy, "not this", 0500);
  auto drafter = make(*registry.value());
  ASSERT_TRUE(drafter.ok()) << drafter.status().text();
  EXPECT_EQ(read_bytes(copy), bytes);
}

TEST_F(Registry, same_path_with_new_content_is_a_new_module) {
  tree_.add("a", good_);
  auto before = tree_.open(host_);
  ASSERT_TRUE(before.ok());
  auto old_drafter = make(*before.value());
  ASSERT_TRUE(old_drafter.ok());
  const std::string newer = read_bytes(fixture("newer"));
  tree_.add("a", newer, BundleTree::manifest(newer, "2.0.0"));
  auto after = tree_.open(host_);
  ASSERT_TRUE(after.ok());
  auto new_drafter = make(*after.value());
  ASSERT_TRUE(new_drafter.ok()) << new_drafter.status().text();
  EXPECT_EQ(after.value()->list()[0].version, "2.0.0");
  EXPECT_EQ(before.value()->list()[0].version, "1.0.0");
}

TEST_F(Registry, thousands_of_loads_map_each_content_once_and_hold_no_descriptor) {
  const auto mapped = [this] {
    std::ifstream maps("/proc/self/maps");
    std::set<std::string> paths;
    for (std::string line; std::getline(maps, line);) {
      if (const size_t at = line.find(tree_.cache()); at != std::string::npos)
        paths.insert(line.substr(at));
    }
    return paths.size();
  };
  const auto load = [&](int version) {
    const std::string bytes = good_ + "version " + std::to_string(version);
    tree_.add("a", bytes);
    for (int again = 0; again < 10; ++again) {
      auto registry = tree_.open(host_);  // one that has not loaded it yet
      ASSERT_TRUE(registry.ok());
      const auto made = make(*registry.value());
      ASSERT_TRUE(made.ok()) << version << ": " << made.status().text();
    }
  };
  load(0);
  const auto descriptors = entries_of("/proc/self/fd");
  for (int version = 1; version < 200; ++version) load(version);
  EXPECT_EQ(entries_of("/proc/self/fd"), descriptors);
  EXPECT_EQ(mapped(), 200u);
}

TEST_F(Registry, factory_is_chosen_by_kind_and_id) {
  tree_.add("a", good_);
  auto registry = tree_.open(host_);
  ASSERT_TRUE(registry.ok());
  const auto drafter_error = [&](const std::string& factory) {
    return registry.value()
        ->make_drafter("org.example.fixture", factory, Json::object(), target_, "d")
        .status()
        .text();
  };
  EXPECT_EQ(drafter_error("next"), "");
  EXPECT_NE(drafter_error("nix").find("has no drafter factory 'nix'; it has 'next'"),
            std::string::npos);
  EXPECT_NE(drafter_error("none").find("makes a verifier, not a drafter"), std::string::npos);
  auto verifier =
      registry.value()->make_verifier("org.example.fixture", "", Json::object(), target_, "v");
  ASSERT_TRUE(verifier.ok()) << verifier.status().text();
  specd_verifier_grant grant{};
  grant.struct_size = sizeof(grant);
  EXPECT_TRUE(verifier.value()->activate(grant).ok());
}

TEST_F(Registry, configuration_is_checked_before_the_plugin_sees_it) {
  tree_.add("a", good_);
  auto registry = tree_.open(host_);
  ASSERT_TRUE(registry.ok());
  EXPECT_EQ(make(*registry.value(), R"({"dept": 3})").status().text(),
            "config.dept: plugin 'org.example.fixture' factory 'next': unknown key 'dept'; did you "
            "mean 'depth'? known here: calls, depth, log, mode, slow, until");
  EXPECT_TRUE(make(*registry.value(), R"({"depth": 3})").ok());
}

TEST_F(Registry, the_key_that_a_plugin_refuses_is_the_field_if_its_configuration_has_it) {
  tree_.add("a", good_);
  auto registry = tree_.open(host_);
  ASSERT_TRUE(registry.ok());
  const std::string refused =
      "plugin 'org.example.fixture' factory 'next': describe() returned SPECD_E_CONFIG (6): ";
  const Status key = make(*registry.value(), R"({"mode": "refuses_key"})").status();
  EXPECT_EQ(key.field(), "config.depth");
  EXPECT_EQ(key.message(), refused + "too deep");
  const Status note = make(*registry.value(), R"({"mode": "refuses_note"})").status();
  EXPECT_EQ(note.field(), "config");
  EXPECT_EQ(note.message(), refused + "note: too deep");
}

TEST_F(Registry, schema_with_an_unknown_keyword_refuses_the_factory) {
  const std::string bytes = read_bytes(fixture("bad_schema"));
  tree_.add("a", bytes);
  auto registry = tree_.open(host_);
  ASSERT_TRUE(registry.ok());
  const auto made = make(*registry.value());
  ASSERT_FALSE(made.ok());
  EXPECT_NE(made.status().text().find("factory 'next': config_schema: the top: keyword 'oneOf'"),
            std::string::npos)
      << made.status().text();
}

TEST_F(Registry, what_describe_and_create_do_wrong_is_told) {
  tree_.add("a", good_);
  auto registry = tree_.open(host_);
  ASSERT_TRUE(registry.ok());
  const auto error = [&](const std::string& mode) {
    return make(*registry.value(), Json{{"mode", mode}}.dump()).status().text();
  };
  const auto expect = [&](const std::string& mode, const std::string& words) {
    const std::string text = error(mode);
    EXPECT_NE(text.find("plugin 'org.example.fixture' factory 'next': " + words), std::string::npos)
        << text;
  };
  expect("describe_refuses", "describe() returned SPECD_E_UNSUPPORTED (2): this model is not mine");
  expect("create_fails", "create() returned SPECD_E_DATA (7): the table is cut off");
  expect("no_instance", "create() returned SPECD_OK and no instance");
  expect("no_device", "describe() returned device_types = 0");
  expect("bad_tap", "describe() returned taps[0] = 1000, expected 0..3");
  expect("absent_service", "needs the host service 'org.example.absent/1'");
  EXPECT_EQ(error("plain"), "");
  auto masked = make(*registry.value(), R"({"mode": "unknown_bits"})");
  ASSERT_TRUE(masked.ok());
  EXPECT_EQ(masked.value()->caps().needs, uint32_t{SPECD_NEED_HOST_TOKENS});
}

}  // namespace
}  // namespace specd
