// Checks the promises of update() to drafters that read hidden states: rows without a gap from
// position 0 (with `cold`: from where it begins), finite states, and the target's top-1 after probe
// nodes. At the end of a sequence it appends one line to a file: rows seen, a hash of all
// (position, token, next token, states), and the numbers of probes whose answer was right and
// wrong. Its proposals are bigrams, each node accompanied by a probe. It counts its rows with the
// metrics service, under names that the host must sanitize.
#include <specd/sdk/plugin.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <string>
#include <unordered_map>

namespace {

using specd::sdk::Context;
using specd::sdk::Error;

uint64_t mix(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

class Taps final : public specd::sdk::Drafter {
 public:
  static constexpr const char* kSchema = R"({"type": "object", "additionalProperties": false,
    "required": ["file"], "properties": {"file": {"type": "string"}, "cold": {"type": "boolean"},
    "second_tap": {"type": "integer", "minimum": 0, "maximum": 2}}})";

  static void describe(const Context& context, specd_drafter_caps& caps) {
    // After the final norm, and the input of an early layer: deliberately out of order.
    caps.taps[0] = context.target->n_layers + 1;
    caps.taps[1] = static_cast<uint32_t>(context.config.i64("second_tap", 1, 0, 2));
    caps.n_taps = 2;
    caps.top_k = 1;
    caps.attach_modes = SPECD_ATTACH_FRESH;
    if (context.config.boolean("cold", false)) caps.attach_modes |= SPECD_ATTACH_COLD;
    caps.needs |= SPECD_NEED_HIDDEN | SPECD_NEED_PROBES;
    caps.tree_mode = SPECD_TREE_VARIABLE;
    caps.max_nodes = 2;
    caps.max_depth = 2;
  }
  explicit Taps(const Context& context)
      : Drafter(context),
        file_(context.config.required_string("file")),
        hidden_size_(context.target->hidden_size),
        rows_seen_(*this, SPECD_METRIC_COUNTER, "rows", "Rows of update()\nand \\ nothing else."),
        rows_now_(*this, SPECD_METRIC_GAUGE, "rows_total", "Rows of the last update().") {}

  struct Sequence {
    explicit Sequence(Taps&) {}
    std::unordered_map<int32_t, int32_t> follower;
    int32_t rows = 0;
    int32_t next = 0;  // position of the next row; -1 = that of the first row
    uint64_t hash = 0;
    int32_t probed = -1;    // token of the last probe, below the root
    int32_t promised = -1;  // top-1 after it, when the probe's token was committed
    int right = 0, wrong = 0;
  };

  void begin(Sequence& s, const specd::sdk::Begin& in) {
    if (in.attach_mode == SPECD_ATTACH_COLD) s.next = -1;
    for (std::size_t i = 1; i < in.tokens.size; ++i) s.follower[in.tokens[i - 1]] = in.tokens[i];
  }

  void update(Sequence& s, const specd::sdk::Rows& rows) {
    const int32_t* top = s.probed >= 0 ? rows.top(1) : nullptr;
    rows_seen_.record(rows.size());
    rows_now_.record(rows.size());
    for (int32_t r = 0; r < rows.size(); ++r) {
      const specd::sdk::Row row = rows[r];
      if (s.next < 0) s.next = row.position;
      if (row.position != s.next) {
        throw Error(SPECD_E_PRECONDITION, "row at position " + std::to_string(row.position) +
                                              ", expected " + std::to_string(s.next));
      }
      ++s.next;
      ++s.rows;
      uint64_t bits = mix(static_cast<uint64_t>(row.position)) + static_cast<uint64_t>(row.token);
      bits = mix(bits) + static_cast<uint64_t>(row.next_token);
      for (uint32_t tap = 0; tap < 2; ++tap) {
        const float* state = rows.hidden(tap, r);
        for (uint32_t i = 0; i < hidden_size_; ++i) {
          if (!std::isfinite(state[i])) throw Error(SPECD_E_PRECONDITION, "a state is not finite");
          uint32_t word = 0;
          std::memcpy(&word, &state[i], sizeof(word));
          bits = mix(bits) + word;
        }
      }
      s.hash += bits;
      if (s.promised >= 0) {
        ++(row.next_token == s.promised ? s.right : s.wrong);
        s.promised = -1;
      }
      // The root's row: was the probe's token the next one?
      if (r == 0 && s.probed >= 0 && row.next_token == s.probed) {
        if (top == nullptr) throw Error(SPECD_E_PRECONDITION, "no top-1 for a node that asked");
        s.promised = *top;
      }
      s.follower[row.token] = row.next_token;
    }
    s.probed = -1;
  }

  void propose(Sequence& s, specd::sdk::Proposal& out) {
    const auto next = s.follower.find(out.root_token());
    if (out.budget() < 2 || next == s.follower.end()) return;
    // An ordinary node that is wrong, then the guess as a probe, whose answer is checked later.
    out.push(next->second == 0 ? 1 : 0, -1);
    out.push(next->second, -1, SPECD_NODE_PROBE | SPECD_NODE_WANT_TOP);
    s.probed = next->second;
  }

  void end(Sequence& s, uint32_t) noexcept {
    std::ofstream(file_, std::ios::app)
        << s.rows << ' ' << s.hash << ' ' << s.right << ' ' << s.wrong << '\n';
  }

 private:
  std::string file_;
  uint32_t hidden_size_;
  specd::sdk::Metric rows_seen_, rows_now_;
};

}  // namespace

SPECD_SDK_PLUGIN("Writes down hidden states and probes",
                 specd::sdk::drafter<Taps>("taps", "records"))
