#include <gtest/gtest.h>
#include <specd/sdk/fake_host.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <thread>

#include "suffix_oracle.h"
#include "random_text.h"

namespace specd {
namespace {

using sdk::FakeConfig;
using sdk::FakeDraft;
using sdk::FakeDrafter;
using sdk::FakeHost;

const sdk::FakeModule& module() {
  static const sdk::FakeModule loaded(SPECD_TEST_BUNDLES "/drafter_suffix/drafter_suffix.so");
  return loaded;
}
const specd_factory& factory() { return module().factory("suffix"); }

// A file that is removed with the test.
class TempFile {
 public:
  explicit TempFile(const std::string& content) {
    char path[] = "/tmp/specd_suffix_XXXXXX";
    const int fd = ::mkstemp(path);
    if (fd >= 0) ::close(fd);
    path_ = path;
    std::ofstream(path_, std::ios::binary) << content;
  }
  ~TempFile() { ::unlink(path_.c_str()); }
  TempFile(const TempFile&) = delete;
  TempFile& operator=(const TempFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string corpus_text(const std::vector<TokenList>& documents) {
  std::string out;
  for (const TokenList& document : documents) {
    out += '[';
    for (std::size_t i = 0; i < document.size(); ++i) {
      out += (i == 0 ? "" : ", ") + std::to_string(document[i]);
    }
    out += "]\n";
  }
  return out;
}

FakeConfig config_of(const SuffixSettings& set) {
  return FakeConfig()
      .set("max_spec_tokens", set.max_spec_tokens)
      .set("max_spec_factor", static_cast<double>(set.max_spec_factor))
      .set("max_spec_offset", static_cast<double>(set.max_spec_offset))
      .set("min_token_prob", static_cast<double>(set.min_token_prob))
      .set("max_tree_depth", set.max_tree_depth)
      .set("max_branches", set.max_branches);
}

SuffixSettings random_settings(std::mt19937& random, bool trees) {
  SuffixSettings set;
  set.max_spec_tokens = 1 + static_cast<int>(random() % 20);
  set.max_spec_factor = static_cast<float>(random() % 9) / 4;
  set.max_spec_offset = static_cast<float>(static_cast<int>(random() % 7)) - 2;
  set.min_token_prob = static_cast<float>(random() % 4) * 0.1f;
  set.max_tree_depth = 2 + static_cast<int>(random() % (random() % 2 ? 6 : 30));
  set.max_branches = trees ? 2 + static_cast<int>(random() % 4) : 1;
  return set;
}

// Waits until the text `probe`, which never has a draft without the corpus, gets one.
void wait_for_corpus(FakeDrafter& drafter, const TokenList& probe) {
  const int s = drafter.begin(probe);
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (drafter.propose(s).token.empty()) {
    ASSERT_LT(std::chrono::steady_clock::now(), limit) << "the corpus never became ready";
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  drafter.end(s);
}

void expect_oracle(FakeDrafter& drafter, int s, const TokenList& text, const SuffixSettings& set,
                   int max_positions, int eos, const SuffixOracle* corpus, int& drafts) {
  const int room = std::min(set.max_spec_tokens, max_positions - static_cast<int>(text.size()));
  SuffixDraft best;
  SuffixOracle({text}).improve(text, set, room, eos, best);
  if (corpus != nullptr) corpus->improve(text, set, room, eos, best);
  const FakeDraft draft = drafter.propose(s);
  ASSERT_EQ(draft.token, best.token) << testing::PrintToString(text);
  if (set.max_branches > 1) {
    ASSERT_EQ(draft.parent, best.parent);
  }
  drafts += !best.token.empty();
}

void compare_with_oracle(bool trees, unsigned seed) {
  std::mt19937 random(seed);
  int drafts = 0;
  for (int round = 0; round < 40; ++round) {
    FakeHost host;
    host.target().max_positions = 120;
    host.target().eos_token = round % 3 == 0 ? 1 : -1;
    const SuffixSettings set = random_settings(random, trees);
    FakeDrafter drafter(host, factory(), config_of(set));
    ASSERT_EQ(drafter.status(), SPECD_OK);
    const int alphabet = 1 + static_cast<int>(random() % 12);
    TokenList text = random_text(random, alphabet, 1 + random() % 40);
    const int s = drafter.begin(text, round % 2 ? SPECD_ATTACH_FRESH : SPECD_ATTACH_COLD);
    while (text.size() < 118) {
      ASSERT_NO_FATAL_FAILURE(
          expect_oracle(drafter, s, text, set, 120, host.target().eos_token, nullptr, drafts))
          << "round " << round << " at " << text.size();
      TokenList piece = next_piece(random, text, alphabet);
      if (piece.size() > 120 - text.size()) piece.resize(120 - text.size());
      ASSERT_EQ(drafter.commit(s, piece), SPECD_OK);
      ASSERT_EQ(drafter.sequence_status(s), SPECD_OK);
      text.insert(text.end(), piece.begin(), piece.end());
    }
    EXPECT_TRUE(host.violations().empty()) << host.violations()[0];
  }
  EXPECT_GT(drafts, 300);
}

TEST(Suffix, chain_is_the_one_with_the_best_score_over_all_match_lengths) {
  compare_with_oracle(false, 21);
  compare_with_oracle(false, 22);
}
TEST(Suffix, tree_grows_where_the_counts_say) { compare_with_oracle(true, 23); }

TEST(Suffix, corpus_competes_by_score_and_loses_ties) {
  std::mt19937 random(31);
  int drafts = 0;
  for (int round = 0; round < 24; ++round) {
    FakeHost host;
    host.target().max_positions = 100;
    const SuffixSettings set = random_settings(random, round % 2 == 1);
    const int alphabet = 2 + static_cast<int>(random() % 8);
    std::vector<TokenList> documents = {{900, 901, 901, 901, 901, 901, 901, 901, 901}};
    for (int i = 0; i < 4; ++i) documents.push_back(random_text(random, alphabet, random() % 60));
    const TempFile file(corpus_text(documents));
    const SuffixOracle oracle(documents);
    FakeDrafter drafter(host, factory(), config_of(set).set("corpus", file.path()));
    ASSERT_EQ(drafter.status(), SPECD_OK);
    // Skip settings that allow the probe no draft: then the corpus never shows that it is ready.
    SuffixDraft probe;
    oracle.improve({900}, set, set.max_spec_tokens, -1, probe);
    if (probe.token.empty()) continue;
    ASSERT_NO_FATAL_FAILURE(wait_for_corpus(drafter, {900}));
    TokenList text = random_text(random, alphabet, 1 + random() % 30);
    const int s = drafter.begin(text);
    while (text.size() < 98) {
      ASSERT_NO_FATAL_FAILURE(expect_oracle(drafter, s, text, set, 100, -1, &oracle, drafts))
          << "round " << round << " at " << text.size();
      TokenList piece = next_piece(random, text, alphabet);
      if (piece.size() > 100 - text.size()) piece.resize(100 - text.size());
      drafter.commit(s, piece);
      text.insert(text.end(), piece.begin(), piece.end());
    }
    EXPECT_TRUE(host.violations().empty()) << host.violations()[0];
  }
  EXPECT_GT(drafts, 200);
}

// A document that only the probe can continue, and that no compared text contains.
const TokenList kProbe = {4090, 4091, 4091, 4091, 4091};

void compare_with_goldens(const char* name, int drafts, int branching_drafts) {
  std::ifstream file(std::string(SPECD_TEST_REFERENCE "/") + name);
  const nlohmann::json goldens = nlohmann::json::parse(file);
  auto documents = goldens["corpus"].get<std::vector<TokenList>>();
  documents.push_back(kProbe);
  const TempFile corpus(corpus_text(documents));
  int compared = 0, drafted = 0, branching = 0;
  for (const nlohmann::json& golden : goldens["cases"]) {
    const nlohmann::json& json = golden["settings"];
    SuffixSettings set;
    set.max_spec_tokens = json["max_spec_tokens"];
    set.max_spec_factor = json["max_spec_factor"];
    set.max_spec_offset = json["max_spec_offset"];
    set.min_token_prob = json["min_token_prob"];
    set.max_tree_depth = json["max_tree_depth"];
    set.max_branches = json["max_branches"];
    FakeHost host;
    host.target().vocab_size = goldens["vocab_size"];
    host.target().max_positions = goldens["max_positions"];
    FakeConfig config = config_of(set);
    if (golden["corpus"]) config.set("corpus", corpus.path());
    FakeDrafter drafter(host, factory(), config);
    ASSERT_EQ(drafter.status(), SPECD_OK);
    if (golden["corpus"]) {
      ASSERT_NO_FATAL_FAILURE(wait_for_corpus(drafter, {kProbe[0], kProbe[1]}));
    }
    const TokenList text = golden["text"];
    std::size_t n = golden["begin"];
    const int s = drafter.begin(TokenList(text.begin(), text.begin() + static_cast<long>(n)));
    for (const nlohmann::json& step : golden["steps"]) {
      const std::size_t to = step[0];
      drafter.commit(
          s, TokenList(text.begin() + static_cast<long>(n), text.begin() + static_cast<long>(to)));
      n = to;
      const FakeDraft draft = drafter.propose(s);
      ASSERT_EQ(draft.token, step[1].get<TokenList>()) << "case " << compared / 30 << " at " << n;
      if (step.size() > 2) {
        ASSERT_EQ(draft.parent, step[2].get<TokenList>());
        const std::set<int32_t> parents(draft.parent.begin(), draft.parent.end());
        branching += parents.size() < draft.parent.size();
      }
      ++compared;
      drafted += draft.count;
    }
    EXPECT_TRUE(host.violations().empty()) << host.violations()[0];
  }
  EXPECT_EQ(compared, drafts);
  EXPECT_EQ(branching, branching_drafts);
  EXPECT_GT(drafted, 4000);
}

TEST(Suffix, chains_and_trees_of_the_reference_in_python) {
  compare_with_goldens("suffix_goldens.json", 720, 48);
}
TEST(Suffix, chains_of_arctic_inference) {
  compare_with_goldens("suffix_arctic_goldens.json", 600, 0);
}

TEST(Suffix, attached_in_mid_stream_it_drafts_as_if_it_had_been_there) {
  std::mt19937 random(5);
  for (const int branches : {1, 3}) {
    FakeHost host;
    FakeDrafter drafter(host, factory(), FakeConfig().set("max_branches", branches));
    TokenList text = random_text(random, 20, 50);
    const int fresh = drafter.begin(text);
    for (int step = 0; step < 60; ++step) {
      const TokenList piece = next_piece(random, text, 20);
      drafter.commit(fresh, piece);
      text.insert(text.end(), piece.begin(), piece.end());
      const FakeDraft expected = drafter.propose(fresh);
      for (const uint32_t mode : {SPECD_ATTACH_TOKENS, SPECD_ATTACH_COLD}) {
        const int late = drafter.begin(text, mode);
        const FakeDraft draft = drafter.propose(late);
        ASSERT_EQ(draft.token, expected.token) << step;
        ASSERT_EQ(draft.parent, expected.parent);
        drafter.end(late);
      }
    }
    EXPECT_TRUE(host.violations().empty());
  }
}

TEST(Suffix, two_sequences_see_nothing_of_each_other) {
  std::mt19937 random(8);
  const TokenList secret = random_text(random, 30, 200);
  FakeHost host;
  const auto drafts = [&](bool company) {
    FakeDrafter drafter(host, factory(), FakeConfig());
    const int s = drafter.begin({1, 2, 3});
    std::vector<TokenList> out;
    for (int step = 0; step < 40; ++step) {
      int other = -1;
      if (company) {
        other = drafter.begin(secret);
        drafter.propose_batch({other, s});
        if (step % 2 == 0) drafter.end(other);
      }
      // The start of the secret; this text contains nothing about how it continues.
      drafter.commit(s, {secret[static_cast<std::size_t>(step)]});
      out.push_back(drafter.propose(s).token);
      if (company && step % 2 == 1) drafter.end(other, SPECD_END_CANCELLED);
    }
    return out;
  };
  EXPECT_EQ(drafts(true), drafts(false));
}

TEST(Suffix, never_drafts_past_the_limits_of_request_model_and_step) {
  FakeHost host;
  host.target().max_positions = 32;
  FakeDrafter drafter(host, factory(), FakeConfig().set("max_spec_factor", 4));
  const TokenList text = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 1, 2, 3};
  for (const uint64_t left : {0, 1, 2, 4, 100}) {
    const int s = drafter.begin(text, SPECD_ATTACH_FRESH, sdk::greedy_sampling(left));
    EXPECT_EQ(drafter.propose(s).token.size(), left <= 1 ? 0 : std::min<std::size_t>(left - 1, 12));
    EXPECT_EQ(drafter.propose(s, 3).token.size(),
              left <= 1 ? 0 : std::min<std::size_t>(left - 1, 3));
  }
  const int s = drafter.begin(TokenList(30, 5));
  for (std::size_t n = 30; n < 32; ++n) {
    EXPECT_EQ(drafter.propose(s).token.size(), 32 - n);
    drafter.commit(s, {5});
  }
  EXPECT_EQ(drafter.propose(s).token.size(), 0u);
  EXPECT_EQ(drafter.sequence_status(s), SPECD_OK);
  EXPECT_TRUE(host.violations().empty());
}

TEST(Suffix, nothing_follows_the_end_of_the_text_in_a_draft) {
  FakeHost host;
  host.target().eos_token = 7;
  FakeDrafter drafter(host, factory(), FakeConfig().set("max_spec_factor", 4));
  EXPECT_EQ(drafter.propose(drafter.begin({1, 2, 3, 7, 4, 5, 1, 2})).token, (TokenList{3, 7}));
}

TEST(Suffix, one_token_again_and_again_is_drafted_again) {
  FakeHost host;
  host.target().max_positions = 1 << 17;
  for (const int branches : {1, 4}) {
    FakeDrafter drafter(host, factory(), FakeConfig().set("max_branches", branches));
    const int s = drafter.begin(TokenList(100000, 3));
    EXPECT_EQ(drafter.propose(s).token, TokenList(16, 3));
    drafter.commit(s, TokenList(4000, 3));
    EXPECT_EQ(drafter.propose(s).token, TokenList(16, 3));
    EXPECT_LT(host.memory_used(), drafter.caps().bytes_per_seq);
    drafter.end(s);
  }
}

TEST(Suffix, empty_prompt_is_refused_and_one_token_has_no_draft) {
  FakeHost host;
  FakeDrafter drafter(host, factory(), FakeConfig());
  EXPECT_EQ(drafter.sequence_status(drafter.begin({})), SPECD_E_INVALID);
  ASSERT_EQ(host.reports().size(), 1u);
  EXPECT_EQ(host.reports()[0].text, "begin(): a null argument");
  EXPECT_TRUE(drafter.propose(drafter.begin({5})).token.empty());
  EXPECT_TRUE(host.violations().empty());
}

TEST(Suffix, state_over_the_quota_fails_its_sequence_alone_with_words) {
  std::mt19937 random(9);
  FakeHost host;
  host.target().max_positions = 1 << 20;
  FakeDrafter drafter(host, factory(), FakeConfig());
  const int small = drafter.begin(random_text(random, 900, 300));
  const TokenList seen = drafter.tokens(small);
  host.set_memory_quota(host.memory_used() + (1 << 18));
  const int large = drafter.begin(random_text(random, 900, 40000));
  EXPECT_EQ(drafter.sequence_status(large), SPECD_E_EXHAUSTED);
  const int growing = drafter.begin(random_text(random, 900, 100));
  ASSERT_EQ(drafter.sequence_status(growing), SPECD_OK);
  int steps = 0;
  while (drafter.sequence_status(growing) == SPECD_OK && ++steps < 100) {
    drafter.commit(growing, random_text(random, 900, 500));
  }
  EXPECT_EQ(drafter.sequence_status(growing), SPECD_E_EXHAUSTED);
  EXPECT_EQ(drafter.propose(growing).count, 0);
  ASSERT_EQ(host.reports().size(), 2u);
  for (const auto& report : host.reports()) {
    EXPECT_NE(report.text.find("over the memory quota"), std::string::npos) << report.text;
  }
  drafter.end(growing, SPECD_END_QUARANTINED);
  // The small one continues.
  drafter.commit(small, {seen[10], seen[11], seen[12]});
  EXPECT_EQ(drafter.sequence_status(small), SPECD_OK);
  EXPECT_GT(drafter.propose(small).count, 0);
  EXPECT_TRUE(host.violations().empty()) << host.violations()[0];
}

TEST(Suffix, every_failed_allocation_fails_one_sequence_and_leaks_nothing) {
  for (uint64_t nth = 1; nth < 60; ++nth) {
    FakeHost host;
    {
      FakeDrafter drafter(host, factory(), FakeConfig());
      std::mt19937 random(5);
      host.fail_allocation(nth);
      for (int i = 0; i < 3; ++i) {
        const int s = drafter.begin(random_text(random, 50, 700));
        if (drafter.sequence_status(s) != SPECD_OK) {
          EXPECT_EQ(drafter.sequence_status(s), SPECD_E_EXHAUSTED);
          continue;
        }
        for (int step = 0; step < 4; ++step) {
          drafter.commit(s, random_text(random, 50, 700));
          EXPECT_EQ(drafter.propose(s).call_status, SPECD_OK);
        }
      }
    }
    ASSERT_TRUE(host.violations().empty()) << nth << ": " << host.violations()[0];
  }
}

TEST(Suffix, text_of_every_kind_stays_within_what_the_caps_say) {
  std::mt19937 random(6);
  for (const uint32_t max_positions : {1u, 64u, 2000u, 60000u}) {
    for (const int alphabet : {2, 50, 30000}) {
      FakeHost host;
      host.target().max_positions = max_positions;
      FakeDrafter drafter(host, factory(), FakeConfig());
      host.set_memory_quota(drafter.caps().bytes_per_seq);
      const int s = drafter.begin(random_text(random, alphabet, (max_positions + 1) / 2));
      ASSERT_EQ(drafter.sequence_status(s), SPECD_OK) << max_positions << " of " << alphabet;
      for (uint32_t left = max_positions / 2; left > 0;) {
        const uint32_t n = std::min(left, 1 + max_positions / 40);
        drafter.commit(s, random_text(random, alphabet, n));
        ASSERT_EQ(drafter.sequence_status(s), SPECD_OK) << max_positions << " of " << alphabet;
        left -= n;
      }
    }
  }
}

// --- the corpus ---

std::string words_of_refused_corpus(const std::string& path, int max_tokens = 1000) {
  FakeHost host;
  const FakeDrafter drafter(host, factory(),
                            FakeConfig().set("corpus", path).set("max_corpus_tokens", max_tokens));
  EXPECT_EQ(drafter.status(), SPECD_E_CONFIG) << path;
  EXPECT_TRUE(host.violations().empty());
  if (host.reports().empty()) return "";
  EXPECT_NE(host.reports()[0].text.find(path), std::string::npos) << host.reports()[0].text;
  return host.reports()[0].text;
}

TEST(Suffix, corpus_that_is_missing_or_no_file_is_refused_naming_it) {
  EXPECT_NE(words_of_refused_corpus("/nowhere/corpus.jsonl").find("No such file"),
            std::string::npos);
  EXPECT_NE(words_of_refused_corpus("/tmp").find("expected a regular file"), std::string::npos);
  EXPECT_NE(words_of_refused_corpus("/dev/zero").find("expected a regular file"),
            std::string::npos);
  const TempFile taken("");
  const std::string pipe = taken.path() + ".pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_NE(words_of_refused_corpus(pipe).find("expected a regular file"), std::string::npos);
  ::unlink(pipe.c_str());
}

TEST(Suffix, corpus_of_other_content_is_refused_naming_the_byte) {
  const struct {
    std::string content;
    const char* words;
  } cases[] = {
      {"", "holds no token"},
      {"[]\n[ ]\n", "holds no token"},
      {std::string("\x7f") + "ELF\x02", "at byte 0: expected '['"},
      {std::string("[1, 2]\n\0\0", 9), "at byte 7: expected '['"},
      {"[1, 2", "ends at byte 5 inside a list"},
      {"[1,, 2]", "at byte 3: expected a token id, found ','"},
      {"[1,]", "at byte 3: expected a token id, found ']'"},
      {"[1 2]", "at byte 3: expected ',' or ']', found '2'"},
      {"[-1]", "at byte 1: expected a token id, found '-'"},
      {"[1.5]", "at byte 2: expected ',' or ']', found '.'"},
      {"[[1]]", "at byte 1: expected a token id, found '['"},
      {"{\"ids\": [1]}", "at byte 0: expected '['"},
      {"hello", "found 'h'"},
      {"[999, 1000]", "ends at byte 10 is not below the model's vocabulary of 1000"},
      {"[99999999999999999999999999999999]", "is not below the model's vocabulary"},
      {"[" + std::string(30000, '1') + "]", "shorten it or raise max_corpus_tokens"},
  };
  for (const auto& c : cases) {
    const TempFile file(c.content);
    const std::string words = words_of_refused_corpus(file.path());
    EXPECT_NE(words.find(c.words), std::string::npos) << words << "\nexpected: " << c.words;
  }
}

TEST(Suffix, huge_corpus_is_refused_before_it_is_read) {
  const TempFile file("[1, 2]\n");
  // a sparse file: no block is written
  ASSERT_EQ(::truncate(file.path().c_str(), off_t{1} << 40), 0);
  const std::string words = words_of_refused_corpus(file.path());
  EXPECT_NE(words.find("has 1099511627776 bytes, expected at most"), std::string::npos) << words;
  const TempFile many(corpus_text({TokenList(11, 4)}));
  EXPECT_NE(words_of_refused_corpus(many.path(), 10).find("more than max_corpus_tokens (10)"),
            std::string::npos);
}

TEST(Suffix, corpus_over_the_quota_is_left_out_and_drafting_goes_on) {
  std::mt19937 random(12);
  const TempFile file(corpus_text({random_text(random, 900, 20000)}));
  FakeHost host;
  host.set_memory_quota(400000);
  {
    FakeDrafter drafter(host, factory(), FakeConfig().set("corpus", file.path()));
    ASSERT_EQ(drafter.status(), SPECD_OK);
    const int s = drafter.begin({1, 2, 3, 4, 1, 2});
    EXPECT_EQ(drafter.propose(s).token, (TokenList{3, 4}));
  }
  // The thread has ended with the drafter.
  ASSERT_EQ(host.logs().size(), 1u);
  EXPECT_EQ(host.logs()[0].severity, static_cast<uint32_t>(SPECD_LOG_WARN));
  EXPECT_NE(host.logs()[0].text.find("not used: the host refused"), std::string::npos)
      << host.logs()[0].text;
  EXPECT_TRUE(host.violations().empty());
}

TEST(Suffix, build_of_the_corpus_is_given_up_at_once_when_the_drafter_goes) {
  std::mt19937 random(13);
  TokenList document(1000000);
  for (int32_t& token : document) token = static_cast<int32_t>(random() % 900);
  const TempFile file(corpus_text({document}));
  FakeHost host;
  std::chrono::steady_clock::time_point from;
  {
    FakeDrafter drafter(host, factory(), FakeConfig().set("corpus", file.path()));
    ASSERT_EQ(drafter.status(), SPECD_OK);
    // No sequence waits for it either.
    EXPECT_EQ(drafter.propose(drafter.begin({1, 2, 3, 4, 1, 2})).token, (TokenList{3, 4}));
    from = std::chrono::steady_clock::now();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - from, std::chrono::seconds(1));
  EXPECT_TRUE(host.logs().empty()) << host.logs()[0].text;  // the build was not done
  EXPECT_TRUE(host.violations().empty());
}

TEST(Suffix, memory_of_a_corpus_is_what_the_caps_say_at_most) {
  std::mt19937 random(14);
  constexpr int kTokens = 50'000;
  const TempFile file(corpus_text({{998, 997, 997, 997}, random_text(random, 900, kTokens)}));
  FakeHost host;
  // Exactly the number needed: each document adds one to its tokens.
  FakeDrafter drafter(
      host, factory(),
      FakeConfig().set("corpus", file.path()).set("max_corpus_tokens", 4 + kTokens + 2));
  ASSERT_NO_FATAL_FAILURE(wait_for_corpus(drafter, {998}));
  EXPECT_LT(host.memory_used(), drafter.caps().bytes_fixed);
}

// --- the configuration ---

TEST(Suffix, values_out_of_range_are_refused_naming_the_key) {
  const std::pair<const char*, double> bad[] = {{"max_spec_factor", -0.5},
                                                {"max_spec_offset", 65},
                                                {"min_token_prob", 1.01},
                                                {"min_token_prob", std::nan("")}};
  for (const auto& [key, value] : bad) {
    FakeHost host;
    FakeDrafter drafter(host, factory(), FakeConfig().set(key, value));
    EXPECT_EQ(drafter.status(), SPECD_E_CONFIG) << key;
    ASSERT_EQ(host.reports().size(), 1u);
    EXPECT_NE(host.reports()[0].text.find(key), std::string::npos) << host.reports()[0].text;
  }
  const std::pair<const char*, int> whole[] = {{"max_spec_tokens", 0},   {"max_spec_tokens", 65},
                                               {"max_tree_depth", 1},    {"max_tree_depth", 257},
                                               {"max_branches", 0},      {"max_branches", 17},
                                               {"max_corpus_tokens", 0}, {"corpus", 4}};
  for (const auto& [key, value] : whole) {
    FakeHost host;
    FakeDrafter drafter(host, factory(), FakeConfig().set(key, value));
    EXPECT_EQ(drafter.status(), SPECD_E_CONFIG) << key;
    ASSERT_EQ(host.reports().size(), 1u);
    EXPECT_NE(host.reports()[0].text.find(key), std::string::npos) << host.reports()[0].text;
  }
}

TEST(Suffix, caps_say_point_masses_that_attach_anywhere_and_trees_where_asked_for) {
  FakeHost host;
  for (const int branches : {1, 2}) {
    FakeDrafter drafter(host, factory(), FakeConfig().set("max_branches", branches));
    EXPECT_EQ(drafter.caps().draft_rule, static_cast<uint32_t>(SPECD_RULE_POINT_MASS));
    EXPECT_EQ(drafter.caps().tree_mode,
              static_cast<uint32_t>(branches == 1 ? SPECD_TREE_CHAIN : SPECD_TREE_VARIABLE));
    EXPECT_EQ(drafter.caps().needs, static_cast<uint32_t>(SPECD_NEED_HOST_TOKENS));
    EXPECT_EQ(drafter.caps().attach_modes,
              static_cast<uint32_t>(SPECD_ATTACH_FRESH | SPECD_ATTACH_TOKENS | SPECD_ATTACH_COLD));
  }
}

}  // namespace
}  // namespace specd
