// Damaged and hostile files: no crash, no hang, no memory far over the file's size, and every
// refusal names a place.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <chrono>
#include <string>
#include <vector>

#include "tests/host/config/config_rig.h"
#include "tests/cpu_clock.h"

namespace specd::host {
namespace {

using Clock = CpuClock;

constexpr double kSlow = kSlowdown;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// "c.yaml:3:7: ..." in one line, or "ok"; within a second.
void expect_placed(const ConfigFolder& folder, const std::string& text, const std::string& what) {
  const auto start = Clock::now();
  const std::string message = folder.error(text);
  EXPECT_LT(seconds_since(start), kSlow) << what;
  if (message == "ok") return;
  ASSERT_TRUE(message.starts_with("c.yaml:")) << what << ": " << message.substr(0, 300);
  const size_t line = 7, line_end = message.find(':', line);
  const size_t column_end = message.find(':', line_end + 1);
  ASSERT_NE(column_end, std::string::npos) << what << ": " << message.substr(0, 300);
  for (const std::string& number : {message.substr(line, line_end - line),
                                    message.substr(line_end + 1, column_end - line_end - 1)}) {
    EXPECT_FALSE(number.empty()) << what << ": " << message.substr(0, 300);
    EXPECT_EQ(number.find_first_not_of("0123456789"), std::string::npos)
        << what << ": " << message.substr(0, 300);
  }
  EXPECT_EQ(message.find('\n'), std::string::npos) << what << ": " << message.substr(0, 300);
  EXPECT_LT(message.size(), 1000U) << what << ": " << message.substr(0, 300);
}

std::vector<fs::path> shipped() {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(fs::path(SPECD_SOURCE_DIR) / "configs"))
    if (entry.path().extension() == ".yaml") files.push_back(entry.path());
  return files;
}

TEST(HostileConfig, shipped_files_cut_anywhere_are_refused_with_a_place_or_whole) {
  const ConfigFolder folder;
  ASSERT_GE(shipped().size(), 2U);
  for (const fs::path& file : shipped()) {
    const std::string text = read_file(file);
    for (size_t i = 0; i < text.size(); ++i)
      expect_placed(folder, text.substr(0, i),
                    file.filename().string() + " cut at " + std::to_string(i));
  }
}

constexpr char kSigns[] = {'\0', '\n', '\t', ':', '{', '[', '*', '\xff', '-', '"'};

// Every byte of every file becomes n_each of the signs, the next byte the n_each behind them.
void expect_placed_when_changed(size_t n_each) {
  const ConfigFolder folder;
  for (const fs::path& file : shipped()) {
    const std::string text = read_file(file);
    for (size_t i = 0; i < text.size(); ++i)
      for (size_t k = 0; k < n_each; ++k) {
        const char sign = kSigns[(i * n_each + k) % std::size(kSigns)];
        std::string damaged = text;
        damaged[i] = sign;
        expect_placed(folder, damaged,
                      file.filename().string() + " with " +
                          std::to_string(static_cast<unsigned char>(sign)) + " at " +
                          std::to_string(i));
      }
  }
}

TEST(HostileConfig, shipped_files_with_any_byte_changed_are_refused_with_a_place_or_good) {
  expect_placed_when_changed(3);
}
TEST(HostileConfig, shipped_files_with_every_sign_at_any_byte_are_refused_with_a_place_or_good) {
  expect_placed_when_changed(std::size(kSigns));
}

TEST(HostileConfig, a_mebibyte_of_any_sign_is_refused_soon) {
  const ConfigFolder folder;
  const std::string front = "listen: unix:run/s.sock\nmodel: {name: m, path: model}\n";
  for (const std::string unit :
       {"[",     "{",     "- ",  "? ",      "a: ",    "\"",          "'",      "|",
        ">",     "&a ",   "*a ", "!a ",     "# ",     "\n",          " ",      "\t",
        ",",     ":",     "a",   "{a: ",    "[a, ",   "- - ",        "? - ",   "%",
        "---\n", "...\n", "\\",  "\r",      "a: b\n", "- a\n",       "\"\\\n", "!!a ",
        "a,",    "{}",    "[]",  "a: |\n ", "? a\n",  "\xe2\x80\xa8"}) {
    std::string text;
    while (text.size() + unit.size() + front.size() + 16 < kYamlBytesMax) text += unit;
    expect_placed(folder, text, unit);
    expect_placed(folder, front + "routes: " + text, "routes: " + unit);
    expect_placed(folder, front + "plugins: {directories: [" + text, "in a list: " + unit);
  }
}

// A plugin's configuration may hold anything: where the reader itself has no word to say.
std::string with_plugin_config(const std::string& config) {
  return "listen: unix:run/s.sock\nmodel: {name: m, path: model}\nroutes:\n  r:\n"
         "    verifier: {plugin: v}\n    drafter: {plugin: d, config: " +
         config + "}\n";
}

TEST(HostileConfig, many_keys_many_items_and_long_keys_take_neither_time_nor_memory) {
  const ConfigFolder folder;
  const auto peak_kib = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
  };
  std::string keys, items, deep_items, wide;
  for (int i = 0; keys.size() < 1'000'000; ++i) keys += "k" + std::to_string(i) + ": 1, ";
  while (items.size() < 1'000'000) items += "1,";
  const std::string long_key(kYamlKeyMax, 'k');
  for (int i = 0; i < 20; ++i) deep_items += "{" + long_key + ": ";
  deep_items += "[" + items.substr(0, 900'000) + "]" + std::string(20, '}');
  for (int i = 0; wide.size() < 900'000; ++i) wide += "{" + long_key + ": 1}, ";
  const long before = peak_kib();
  for (const std::string& config :
       {"{" + keys + "}", "{a: [" + items + "]}", deep_items, "{a: [" + wide + "]}"}) {
    const auto start = Clock::now();
    const std::string message = folder.error(with_plugin_config(config));
    EXPECT_LT(seconds_since(start), 2 * kSlow) << config.substr(0, 60);
    EXPECT_EQ(message, "ok") << config.substr(0, 60);
  }
  if (kSlow == 1) {
    EXPECT_LT(peak_kib() - before, 400 * 1024);
  }
  EXPECT_EQ(folder.error(with_plugin_config("{" + long_key + "k: 1}")),
            "c.yaml:6:35: expected a key of at most 160 bytes, found '" + std::string(40, 'k') +
                "'... (161 bytes)");
  // Many routes, many draft models, many unknown keys.
  std::string routes = "listen: unix:run/s.sock\nmodel: {name: m, path: model}\nroutes:\n";
  for (int i = 0; routes.size() < 1'000'000; ++i) routes += "  r" + std::to_string(i) + ":\n";
  expect_placed(folder, routes, "routes");
  std::string drafts = "listen: unix:run/s.sock\nmodel: {name: m, path: model}\ndraft_models:\n";
  for (int i = 0; drafts.size() < 1'000'000; ++i)
    drafts += " - {name: n" + std::to_string(i) + ", path: m}\n";
  expect_placed(folder, drafts, "draft models");
}

TEST(HostileConfig, text_that_is_not_utf8_is_refused_at_its_byte) {
  const ConfigFolder folder;
  for (const std::string bad :
       {"\xff", "\x80", "\xc0\x80", "\xc1\xbf", "\xe0\x80\x80", "\xed\xa0\x80", "\xf0\x80\x80\x80",
        "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xe2\x82", "\xc3(", "\xfe\xff"}) {
    const std::string message = folder.error("# é\nlisten: " + bad);
    EXPECT_TRUE(message.starts_with("c.yaml:2:9: expected UTF-8, found the byte ")) << message;
  }
  for (const std::string good : {"é", "€", "😀", "\xf4\x8f\xbf\xbf", "\xed\x9f\xbf"})
    EXPECT_EQ(folder.error("# " + good + "\n" + PlacedYaml(every_key()).text()), "ok") << good;
}

TEST(HostileConfig, what_is_not_a_file_is_refused_at_once_in_words) {
  const ConfigFolder folder;
  const std::string pipe = (folder.path() / "pipe").string();
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  fs::create_symlink("loop", folder.path() / "loop");
  std::ofstream(folder.path() / "large") << std::string(kYamlBytesMax + 1, ' ');
  const std::pair<std::string, std::string> table[] = {
      {pipe, "expected a regular file, found a pipe"},
      {folder.path().string(), "expected a regular file, found a directory"},
      {"/dev/zero", "expected a regular file, found a device"},
      {(folder.path() / "loop").string(), "cannot open"},
      {(folder.path() / "large").string(), "1048577 bytes, expected at most 1048576"},
      {(folder.path() / std::string(256, 'x')).string(), "cannot open: File name too long"},
      {(folder.path() / "plugins/../../../none").string(), "cannot open"},
      {"", "cannot open"},
  };
  for (const auto& [path, words] : table) {
    const auto start = Clock::now();
    const auto config = load_config(path);
    EXPECT_LT(seconds_since(start), kSlow) << path;
    ASSERT_FALSE(config.ok()) << path;
    EXPECT_NE(config.status().text().find(words), std::string::npos) << config.status().text();
  }
}

TEST(HostileConfig, folders_that_are_no_folders_are_refused_at_once) {
  const ConfigFolder folder;
  ASSERT_EQ(mkfifo((folder.path() / "pipe").c_str(), 0600), 0);
  for (const char* path : {"pipe", "/dev/zero", "none", "c.yaml/x", "loop"}) {
    OrderedJson json = every_key();
    json["model"]["path"] = path;
    expect_placed(folder, PlacedYaml(json).text(), path);
    EXPECT_NE(folder.error(PlacedYaml(json).text()), "ok") << path;
  }
}

}  // namespace
}  // namespace specd::host
