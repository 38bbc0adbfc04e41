#include <specd/sdk/plugin.h>

#include <unordered_map>

// Guesses that every token will be followed by what followed it last time.
class Bigram final : public specd::sdk::Drafter {
 public:
  static constexpr const char* kSchema = R"({"type": "object", "additionalProperties": false,
    "properties": {"draft_tokens": {"type": "integer", "minimum": 1, "maximum": 64}}})";
  static void describe(const specd::sdk::Context& context, specd_drafter_caps& caps) {
    const int64_t n = context.config.i64("draft_tokens", 4, 1, 64);
    caps.max_nodes = caps.max_depth = static_cast<uint32_t>(n);
  }
  using Drafter::Drafter;

  struct Sequence {
    explicit Sequence(Bigram&) {}
    std::unordered_map<int32_t, int32_t> follower;
  };
  void begin(Sequence& s, const specd::sdk::Begin& in) {
    for (std::size_t i = 1; i < in.tokens.size; ++i) s.follower[in.tokens[i - 1]] = in.tokens[i];
  }
  void update(Sequence& s, const specd::sdk::Rows& rows) {
    for (int32_t r = 0; r < rows.size(); ++r) s.follower[rows[r].token] = rows[r].next_token;
  }
  void propose(Sequence& s, specd::sdk::Proposal& out) {
    auto it = s.follower.find(out.root_token());
    while (it != s.follower.end() && out.push(it->second)) it = s.follower.find(it->second);
  }
};

SPECD_SDK_PLUGIN("Bigrams", specd::sdk::drafter<Bigram>("bigram", "what followed last time"))
