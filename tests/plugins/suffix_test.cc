#include <gtest/gtest.h>
#include <specd/sdk/fake_host.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <random>
#include <thread>

#include "suffix_oracle.h"

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

// A file that is gone with the test.
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

// Text with repeats at every scale.
TokenList next_piece(std::mt19937& random, const TokenList& text, int alphabet) {
  TokenList piece;
  if (text.size() > 4 && random() % 2 == 0) {
    const std::size_t from = random() % text.size();
    const std::size_t n = 1 + random() % std::min<std::size_t>(9, text.size() - from);
    piece.assign(text.begin() + static_cast<long>(from),
                 text.begin() + static_cast<long>(from + n));
  } else {
    for (unsigned i = 0; i <= random() % 4; ++i) {
      piece.push_back(static_cast<int32_t>(random() % static_cast<unsigned>(alphabet)));
    }
  }
  return piece;
}
TokenList random_text(std::mt19937& random, int alphabet, std::size_t n) {
  TokenList text;
  while (text.size() < n) {
    for (const int32_t t : next_piece(random, text, alphabet)) text.push_back(t);
  }
  text.resize(n);
  return text;
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

// The index of a corpus is ready when the text `probe` has a draft: it has none of its own.
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
    // A budget of none never shows that the corpus is ready; then nothing else is shown either.
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

}  // namespace
}  // namespace specd
