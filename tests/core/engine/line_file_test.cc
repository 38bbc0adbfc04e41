// Lines on disk: cut and garbled at every byte, a disk that is full, a folder that is taken. What must be
// there is worked out from the lines that were written, not by reading the file in another way.
#include "core/engine/routes/line_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "tests/file_size_limit.h"

namespace specd {
namespace {

class LineFiles : public testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/specd-lines-XXXXXX";
    ASSERT_NE(mkdtemp(pattern), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path() const { return folder_ + "/j"; }
  std::unique_ptr<LineFile> open(LineFile::Content& content) {
    auto opened = LineFile::open(folder_, "j", content);
    EXPECT_TRUE(opened.ok()) << opened.status().to_string();
    return opened.ok() ? std::move(opened).value() : nullptr;
  }
  std::vector<std::string> texts() {
    LineFile::Content content;
    (void)open(content);
    EXPECT_TRUE(content.bad.empty());
    std::vector<std::string> all;
    for (const LineFile::Line& line : content.lines) all.push_back(line.text);
    return all;
  }
  std::string bytes() const {
    std::ifstream in(path(), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void write(const std::string& bytes) const {
    std::ofstream(path(), std::ios::binary | std::ios::trunc) << bytes;
  }

  std::string folder_;
  const std::vector<std::string> lines_{"one", "", "a longer line, with \t and \xff", "4"};
};

TEST_F(LineFiles, lines_that_were_appended_are_there_again) {
  LineFile::Content content;
  std::unique_ptr<LineFile> file = open(content);
  for (const std::string& line : lines_) ASSERT_TRUE(file->append(LineFile::line_of(line)).ok());
  EXPECT_EQ(file->n_bytes(), bytes().size());
  file.reset();
  EXPECT_EQ(texts(), lines_);
  struct stat info {};
  ASSERT_EQ(stat(path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(LineFiles, a_file_that_is_cut_at_any_byte_has_the_lines_before_and_goes_on) {
  LineFile::Content content;
  for (const std::string& line : lines_)
    ASSERT_TRUE(open(content)->append(LineFile::line_of(line)).ok());
  const std::string whole = bytes();
  for (size_t n = 0; n <= whole.size(); ++n) {
    write(whole.substr(0, n));
    std::vector<std::string> expected;
    size_t end = 0;
    for (const std::string& line : lines_) {
      end += 16 + 1 + line.size() + 1;
      if (end <= n) expected.push_back(line);
    }
    EXPECT_EQ(texts(), expected) << n;
    ASSERT_TRUE(open(content)->append(LineFile::line_of("next")).ok());
    expected.push_back("next");
    EXPECT_EQ(texts(), expected) << n;
  }
}

TEST_F(LineFiles, a_garbled_byte_costs_the_lines_that_it_touches_and_no_other) {
  LineFile::Content content;
  for (const std::string& line : lines_)
    ASSERT_TRUE(open(content)->append(LineFile::line_of(line)).ok());
  const std::string whole = bytes();
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const char other : {'\0', '\n', ' ', 'a', '\x80'}) {
      if (whole[at] == other) continue;
      std::string garbled = whole;
      garbled[at] = other;
      write(garbled);
      // The line that has the byte, and the next one when it was its end.
      std::vector<std::string> expected;
      size_t begin = 0;
      for (const std::string& line : lines_) {
        const size_t end = begin + 16 + 1 + line.size() + 1;
        const bool is_touched = (at >= begin && at < end) || (begin > 0 && at == begin - 1);
        if (!is_touched) expected.push_back(line);
        begin = end;
      }
      LineFile::Content found;
      (void)open(found);
      std::vector<std::string> texts;
      for (const LineFile::Line& line : found.lines) texts.push_back(line.text);
      EXPECT_EQ(texts, expected) << at;
      if (at + 1 < whole.size()) {  // else it is only cut
        EXPECT_FALSE(found.bad.empty()) << at;
      }
    }
  }
}

TEST_F(LineFiles, a_full_disk_refuses_a_line_and_leaves_those_before) {
  LineFile::Content content;
  const std::unique_ptr<LineFile> file = open(content);
  ASSERT_TRUE(file->append(LineFile::line_of("first")).ok());
  std::optional<FileSizeLimit> limit(std::in_place, file->n_bytes() + 20);
  const Status refused = file->append(LineFile::line_of(std::string(50, 'x')));
  EXPECT_NE(refused.text().find("cannot write: File too large"), std::string::npos)
      << refused.text();
  EXPECT_NE(refused.text().find(path()), std::string::npos);
  EXPECT_EQ(bytes().size(), file->n_bytes());
  const Status not_replaced = file->replace(LineFile::line_of(std::string(500, 'y')), false);
  EXPECT_NE(not_replaced.text().find("the new file beside it"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(path() + ".new"));
  limit.reset();
  ASSERT_TRUE(file->append(LineFile::line_of("second")).ok());
  LineFile::Content found;
  const auto again = LineFile::open(folder_, "j", found);
  EXPECT_NE(again.status().text().find("another process has this folder"), std::string::npos)
      << "the lock";
}

TEST_F(LineFiles, replacing_all_lines_keeps_a_copy_if_it_is_told_to) {
  LineFile::Content content;
  std::unique_ptr<LineFile> file = open(content);
  ASSERT_TRUE(file->append(LineFile::line_of("old")).ok());
  const std::string old = bytes();
  ASSERT_TRUE(file->replace(LineFile::line_of("a") + LineFile::line_of("b"), true).ok());
  ASSERT_TRUE(file->append(LineFile::line_of("c")).ok());
  EXPECT_EQ(file->n_bytes(), bytes().size());
  file.reset();
  EXPECT_EQ(texts(), (std::vector<std::string>{"a", "b", "c"}));
  std::filesystem::rename(path() + ".damaged", path());
  EXPECT_EQ(bytes(), old);
  EXPECT_EQ(texts(), (std::vector<std::string>{"old"}));
}

TEST_F(LineFiles, what_is_no_folder_or_no_file_is_refused_with_its_name) {
  const auto refusal = [](const std::string& folder) {
    LineFile::Content content;
    return LineFile::open(folder, "j", content).status().text();
  };
  EXPECT_NE(refusal(folder_ + "/none").find("none"), std::string::npos)
      << refusal(folder_ + "/none");
  std::filesystem::permissions(folder_, std::filesystem::perms::all);
  EXPECT_NE(refusal(folder_).find("writable"), std::string::npos) << refusal(folder_);
  std::filesystem::permissions(folder_, std::filesystem::perms::owner_all);
  std::filesystem::create_directory(path());
  EXPECT_NE(refusal(folder_).find("/j': cannot open: Is a directory"), std::string::npos)
      << refusal(folder_);
  std::filesystem::remove(path());
  std::filesystem::create_symlink("/tmp/elsewhere", path());
  EXPECT_NE(refusal(folder_).find("cannot open: Too many levels of symbolic links"),
            std::string::npos);
  std::filesystem::remove(path());
  ASSERT_EQ(mkfifo(path().c_str(), 0600), 0);
  EXPECT_NE(refusal(folder_).find("expected a regular file, found"), std::string::npos);
}

}  // namespace
}  // namespace specd
