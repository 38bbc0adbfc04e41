// Prompt lookup: copies what followed an earlier occurrence of the last tokens. Has two families of
// parameters, as defined by two engines; see README.md.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>

#include "match_pool.h"
#include "suffix_index.h"
#include "tenant_pools.h"
#include "text.h"

namespace specd::prompt_lookup {
namespace {

constexpr int64_t kMaxDraft = SPECD_MAX_TREE_DEPTH;
constexpr const char* kSuffixKeys[] = {"num_speculative_tokens", "prompt_lookup_min",
                                       "prompt_lookup_max"};
constexpr const char* kPoolKeys[] = {"max_draft_len", "max_matching_ngram_size", "is_keep_all",
                                     "is_use_oldest", "is_public_pool",          "max_pool_tokens"};

struct Settings {
  bool pool = false;  // which family
  uint32_t draft = 0;
  uint32_t min = 0, max = 0;  // n-gram sizes; the pool family uses max only
  bool oldest = true, shared = true;
  uint64_t pool_tokens = 0;

  explicit Settings(const sdk::Config& config) {
    const char* suffix_key = nullptr;
    const char* pool_key = nullptr;
    for (const char* key : kSuffixKeys) {
      if (config.has(key)) suffix_key = key;
    }
    for (const char* key : kPoolKeys) {
      if (config.has(key)) pool_key = key;
    }
    if (suffix_key != nullptr && pool_key != nullptr) {
      throw sdk::Error(SPECD_E_CONFIG,
                       std::string(suffix_key) + " and " + pool_key +
                           " belong to different families: use either num_speculative_tokens, "
                           "prompt_lookup_min, prompt_lookup_max, or max_draft_len, "
                           "max_matching_ngram_size, is_keep_all, is_use_oldest, is_public_pool, "
                           "max_pool_tokens");
    }
    pool = pool_key != nullptr;
    if (pool) {
      draft = static_cast<uint32_t>(config.i64("max_draft_len", 4, 1, kMaxDraft));
      max = static_cast<uint32_t>(
          config.i64("max_matching_ngram_size", 2, 1, MatchPool::kLongestPattern));
      // validated only; match_pool.h explains why it has no effect
      config.boolean("is_keep_all", true);
      oldest = config.boolean("is_use_oldest", true);
      shared = config.boolean("is_public_pool", true);
      pool_tokens =
          static_cast<uint64_t>(config.i64("max_pool_tokens", 262144, 1024, int64_t{1} << 26));
      return;
    }
    draft = static_cast<uint32_t>(config.i64("num_speculative_tokens", 5, 1, kMaxDraft));
    // Both missing: 5 and 5. One missing: the same as the other.
    const int64_t one = config.has("prompt_lookup_min")
                            ? config.i64("prompt_lookup_min", 5, 1, SuffixIndex::kLongest)
                            : config.i64("prompt_lookup_max", 5, 1, SuffixIndex::kLongest);
    min = static_cast<uint32_t>(config.i64("prompt_lookup_min", one, 1, SuffixIndex::kLongest));
    max = static_cast<uint32_t>(config.i64("prompt_lookup_max", one, 1, SuffixIndex::kLongest));
    if (min > max) {
      throw sdk::Error(SPECD_E_CONFIG, "prompt_lookup_min: expected at most prompt_lookup_max (" +
                                           std::to_string(max) + "), found " + std::to_string(min));
    }
  }
};

class PromptLookup final : public sdk::Drafter {
 public:
  static constexpr const char* kSchema = R"({
    "type": "object",
    "additionalProperties": false,
    "properties": {
      "num_speculative_tokens": {"type": "integer", "minimum": 1, "maximum": 64},
      "prompt_lookup_min": {"type": "integer", "minimum": 1, "maximum": 64},
      "prompt_lookup_max": {"type": "integer", "minimum": 1, "maximum": 64},
      "max_draft_len": {"type": "integer", "minimum": 1, "maximum": 64},
      "max_matching_ngram_size": {"type": "integer", "minimum": 1, "maximum": 16},
      "is_keep_all": {"type": "boolean"},
      "is_use_oldest": {"type": "boolean"},
      "is_public_pool": {"type": "boolean"},
      "max_pool_tokens": {"type": "integer", "minimum": 1024, "maximum": 67108864}
    }
  })";

  static void describe(const sdk::Context& context, specd_drafter_caps& caps) {
    const Settings settings(context.config);
    static const char* const kServices[] = {SPECD_SERVICE_MEMORY};
    caps.max_nodes = caps.max_depth = settings.draft;
    caps.services = kServices;
    caps.n_services = 1;
    // Text: 12 bytes a token. Tables: at most 3/8 full right after they grew.
    const uint64_t sizes = settings.max - (settings.pool ? 0 : settings.min - 1);
    const uint64_t entry = settings.pool ? (settings.oldest ? 24 : 52) : 8;
    const uint64_t per_token = 12 + sizes * entry * 8 / 3;
    const uint64_t positions = context.target->max_positions;
    if (settings.pool && settings.shared) {
      caps.bytes_fixed = settings.pool_tokens * per_token;
      caps.bytes_per_seq = positions * 12;
    } else {
      caps.bytes_per_seq = positions * per_token;
    }
  }

  explicit PromptLookup(const sdk::Context& context)
      : Drafter(context),
        settings_(context.config),
        positions_max_(context.target->max_positions),
        hasher_(
            context.host->now_ns(context.host),
            std::max(SuffixIndex::kLongest, MatchPool::kLongestPattern + MatchPool::kLongestMatch)),
        memory_(*this) {
    if (settings_.pool && settings_.shared) {
      shared_pools_.emplace(memory_, pool_options(settings_.pool_tokens));
    }
  }

  struct Sequence {
    explicit Sequence(PromptLookup& drafter)
        : text(std::make_shared<Text>(drafter.memory_)),
          index(drafter.memory_, drafter.settings_.min, drafter.settings_.max) {
      if (drafter.settings_.pool && !drafter.settings_.shared) {
        pool = std::make_shared<MatchPool>(drafter.memory_, drafter.pool_options(0));
      }
    }
    std::shared_ptr<Text> text;  // a shared pool may keep it beyond the sequence's life
    SuffixIndex index;
    std::shared_ptr<MatchPool> pool;  // of its tenant, or its own
    MatchPool::Reader reader;
  };

  void begin(Sequence& sequence, const sdk::Begin& in) {
    if (shared_pools_.has_value()) sequence.pool = shared_pools_->of(in.tenant);
    // Reserve the prompt and a typical answer at once, within what the quota allows for.
    const std::size_t room = std::min<std::size_t>(in.tokens.size + 1024, positions_max_);
    sequence.text->reserve(room);
    if (!settings_.pool) sequence.index.reserve(room);
    for (const int32_t token : in.tokens) append(sequence, token);
    take_in(sequence);
  }

  void update(Sequence& sequence, const sdk::Rows& rows) {
    for (int32_t r = 0; r < rows.size(); ++r) {
      const sdk::Row row = rows[r];
      sdk::expect(row.position >= 0 && static_cast<uint32_t>(row.position) < sequence.text->size(),
                  "update(): a gap in the positions");
      if (static_cast<uint32_t>(row.position) + 1 == sequence.text->size()) {
        append(sequence, row.next_token);
      }
    }
    take_in(sequence);
  }

  void propose(Sequence& sequence, sdk::Proposal& out) {
    const Text& text = *sequence.text;
    const uint32_t n = text.size();
    if (settings_.pool) {
      // Counted as in the original: one token fewer than may still be emitted.
      const uint64_t left = out.sampling()->tokens_left;
      const uint64_t room = std::min<uint64_t>(left == 0 ? 0 : left - 1, settings_.draft);
      if (room == 0) return;
      MatchPool::Match match;
      if (!guard_pool(
              [&] { match = sequence.pool->look_up(hasher_, sequence.text, sequence.reader); })) {
        return;
      }
      push(out, match.tokens, static_cast<uint32_t>(std::min<uint64_t>(match.size, room)));
      return;
    }
    const uint32_t from = sequence.index.match_end();
    if (from == 0 || n >= target().max_positions) return;
    const uint32_t room = std::min(settings_.draft, target().max_positions - n);
    push(out, text.data() + from, std::min(room, n - from));
  }

 private:
  MatchPool::Options pool_options(uint64_t tokens) const {
    return {settings_.draft, settings_.max, settings_.oldest, tokens};
  }

  void append(Sequence& sequence, int32_t token) {
    if (settings_.pool) {
      sequence.text->append(hasher_, token);
    } else {
      sequence.index.append(hasher_, *sequence.text, token);
    }
  }

  void take_in(Sequence& sequence) {
    if (!settings_.pool) return;
    guard_pool([&] { sequence.pool->take_in(hasher_, sequence.text, sequence.reader); });
    if (shared_pools_.has_value()) shared_pools_->make_room();
  }

  // Shared pools that reach the quota are cleared and refilled, so that a full one does not end
  // drafting for all sequences. A private pool fails its sequence.
  template <class Body>
  bool guard_pool(Body&& body) {
    if (!shared_pools_.has_value()) {
      body();
      return true;
    }
    try {
      body();
      return true;
    } catch (const sdk::Error& error) {
      if (error.status() != SPECD_E_EXHAUSTED) throw;
      shared_pools_->clear();
      log(SPECD_LOG_WARN, std::string("the shared pools were emptied: ") + error.what());
      return false;
    }
  }

  static void push(sdk::Proposal& out, const int32_t* tokens, uint32_t n) {
    for (uint32_t i = 0; i < n && out.push(tokens[i]); ++i) {
    }
  }

  Settings settings_;
  const uint32_t positions_max_;
  GramHasher hasher_;
  sdk::HostAllocator<int32_t> memory_;
  std::optional<TenantPools> shared_pools_;
};

}  // namespace
}  // namespace specd::prompt_lookup

SPECD_SDK_PLUGIN("Prompt lookup: drafts are copied from text already seen",
                 specd::sdk::drafter<specd::prompt_lookup::PromptLookup>(
                     "ngram", "n-gram lookup in the text of the request, or in a pool"))
