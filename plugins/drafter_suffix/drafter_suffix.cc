// Suffix decoding: copies what most often followed the end of the text, in the text and in a
// corpus. The longer the match and the more certain its continuation, the longer the draft.
// See README.md.
#include <algorithm>
#include <memory>

#include "corpus.h"
#include "corpus_file.h"
#include "cursor.h"
#include "draft_search.h"
#include "settings.h"
#include "suffix_automaton.h"

namespace specd::suffix {
namespace {

// Text, states and edges for prose and code, including the slack of growing tables.
constexpr uint64_t kBytesPerToken = 160;
// The first chunk of each kind, needed for the shortest text.
constexpr uint64_t kFirstBytes = 32768;

class Suffix final : public sdk::Drafter {
 public:
  static constexpr const char* kSchema = Settings::kSchema;

  static void describe(const sdk::Context& context, specd_drafter_caps& caps) {
    const Settings settings(context.config);
    static const char* const kServices[] = {SPECD_SERVICE_MEMORY};
    caps.services = kServices;
    caps.n_services = 1;
    caps.max_nodes = caps.max_depth = settings.max_spec_tokens;
    if (settings.trees()) caps.tree_mode = SPECD_TREE_VARIABLE;
    caps.bytes_per_seq = kFirstBytes + uint64_t{context.target->max_positions} * kBytesPerToken;
    if (!settings.corpus.empty()) {
      // The tokens as read, in addition to the index.
      caps.bytes_fixed =
          (1 << 17) + corpus_tokens_max(settings.corpus, settings.max_corpus_tokens) *
                          (kBytesPerToken + 2 * sizeof(int32_t));
    }
  }

  explicit Suffix(const sdk::Context& context)
      : Drafter(context),
        settings_(context.config),
        salt_(context.host->now_ns(context.host)),
        memory_(*this) {
    if (settings_.corpus.empty()) return;
    corpus_ = std::make_unique<Corpus>(
        *this, settings_.corpus,
        read_corpus(settings_.corpus, settings_.max_corpus_tokens, target().vocab_size, memory_),
        salt_, settings_.max_tree_depth);
  }

  void activated() {
    if (corpus_ != nullptr) corpus_->start();
  }
  void deactivated() noexcept {
    if (corpus_ != nullptr) corpus_->stop();
  }

  struct Sequence {
    explicit Sequence(Suffix& drafter)
        : own(drafter.memory_, drafter.salt_, drafter.settings_.max_tree_depth) {}
    SuffixAutomaton own;
    const SuffixAutomaton* corpus = nullptr;  // null until it is ready
    Cursor cursor;                            // position in the corpus
  };

  void begin(Sequence& sequence, const sdk::Begin& in) {
    // Reserve the prompt and a typical answer at once, within what the quota allows for.
    sequence.own.reserve(std::min<std::size_t>(in.tokens.size + 1024, target().max_positions));
    for (std::size_t i = 0; i < in.tokens.size; ++i) {
      if (i + 8 < in.tokens.size) sequence.own.expect(in.tokens[i + 8]);
      if (i + 4 < in.tokens.size) sequence.own.expect_next(in.tokens[i + 4]);
      append(sequence, in.tokens[i]);
    }
    sequence.own.expect_search();
  }

  void update(Sequence& sequence, const sdk::Rows& rows) {
    const int32_t n = rows.size();
    for (int32_t r = 0; r < n; ++r) sequence.own.expect(rows[r].next_token);
    for (int32_t r = 0; r < n; ++r) {
      const sdk::Row row = rows[r];
      sdk::expect(row.position >= 0 && static_cast<uint32_t>(row.position) < sequence.own.size(),
                  "update(): a gap in the positions");
      if (r + 1 < n) sequence.own.expect_next(rows[r + 1].next_token);
      if (static_cast<uint32_t>(row.position) + 1 == sequence.own.size()) {
        append(sequence, row.next_token);
      }
    }
    sequence.own.expect_search();
  }

  void propose(Sequence& sequence, sdk::Proposal& out) {
    const SuffixAutomaton& own = sequence.own;
    const uint64_t left = out.sampling()->tokens_left;
    if (left <= 1 || own.size() >= target().max_positions) return;
    const uint64_t room =
        std::min({static_cast<uint64_t>(out.budget()), uint64_t{settings_.max_spec_tokens},
                  left - 1, uint64_t{target().max_positions - own.size()}});
    DraftSearch search(settings_, target().eos_token, static_cast<uint32_t>(room));
    const uint32_t longest = own.depth() - 1;
    const auto& suffixes = own.suffixes();
    for (std::size_t i = 0; i + 1 < suffixes.size(); ++i) {
      if (suffixes[i + 1].length >= longest) continue;  // all its strings are longer
      search.try_match(own, suffixes[i].state, std::min(suffixes[i].length, longest));
    }
    meet_corpus(sequence);
    if (sequence.corpus != nullptr) {
      uint32_t match = sequence.cursor.length();
      for (uint32_t state = sequence.cursor.state(); match > 0;) {
        search.try_match(*sequence.corpus, state, match);
        state = (*sequence.corpus)[state].link;
        match = (*sequence.corpus)[state].length;
      }
    }
    push(search.best(), out);
  }

 private:
  void append(Sequence& sequence, int32_t token) {
    sequence.own.append(token);
    if (sequence.corpus != nullptr) sequence.cursor.advance(*sequence.corpus, token);
  }

  // When the corpus is first ready, looks up the end of the text in it.
  void meet_corpus(Sequence& sequence) const {
    if (sequence.corpus != nullptr || corpus_ == nullptr) return;
    sequence.corpus = corpus_->index();
    if (sequence.corpus == nullptr) return;
    const uint32_t n = sequence.own.size();
    for (uint32_t at = n - std::min(n, sequence.own.depth()); at < n; ++at) {
      sequence.cursor.advance(*sequence.corpus, sequence.own.token(at));
    }
  }

  void push(const Draft& draft, sdk::Proposal& out) const {
    for (uint32_t i = 0; i < draft.size; ++i) {
      if (settings_.trees()) {
        out.push(draft.token[i], draft.parent[i]);
      } else {
        out.push(draft.token[i]);
      }
    }
  }

  const Settings settings_;
  const uint64_t salt_;
  sdk::HostAllocator<int32_t> memory_;
  std::unique_ptr<Corpus> corpus_;
};

}  // namespace
}  // namespace specd::suffix

SPECD_SDK_PLUGIN("Suffix decoding: drafts from the statistics of earlier text and of a corpus",
                 specd::sdk::drafter<specd::suffix::Suffix>(
                     "suffix", "suffix automaton over the request and an optional corpus"))
