// Lookahead decoding: in every step the target also computes guesses of its next tokens;
// see README.md.
#include <algorithm>
#include <string>

#include "ngram_pool.h"
#include "settings.h"
#include "window.h"

namespace specd::lookahead {
namespace {

class Lookahead final : public sdk::Drafter {
 public:
  static constexpr const char* kSchema = R"({
    "type": "object",
    "additionalProperties": false,
    "properties": {
      "window": {"type": "integer", "minimum": 1, "maximum": 65},
      "ngram": {"type": "integer", "minimum": 2, "maximum": 65},
      "guesses": {"type": "integer", "minimum": 0, "maximum": 1024},
      "pool_from_prompt": {"type": "boolean"},
      "max_window_size": {"type": "integer", "minimum": 1, "maximum": 65},
      "max_ngram_size": {"type": "integer", "minimum": 1, "maximum": 65},
      "max_verification_set_size": {"type": "integer", "minimum": 0, "maximum": 1024},
      "max_pool_ngrams": {"type": "integer", "minimum": 1, "maximum": 1048576}
    }
  })";

  static void describe(const sdk::Context& context, specd_drafter_caps& caps) {
    const Settings settings(context.config);
    static const char* const kServices[] = {SPECD_SERVICE_MEMORY};
    caps.tree_mode = SPECD_TREE_VARIABLE;
    caps.needs |= SPECD_NEED_PROBES;
    caps.top_k = 1;
    caps.max_nodes = std::max(settings.nodes(), 1u);
    caps.max_depth = std::max(settings.depth(), 1u);
    caps.services = kServices;
    caps.n_services = 1;
    const uint64_t cells = uint64_t{settings.window_depth() + 1} * settings.ngram;
    caps.bytes_fixed = settings.nodes() * sizeof(Node);
    // While the text grows, its old array exists beside the new one.
    caps.bytes_per_seq = sizeof(int32_t) * (2 * uint64_t{context.target->max_positions} + cells) +
                         NgramPool::bytes_max(settings.ngram, settings.max_pool_ngrams);
  }

  explicit Lookahead(const sdk::Context& context)
      : Drafter(context),
        settings_(context.config),
        salt_(context.host->now_ns(context.host)),
        memory_(*this),
        guesses_(memory_) {
    guesses_.reserve(settings_.nodes());
  }

  void activated() {
    sdk::expect((grant().needs & SPECD_NEED_PROBES) != 0,
                "activate(): SPECD_NEED_PROBES was requested but not granted");
    if (grant().max_nodes < settings_.window_nodes()) {
      throw sdk::Error(SPECD_E_CONFIG,
                       "the window takes " + std::to_string(settings_.window_nodes()) +
                           " draft nodes and the route allows " +
                           std::to_string(grant().max_nodes) + ": raise its draft_nodes_max (to " +
                           std::to_string(settings_.nodes()) +
                           ", with all guesses), or choose a smaller window or smaller n-grams");
    }
  }

  struct Sequence {
    explicit Sequence(Lookahead& drafter)
        : text(drafter.memory_),
          window(drafter.memory_, drafter.settings_.window, drafter.settings_.ngram),
          pool(drafter.memory_, drafter.settings_.ngram, drafter.settings_.guesses,
               drafter.settings_.max_pool_ngrams, drafter.salt_) {}
    HostVector<int32_t> text;
    Window window;
    NgramPool pool;
  };

  void begin(Sequence& sequence, const sdk::Begin& in) {
    // Reserve the prompt and a typical answer at once.
    sequence.text.reserve(std::min<std::size_t>(in.tokens.size + 1024, target().max_positions));
    for (const int32_t token : in.tokens) append(sequence, token);
  }

  void update(Sequence& sequence, const sdk::Rows& rows) {
    // The window's n-grams are inserted before those of the text, as in LADE.
    if (sequence.window.answered(rows)) {
      if (!sequence.window.filling()) {
        for (uint32_t w = 0; w < sequence.window.columns(); ++w) {
          sequence.pool.insert(sequence.window.ngram(w));
        }
      }
      sequence.window.advance();
    }
    for (int32_t r = 0; r < rows.size(); ++r) {
      const sdk::Row row = rows[r];
      sdk::expect(
          row.position >= 0 && static_cast<std::size_t>(row.position) < sequence.text.size(),
          "update(): a gap in the positions");
      if (static_cast<std::size_t>(row.position) + 1 == sequence.text.size()) {
        append(sequence, row.next_token);
      }
    }
  }

  void propose(Sequence& sequence, sdk::Proposal& out) {
    if (settings_.ngram == 1 || sequence.text.empty()) return;
    Window& window = sequence.window;
    const int64_t above = int64_t{target().max_positions} - 1 - out.root_position();
    const auto room = static_cast<uint32_t>(std::clamp<int64_t>(above, 0, grant().max_depth));
    const auto fits = [&] {
      return settings_.window_depth() <= room &&
             out.sampling()->tokens_left >= window.tokens_to_pay() &&
             out.size() + static_cast<int64_t>(window.nodes()) <= out.budget();
    };
    // Guesses come first: they gain tokens, and the first of them is placed where its KV will stay.
    // A window that is filling has none yet.
    if (!(window.filling() && fits())) {
      push_guesses(sequence.pool, std::min(room, settings_.levels()), out);
    }
    if (!fits()) return;
    window.start(sequence.text.data(), sequence.text.size());
    window.push(out);
  }

 private:
  struct Node {
    int32_t token, parent;
  };

  void append(Sequence& sequence, int32_t token) {
    HostVector<int32_t>& text = sequence.text;
    if (text.size() == text.capacity()) {
      // The last doubling stops at the model's last position.
      const std::size_t most = std::max<std::size_t>(target().max_positions, text.size() + 1);
      text.reserve(std::min(most, 2 * text.size() + 64));
    }
    text.push_back(token);
    if (settings_.pool_from_prompt && settings_.ngram > 1 && text.size() >= settings_.ngram) {
      sequence.pool.insert(text.data() + text.size() - settings_.ngram);
    }
  }

  // A prefix trie below the root, newest guess first: a prefix shared by guesses is tested once.
  void push_guesses(const NgramPool& pool, uint32_t depth, sdk::Proposal& out) {
    guesses_.clear();
    pool.each(out.root_token(), [&](const int32_t* guess) {
      int32_t parent = -1;
      for (uint32_t i = 0; i < depth; ++i) {
        const auto known = std::find_if(guesses_.begin(), guesses_.end(), [&](const Node& node) {
          return node.parent == parent && node.token == guess[i];
        });
        if (known != guesses_.end()) {
          parent = static_cast<int32_t>(known - guesses_.begin());
          continue;
        }
        const int32_t node = out.push(guess[i], parent);
        if (node < 0) return;
        guesses_.push_back({guess[i], parent});
        parent = node;
      }
    });
  }

  Settings settings_;
  uint64_t salt_;
  sdk::HostAllocator<int32_t> memory_;
  HostVector<Node> guesses_;  // of the current sequence
};

}  // namespace
}  // namespace specd::lookahead

SPECD_SDK_PLUGIN("Lookahead decoding: n-grams from parallel Jacobi iterations of the target",
                 specd::sdk::drafter<specd::lookahead::Lookahead>(
                     "window", "a window of guesses in every pass, and the n-grams it has found"))
