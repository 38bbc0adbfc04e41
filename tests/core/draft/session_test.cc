// Sessions without device, model or plugin, against a slow oracle that keeps whole texts and notes
// for every cache slot which text it belongs to.
#include "core/draft/session.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace specd {
namespace {

constexpr int32_t kPages = 10, kParts = 4, kVocab = 3, kContext = 150;
using Text = std::vector<int32_t>;

class SessionTest : public testing::Test {
 protected:
  SessionTest() {
    ModelConfig target;
    target.n_layers = kParts;
    target.n_kv_heads = 1;
    target.head_dim = 16;
    target_kv_.emplace(KvStore::create(*cpu_, target, kernels::KvDType::kF32, kPages).value());
    ModelConfig draft = target;
    draft.n_layers = 1;
    kv_.owner = "draft model 'draft'";
    kv_.positions_max = kContext;
    kv_.store.emplace(KvStore::inside(*target_kv_, draft, kernels::KvDType::kF32).value());
    for (auto& use : uses_) {
      use = std::make_shared<DraftUse>();
      use->kv = &kv_;
      sessions_.open(use);
    }
  }
  void SetUp() override { ASSERT_EQ(kv_.store->parts_per_page(), kParts); }

  // One call that feeds a chain of tokens.
  Status feed(uint64_t step, uint64_t seq_id, const Text& tokens, size_t use = 0) {
    sessions_.protect(step);
    Status status = sessions_.extend(*uses_[use], seq_id, tokens.data(), nullptr,
                                     static_cast<uint32_t>(tokens.size()));
    sessions_.forward_is_over(*uses_[use]);
    return status;
  }
  bool has(uint64_t seq_id, size_t use = 0) const { return uses_[use]->sessions.contains(seq_id); }

  std::unique_ptr<CpuDevice> cpu_ = CpuDevice::create("scalar", 1).value();
  std::optional<KvStore> target_kv_;
  DraftKv kv_;
  PagePool pool_{kPages};
  DraftSessions sessions_{pool_};
  std::shared_ptr<DraftUse> uses_[2];
};

TEST_F(SessionTest, the_least_recently_drafted_goes_first_and_the_newest_breaks_ties) {
  const Text page(kernels::kPageTokens * kParts, 1);  // of the pool
  for (const auto& [step, seq_id] :
       std::vector<std::pair<uint64_t, uint64_t>>{{10, 1}, {12, 2}, {11, 3}, {11, 4}, {13, 5}}) {
    ASSERT_TRUE(feed(step, seq_id, page).ok());
  }
  EXPECT_EQ(sessions_.n_reclaimable(), 5);
  std::vector<uint64_t> evicted;
  while (sessions_.reclaim(1) > 0) {
    for (uint64_t id = 1; id <= 5; ++id) {
      if (!has(id) && std::find(evicted.begin(), evicted.end(), id) == evicted.end()) {
        evicted.push_back(id);
      }
    }
  }
  EXPECT_EQ(evicted, (std::vector<uint64_t>{1, 4, 3, 2, 5}));
  EXPECT_EQ(pool_.n_free(), kPages);
}

TEST_F(SessionTest, kv_with_pages_of_its_own_takes_none_of_the_targets_and_gives_it_none) {
  DraftKv own;
  own.owner = "draft model 'own'";
  own.positions_max = kContext;
  ModelConfig shape;
  shape.n_layers = shape.n_kv_heads = 1;
  shape.head_dim = 16;
  own.store.emplace(KvStore::create(*cpu_, shape, kernels::KvDType::kF32, 3).value());
  own.own_pages = std::make_unique<PagePool>(3);
  auto use = std::make_shared<DraftUse>();
  use->kv = &own;
  sessions_.open(use);
  const auto feed_own = [&](uint64_t step, uint64_t seq_id, size_t n) {
    const Text text(n, 1);
    sessions_.protect(step);
    const Status status =
        sessions_.extend(*use, seq_id, text.data(), nullptr, static_cast<uint32_t>(n));
    sessions_.forward_is_over(*use);
    return status;
  };
  ASSERT_TRUE(feed(1, 7, Text(kernels::kPageTokens * kParts * kPages, 1)).code() ==
              Code::kUnsupported);
  ASSERT_TRUE(feed(1, 7, Text(100, 1)).ok());
  const int32_t free = pool_.n_free();
  ASSERT_TRUE(feed_own(1, 1, 16).ok());
  ASSERT_TRUE(feed_own(2, 2, 32).ok());
  EXPECT_EQ(own.own_pages->n_free(), 0);
  EXPECT_EQ(own.pages_held, 3);
  EXPECT_EQ(pool_.n_free(), free);
  // For the target's pages only the other one's sessions go.
  EXPECT_EQ(sessions_.n_reclaimable(), kPages - free);
  EXPECT_EQ(sessions_.reclaim(kPages), kPages - free);
  EXPECT_EQ(own.own_pages->n_free(), 0);
  // For its own pages, its own: the least recently drafted first.
  ASSERT_TRUE(feed(9, 7, Text(100, 1)).ok());
  EXPECT_EQ(feed_own(3, 3, 32).message(), "2 KV pages are needed, 1 are free")
      << "the second drafted in the step before";
  EXPECT_FALSE(use->sessions.contains(3));
  EXPECT_FALSE(use->sessions.contains(1)) << "the least recently drafted went all the same";
  ASSERT_TRUE(feed_own(5, 3, 32).ok());
  EXPECT_FALSE(use->sessions.contains(2));
  EXPECT_TRUE(has(7));
  use.reset();
  sessions_.collect_closed();
  EXPECT_EQ(own.own_pages->n_free(), 3);
  EXPECT_EQ(own.pages_held, 0);
}

TEST_F(SessionTest, what_drafted_in_this_step_or_the_last_is_not_taken_for_another_draft) {
  const Text page(kernels::kPageTokens * kParts, 1);
  ASSERT_TRUE(feed(7, 1, page).ok());
  ASSERT_TRUE(feed(8, 2, page).ok());
  ASSERT_TRUE(feed(9, 3, page).ok());
  std::vector<int32_t> others;
  ASSERT_TRUE(pool_.take(pool_.n_free(), others));
  ASSERT_TRUE(feed(9, 4, page).ok());
  EXPECT_FALSE(has(1));
  const Status status = feed(9, 5, page);
  EXPECT_EQ(status.code(), Code::kExhausted);
  EXPECT_EQ(status.message(), "1 KV pages are needed, 0 are free");
  EXPECT_TRUE(has(2) && has(3) && has(4));
  EXPECT_FALSE(has(5));
  EXPECT_EQ(sessions_.n_reclaimable(), 3) << "the target may have all of them";
  pool_.release(others);
}

TEST_F(SessionTest, a_closed_use_gives_its_pages_back_and_an_ended_sequence_does_in_all_uses) {
  ASSERT_TRUE(feed(1, 1, {1, 2}, 0).ok());
  ASSERT_TRUE(feed(1, 1, {1, 2}, 1).ok());
  ASSERT_TRUE(feed(1, 2, {1, 2}, 1).ok());
  EXPECT_EQ(pool_.n_free(), kPages - 3);
  sessions_.end(1);
  EXPECT_EQ(pool_.n_free(), kPages - 1);
  uses_[1].reset();
  EXPECT_EQ(pool_.n_free(), kPages - 1) << "not before the step thread looks";
  sessions_.collect_closed();
  EXPECT_EQ(pool_.n_free(), kPages);
  EXPECT_EQ(kv_.pages_held, 0);
}

TEST_F(SessionTest, rows_that_cannot_stand_are_refused_in_words_and_change_nothing) {
  ASSERT_TRUE(feed(1, 1, {1, 2, 0}).ok());
  DraftSession& session = uses_[0]->sessions.at(1);
  const auto refused = [&](const Text& tokens, const Text& parents, Code code,
                           const std::string& words) {
    const Status status =
        sessions_.extend(*uses_[0], 1, tokens.data(), parents.empty() ? nullptr : parents.data(),
                         static_cast<uint32_t>(tokens.size()));
    EXPECT_EQ(status.code(), code) << words;
    EXPECT_EQ(status.message(), words);
    EXPECT_EQ(session.n_rows(), 3);
    EXPECT_EQ(session.pool_pages.size(), 1u);
  };
  refused({1, 1}, {2, 4}, Code::kInvalidArgument,
          "row 4 of the round has parent 4, expected -1..3");
  refused({1}, {-2}, Code::kInvalidArgument, "row 3 of the round has parent -2, expected -1..2");
  refused(Text(kContext, 1), {}, Code::kUnsupported,
          "position 150 is beyond the context of draft model 'draft', 150");
  EXPECT_EQ(DraftSessions::check_keep(*uses_[0], 1, 1, {}).message(),
            "kept is 1, expected at most 0");
  const uint32_t path[] = {0, 2};
  EXPECT_EQ(DraftSessions::check_keep(*uses_[0], 1, 0, path).message(),
            "row 2 of the round, which has 3, is not a child of row 0");
  EXPECT_EQ(DraftSessions::check_keep(*uses_[0], 9, 0, path).message(),
            "row 0 of the round, which has 0, is not a child of row -1");
}

// What a session should hold.
struct Oracle {
  Text kept;
  std::vector<std::pair<int32_t, int32_t>> round;  // parent, token
  int64_t n_pages = 0;                             // of the pool
  uint64_t last_step = 0;

  Text text_of(int32_t row) const {
    Text tail;
    for (; row >= 0; row = round[to_size(row)].first)
      tail.insert(tail.begin(), round[to_size(row)].second);
    Text text = kept;
    text.insert(text.end(), tail.begin(), tail.end());
    return text;
  }
  int64_t pages_needed(size_t rows) const {
    const int64_t pages = (static_cast<int64_t>(kept.size() + rows) + kernels::kPageTokens - 1) /
                          kernels::kPageTokens;
    return std::max<int64_t>((pages + kParts - 1) / kParts, n_pages);
  }
};

class SessionOracleTest : public SessionTest {
 protected:
  using Key = std::pair<size_t, uint64_t>;  // use, seq_id

  DraftSession& session_of(Key key) { return uses_[key.first]->sessions.at(key.second); }
  int64_t oracle_free() const {
    int64_t n = kPages - static_cast<int64_t>(of_target_.size());
    for (const auto& [key, oracle] : oracles_) n -= oracle.n_pages;
    return n;
  }
  // Evicts by the rule, searching all sessions each time.
  void oracle_reclaim(int64_t n, uint64_t step, const Key* but) {
    while (n > 0) {
      const Oracle* first = nullptr;
      Key victim;
      for (const auto& [key, oracle] : oracles_) {
        if (oracle.n_pages == 0 || (step != 0 && oracle.last_step + 1 >= step)) continue;
        if (but != nullptr && key == *but) continue;
        const bool is_before = first == nullptr || oracle.last_step < first->last_step ||
                               (oracle.last_step == first->last_step && key.second > victim.second);
        if (!is_before) continue;
        first = &oracle;
        victim = key;
      }
      if (first == nullptr) return;
      n -= first->n_pages;
      oracles_.erase(victim);
    }
  }
  // A chain or a tree of n rows.
  void extend(Key key, uint64_t step, size_t n, bool tree) {
    Oracle& oracle = oracles_[key];
    Text tokens, parents;
    for (size_t i = 0; i < n; ++i) {
      const auto row = static_cast<int32_t>(oracle.round.size() + i);
      tokens.push_back(static_cast<int32_t>(random_() % kVocab));
      parents.push_back(tree ? static_cast<int32_t>(random_() % (to_size(row) + 1)) - 1 : row - 1);
    }
    sessions_.protect(step);
    const Status status =
        sessions_.extend(*uses_[key.first], key.second, tokens.data(),
                         tree ? parents.data() : nullptr, static_cast<uint32_t>(n));
    sessions_.forward_is_over(*uses_[key.first]);

    Oracle wanted = oracle;
    for (size_t i = 0; i < n; ++i) wanted.round.emplace_back(parents[i], tokens[i]);
    for (size_t i = 0; i < wanted.round.size(); ++i) {
      if (wanted.text_of(static_cast<int32_t>(i)).size() <= kContext) continue;
      ASSERT_EQ(status.code(), Code::kUnsupported);
      if (oracle.n_pages == 0) oracles_.erase(key);
      return;
    }
    wanted.n_pages = wanted.pages_needed(wanted.round.size());
    wanted.last_step = step;
    const int64_t missing = wanted.n_pages - oracle.n_pages;
    if (missing > oracle_free()) oracle_reclaim(missing - oracle_free(), step, &key);
    if (missing > oracle_free()) {
      ASSERT_EQ(status.code(), Code::kExhausted);
      ++n_exhausted_;
      if (oracle.n_pages == 0) oracles_.erase(key);
      return;
    }
    ASSERT_TRUE(status.ok()) << status.to_string();
    oracles_[key] = wanted;
    const DraftSession& session = session_of(key);
    for (size_t i = oracle.round.size() - n; i < wanted.round.size(); ++i) {
      const auto row = static_cast<int32_t>(i);
      cache_[session.table.physical(session.kept + row)] = wanted.text_of(row);
    }
  }
  void move(const KvMoves& moves) {
    ASSERT_EQ(moves.from.size(), moves.to.size());
    for (size_t i = 0; i < moves.from.size(); ++i) cache_[moves.to[i]] = cache_[moves.from[i]];
  }
  void keep(Key key) {
    Oracle& oracle = oracles_.at(key);
    std::vector<uint32_t> path;
    for (uint32_t row = 0; row < oracle.round.size(); ++row) {
      const int32_t last = path.empty() ? -1 : static_cast<int32_t>(path.back());
      if (oracle.round[row].first == last && random_() % 3 != 0) path.push_back(row);
    }
    size_t kept = oracle.kept.size();
    if (path.empty()) kept -= random_() % (kept + 1);
    ASSERT_TRUE(
        DraftSessions::check_keep(*uses_[key.first], key.second, static_cast<uint32_t>(kept), path)
            .ok());
    KvMoves moves;
    DraftSessions::keep(*uses_[key.first], key.second, static_cast<uint32_t>(kept), path, moves);
    move(moves);
    n_moved_ += moves.from.size();
    Text text = path.empty() ? oracle.kept : oracle.text_of(static_cast<int32_t>(path.back()));
    if (path.empty()) text.resize(kept);
    oracle.kept = text;
    oracle.round.clear();
  }
  // Continues the kept text, often as the round guessed.
  void trim(Key key) {
    Oracle& oracle = oracles_.at(key);
    Text text = oracle.kept;
    if (!oracle.round.empty() && random_() % 4 != 0) {
      text = oracle.text_of(static_cast<int32_t>(random_() % oracle.round.size()));
    }
    for (size_t n = 1 + random_() % 3; n > 0; --n) {
      text.push_back(static_cast<int32_t>(random_() % kVocab));
    }
    KvMoves moves;
    DraftSessions::trim(session_of(key), text, moves);
    move(moves);
    n_moved_ += moves.from.size();
    // The kept part of the text: as far as the rows, in order, continue it; never the last token.
    Text kept = oracle.kept;
    int32_t last = -1;
    for (size_t row = 0; row < oracle.round.size() && kept.size() + 1 < text.size(); ++row) {
      if (oracle.round[row] != std::pair(last, text[kept.size()])) continue;
      kept.push_back(oracle.round[row].second);
      last = static_cast<int32_t>(row);
    }
    oracle.kept = kept;
    oracle.round.clear();
    ASSERT_TRUE(std::equal(kept.begin(), kept.end(), text.begin()));
  }
  void expect_as_the_oracle() {
    size_t n_sessions = 0;
    int32_t held = 0;
    std::set<int32_t> pages(of_target_.begin(), of_target_.end());
    for (size_t use = 0; use < 2; ++use) {
      for (const auto& [seq_id, session] : uses_[use]->sessions) {
        ++n_sessions;
        held += static_cast<int32_t>(session.pool_pages.size());
        pages.insert(session.pool_pages.begin(), session.pool_pages.end());
      }
    }
    ASSERT_EQ(n_sessions, oracles_.size());
    ASSERT_EQ(pages.size(), static_cast<size_t>(held) + of_target_.size())
        << "a page is held twice";
    ASSERT_EQ(pool_.n_free(), kPages - static_cast<int32_t>(pages.size()));
    ASSERT_EQ(kv_.pages_held, held);
    for (const auto& [key, oracle] : oracles_) {
      ASSERT_TRUE(has(key.second, key.first));
      const DraftSession& session = session_of(key);
      ASSERT_EQ(session.pool_pages.size(), static_cast<size_t>(oracle.n_pages));
      ASSERT_EQ(to_size(session.kept), oracle.kept.size());
      ASSERT_EQ(to_size(session.n_rows()), oracle.round.size());
      for (size_t p = 0; p < oracle.kept.size(); ++p) {
        ASSERT_EQ(cache_[session.table.physical(static_cast<int32_t>(p))],
                  Text(oracle.kept.begin(), oracle.kept.begin() + static_cast<ptrdiff_t>(p) + 1));
      }
      for (int32_t row = 0; row < session.n_rows(); ++row) {
        const Text text = oracle.text_of(row);
        ASSERT_EQ(cache_[session.table.physical(session.kept + row)], text);
        ASSERT_EQ(to_size(session.kept + session.depth[to_size(row)]) + 1, text.size());
      }
    }
  }

  std::mt19937 random_{5};
  std::map<Key, Oracle> oracles_;
  std::map<int32_t, Text> cache_;   // by slot: the text up to and with the token in it
  std::vector<int32_t> of_target_;  // pages that sequences of the target hold
  size_t n_moved_ = 0, n_exhausted_ = 0;
};

TEST_F(SessionOracleTest, every_slot_holds_what_the_session_says_and_pages_balance) {
  size_t n_evicted = 0;
  uint64_t step = 1;
  for (int round = 0; round < 20000; ++round) {
    step += random_() % 8 == 0 ? 1 : 0;
    const Key key(random_() % 2, 1 + random_() % 6);
    const bool is_there = oracles_.contains(key);
    const size_t before = oracles_.size();
    switch (random_() % 8) {
      case 0:
      case 1:
        extend(key, step, 1 + random_() % 40, false);
        break;
      case 2:
      case 3:
        extend(key, step, 1 + random_() % 12, true);
        break;
      case 4:
        if (is_there) keep(key);
        break;
      case 5:
        if (is_there) trim(key);
        break;
      case 6: {
        const auto n = static_cast<int32_t>(random_() % 3);
        const int64_t free = oracle_free();
        oracle_reclaim(n, 0, nullptr);
        ASSERT_EQ(sessions_.reclaim(n), oracle_free() - free);
        break;
      }
      default:
        pool_.release(of_target_);
        if (random_() % 2 == 0) {
          ASSERT_TRUE(pool_.take(std::min<int32_t>(pool_.n_free(), 8), of_target_));
        }
        if (random_() % 8 == 0) {
          sessions_.end(key.second);
          oracles_.erase({0, key.second});
          oracles_.erase({1, key.second});
        }
    }
    if (HasFatalFailure()) return;
    n_evicted += before > oracles_.size() ? before - oracles_.size() : 0;
    ASSERT_NO_FATAL_FAILURE(expect_as_the_oracle()) << "round " << round;
  }
  EXPECT_GT(n_moved_, 1000u);
  EXPECT_GT(n_exhausted_, 100u);
  EXPECT_GT(n_evicted, 1000u);
}

}  // namespace
}  // namespace specd
