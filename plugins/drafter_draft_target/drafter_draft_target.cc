// Draft-target speculation: a small model of the same tokens guesses one token after the other. The
// daemon runs the model (service model/1); this plugin decides what to feed it. See README.md.
#include <specd/sdk/model.h>
#include <specd/sdk/plugin.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace specd::draft_target {
namespace {

// Rows that a sequence needs before its first guess when it has drafted in the step before: the
// last committed token, and the last draft as well when all were accepted, since that one was never
// fed.
constexpr std::size_t kSteadyRows = 2;

struct Settings {
  std::string model;
  uint32_t draft_tokens;
  double p_min;
  bool use_target_noise;
  std::size_t prefill_chunk;

  explicit Settings(const sdk::Config& config)
      : model(config.required_string("model")),
        draft_tokens(static_cast<uint32_t>(config.i64("draft_tokens", 4, 1, SPECD_MAX_TREE_DEPTH))),
        p_min(config.f64("p_min", 0, 0, 1)),
        use_target_noise(config.boolean("use_target_noise", true)),
        prefill_chunk(static_cast<std::size_t>(config.i64("prefill_chunk", 256, 1, 65536))) {}
};

class DraftTarget final : public sdk::Drafter {
 public:
  static constexpr const char* kSchema = R"({
    "type": "object",
    "additionalProperties": false,
    "required": ["model"],
    "properties": {
      "model": {"type": "string"},
      "draft_tokens": {"type": "integer", "minimum": 1, "maximum": 64},
      "p_min": {"type": "number", "minimum": 0, "maximum": 1},
      "use_target_noise": {"type": "boolean"},
      "prefill_chunk": {"type": "integer", "minimum": 1, "maximum": 65536}
    }
  })";

  static void describe(const sdk::Context& context, specd_drafter_caps& caps) {
    static const char* const kServices[] = {SPECD_SERVICE_MEMORY, SPECD_SERVICE_MODEL};
    caps.max_nodes = caps.max_depth = Settings(context.config).draft_tokens;
    caps.attach_modes = SPECD_ATTACH_FRESH | SPECD_ATTACH_TOKENS;
    caps.services = kServices;
    caps.n_services = 2;
    caps.bytes_per_seq = uint64_t{context.target->max_positions} * sizeof(int32_t);
  }

  explicit DraftTarget(const sdk::Context& context)
      : Drafter(context),
        settings_(context.config),
        memory_(*this),
        model_(*this, settings_.model),
        wants_{settings_.use_target_noise, settings_.use_target_noise && settings_.p_min > 0,
               settings_.use_target_noise ? 0u : 1u} {}

  struct Sequence {
    explicit Sequence(DraftTarget& drafter) : tokens(drafter.memory_) {}
    std::vector<int32_t, sdk::HostAllocator<int32_t>> tokens;  // committed
    // What the model's session holds: the first `kept` tokens, then the rows of `round`.
    uint32_t kept = 0;
    std::vector<int32_t> round;
    bool over = false;  // the model cannot follow this text any more
  };

  void begin(Sequence& sequence, const sdk::Begin& in) {
    const uint64_t room = in.tokens.size + in.sampling->tokens_left;
    sequence.tokens.reserve(
        std::min<uint64_t>(room, std::max<uint64_t>(target().max_positions, in.tokens.size)));
    sequence.tokens.assign(in.tokens.begin(), in.tokens.end());
  }

  void update(Sequence& sequence, const sdk::Rows& rows) {
    for (int32_t r = 0; r < rows.size(); ++r) {
      const sdk::Row row = rows[r];
      const auto next = static_cast<std::size_t>(row.position) + 1;
      sdk::expect(row.position >= 0 && next <= sequence.tokens.size(),
                  "update(): a gap in the positions");
      if (next == sequence.tokens.size()) sequence.tokens.push_back(row.next_token);
    }
  }

  void propose_all(const specd_batch& batch, std::vector<sdk::Draft<Sequence>>& drafts) {
    keep_committed(batch, drafts);
    std::vector<Active> active = catch_up(batch, drafts);
    while (!active.empty()) {
      rows_.clear(batch.n_seqs, wants_);
      for (Active& each : active) {
        const int32_t output = rows_.add(each.draft->proposal.seq_index(), each.token, true);
        each.output = output;
      }
      model_.forward(batch, rows_);
      for (Active& each : active) {
        if (rows_.status(each.draft->proposal.seq_index()) == SPECD_OK) {
          each.draft->sequence->round.push_back(each.token);
        }
      }
      take_guesses(active);
    }
  }

 private:
  // A sequence that is being drafted.
  struct Active {
    sdk::Draft<Sequence>* draft;
    int32_t output;  // among those of the last forward
    int32_t token;   // the guess that comes from it
  };

  // The session keeps what it shares with the committed text. Comparing tokens covers acceptance,
  // rejection, texts that were cut short and sessions whose pages the daemon has taken.
  void keep_committed(const specd_batch& batch, std::vector<sdk::Draft<Sequence>>& drafts) {
    std::vector<uint32_t> kept = model_.lengths(batch);
    std::vector<std::vector<uint32_t>> paths(batch.n_seqs);
    for (sdk::Draft<Sequence>& draft : drafts) {
      Sequence& sequence = *draft.sequence;
      const uint32_t s = draft.proposal.seq_index();
      // Should this call fail half-way, the next one finds no round and feeds again.
      const std::vector<int32_t> round = std::exchange(sequence.round, {});
      if (kept[s] == sequence.kept) {
        // The last committed token is fed in any case: the first guess comes from its row.
        for (std::size_t i = 0;
             i < round.size() && sequence.kept + i + 1 < sequence.tokens.size() &&
             round[i] == sequence.tokens[sequence.kept + i];
             ++i) {
          paths[s].push_back(static_cast<uint32_t>(i));
        }
      }
      kept[s] = std::min(kept[s], static_cast<uint32_t>(sequence.tokens.size()) - 1);
      sequence.kept = kept[s] + static_cast<uint32_t>(paths[s].size());
    }
    model_.keep(batch, kept, paths);
  }

  // Feeds committed tokens that the sessions lack: all of them where they are few, else as many as
  // the chunk allows. Returns the sequences that are through, with their first guess.
  std::vector<Active> catch_up(const specd_batch& batch,
                               std::vector<sdk::Draft<Sequence>>& drafts) {
    std::size_t left = settings_.prefill_chunk;
    std::vector<std::pair<sdk::Draft<Sequence>*, std::size_t>> fed;
    std::vector<Active> active;
    rows_.clear(batch.n_seqs, wants_);
    for (sdk::Draft<Sequence>& draft : drafts) {
      const Sequence& sequence = *draft.sequence;
      const std::size_t missing = sequence.tokens.size() - sequence.kept;
      if (sequence.over) continue;
      const std::size_t n = missing <= kSteadyRows ? missing : std::min(missing, left);
      if (n == 0) continue;
      if (missing > kSteadyRows) left -= n;
      int32_t output = -1;
      for (std::size_t i = 0; i < n; ++i) {
        const bool wanted = i + 1 == missing && draft.proposal.budget() > 0;
        output = rows_.add(draft.proposal.seq_index(), sequence.tokens[sequence.kept + i], wanted);
      }
      fed.emplace_back(&draft, n);
      if (output >= 0) active.push_back({&draft, output, -1});
    }
    if (rows_.empty()) return active;
    model_.forward(batch, rows_);

    std::vector<uint32_t> kept = model_.lengths(batch);
    std::vector<std::vector<uint32_t>> paths(batch.n_seqs);
    for (const auto& [draft, n] : fed) {
      const uint32_t s = draft->proposal.seq_index();
      if (rows_.status(s) == SPECD_E_UNSUPPORTED) draft->sequence->over = true;
      if (rows_.status(s) != SPECD_OK) continue;
      for (std::size_t i = 0; i < n; ++i) paths[s].push_back(static_cast<uint32_t>(i));
      draft->sequence->kept += static_cast<uint32_t>(n);
    }
    model_.keep(batch, kept, paths);
    take_guesses(active);
    return active;
  }

  // The guesses of the last forward join the proposals; sequences that are done leave `active`.
  void take_guesses(std::vector<Active>& active) {
    active.erase(
        std::remove_if(active.begin(), active.end(), [this](Active& each) { return !guess(each); }),
        active.end());
  }

  // False when the sequence is not to be drafted further.
  bool guess(Active& each) {
    const bool noise = settings_.use_target_noise;
    each.token = noise ? rows_.token(each.output) : rows_.top_token(each.output, 0);
    if (each.token < 0) return false;  // the sequence failed: no pages, or the end of the context
    sdk::Proposal& proposal = each.draft->proposal;
    if (!proposal.push(each.token) || proposal.size() == proposal.budget()) return false;
    if (settings_.p_min <= 0) return true;
    const float logprob = noise ? rows_.logprob(each.output) : rows_.top_logprob(each.output, 0);
    return std::exp(logprob) >= settings_.p_min;
  }

  Settings settings_;
  sdk::HostAllocator<int32_t> memory_;
  sdk::Model model_;
  sdk::ModelRows::Wants wants_;
  sdk::ModelRows rows_;
};

}  // namespace
}  // namespace specd::draft_target

SPECD_SDK_PLUGIN("Draft-target: a small model that the daemon runs guesses for the large one",
                 specd::sdk::drafter<specd::draft_target::DraftTarget>(
                     "chain", "a chain of the draft model's own draws"))
