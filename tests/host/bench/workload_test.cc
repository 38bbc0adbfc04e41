#include "host/bench/workload.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

namespace specd::host {
namespace {

namespace fs = std::filesystem;

class Workload : public testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/specd-workload-XXXXXX";
    ASSERT_NE(mkdtemp(pattern), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string write(const std::string& name, const std::string& content) {
    std::ofstream(folder_ + "/" + name, std::ios::binary) << content;
    return folder_ + "/" + name;
  }
  void refuses(const std::string& content, const std::string& part) {
    const std::string path = write("bad.jsonl", content);
    const auto prompts = read_prompts({path});
    ASSERT_FALSE(prompts.ok()) << content;
    EXPECT_EQ(prompts.status().code(), Code::kInvalidArgument);
    EXPECT_NE(prompts.status().text().find(path + part), std::string::npos)
        << prompts.status().text();
  }
  std::string folder_;
};

TEST_F(Workload, lines_of_jsonl_are_prompts_by_any_of_their_keys) {
  const std::string path = write("set.jsonl",
                                 "{\"prompt\": \"a\"}\n"
                                 "\n"
                                 "{\"text\": \"b\\nc\", \"category\": 1}\r\n"
                                 "{\"question_id\": 81, \"turns\": [\"first\", \"second\"]}");
  const auto prompts = read_prompts({path});
  ASSERT_TRUE(prompts.ok()) << prompts.status().text();
  ASSERT_EQ(prompts.value().size(), 3u);
  EXPECT_EQ(prompts.value()[0].text, "a");
  EXPECT_EQ(prompts.value()[0].name, "set.jsonl:1");
  EXPECT_EQ(prompts.value()[1].text, "b\nc");
  EXPECT_EQ(prompts.value()[1].name, "set.jsonl:3");
  EXPECT_EQ(prompts.value()[2].text, "first");
}

TEST_F(Workload, an_instruction_in_front_is_dropped_with_the_empty_lines_behind_it) {
  const std::string path = write("set.jsonl",
                                 "{\"turns\": [\"Complete it.\\n\\ndef f():\\n    pass\\n\"]}\n"
                                 "{\"turns\": [\"Complete it.\\ndef g():\\n\\n\"]}\n");
  const auto prompts = read_prompts({path}, true);
  ASSERT_TRUE(prompts.ok()) << prompts.status().text();
  EXPECT_EQ(prompts.value()[0].text, "def f():\n    pass\n");
  EXPECT_EQ(prompts.value()[1].text, "def g():\n\n");
}

TEST_F(Workload, files_and_folders_are_taken_as_they_are_in_order_of_their_names) {
  fs::create_directories(folder_ + "/set/inner");
  write("set/b.py", "two\n");
  write("set/a.py", "one\n");
  const auto prompts = read_prompts({folder_ + "/set"});
  ASSERT_TRUE(prompts.ok());
  ASSERT_EQ(prompts.value().size(), 2u);
  EXPECT_EQ(prompts.value()[0].name, "a.py");
  EXPECT_EQ(prompts.value()[1].text, "two\n");
}

TEST_F(Workload, a_wrong_line_is_named_with_what_was_expected) {
  refuses("{\"prompt\": \"a\"}\n{\"question\": \"b\"}\n",
          ":2: expected a key 'prompt', 'text' or 'turns'");
  refuses("{\"prompt\": 7}\n", ":1: key 'prompt': expected a string, found number");
  refuses("{\"turns\": []}\n", ":1: key 'turns': expected a list of strings");
  refuses("[1]\n", ":1: expected an object, found array");
  refuses("{\"prompt\": \"a\"}\n\n{\"prompt\": \n", ":3:1:");
  refuses("{\"prompt\": \"\"}\n", ":1: expected a prompt of 1 to");
  EXPECT_FALSE(read_prompts({write("empty.jsonl", "\n")}).ok());
  EXPECT_FALSE(read_prompts({folder_ + "/none.jsonl"}).ok());
}

TEST_F(Workload, synthetic_lengths_follow_their_distributions_and_the_seed) {
  const SyntheticOptions options{.count = 4000,
                                 .input_mean = 100,
                                 .input_stdev = 10,
                                 .output_mean = 40,
                                 .output_stdev = 5,
                                 .seed = 7};
  const std::vector<Prompt> prompts = synthetic_prompts(options, 50, 1000);
  ASSERT_EQ(prompts.size(), 4000u);
  double sum = 0, squares = 0, output = 0;
  std::vector<int> seen(50);
  for (const Prompt& prompt : prompts) {
    const auto n = static_cast<double>(prompt.tokens->size());
    sum += n;
    squares += n * n;
    output += prompt.max_tokens;
    for (const int32_t id : *prompt.tokens) ++seen.at(static_cast<size_t>(id));
  }
  const double mean = sum / 4000;
  EXPECT_NEAR(mean, 100, 1);  // six standard errors
  EXPECT_NEAR(std::sqrt(squares / 4000 - mean * mean), 10, 0.7);
  EXPECT_NEAR(output / 4000, 40, 0.5);
  for (const int n : seen) EXPECT_NEAR(n, sum / 50, 0.1 * sum / 50);

  const std::vector<Prompt> again = synthetic_prompts(options, 50, 1000);
  EXPECT_EQ(prompts[17].tokens, again[17].tokens);
  SyntheticOptions other = options;
  other.seed = 8;
  EXPECT_NE(prompts[17].tokens, synthetic_prompts(other, 50, 1000)[17].tokens);
}

TEST_F(Workload, synthetic_prompts_stay_within_the_context) {
  const SyntheticOptions options{.count = 500,
                                 .input_mean = 90,
                                 .input_stdev = 60,
                                 .output_mean = 50,
                                 .output_stdev = 60,
                                 .seed = 1};
  for (const Prompt& prompt : synthetic_prompts(options, 10, 100)) {
    EXPECT_GE(prompt.tokens->size(), 1u);
    EXPECT_GE(prompt.max_tokens, 1);
    EXPECT_LE(prompt.tokens->size() + static_cast<size_t>(prompt.max_tokens), 100u);
  }
}

}  // namespace
}  // namespace specd::host
