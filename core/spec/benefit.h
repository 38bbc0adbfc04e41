// Whether the drafts of a route pay: measured time per token with them against that without them.
//
// Both are measured side by side, since a step's time depends on the length of the texts and on what else the
// machine does: after a run of steps with drafts some go without (a probe), and then the two are compared.
// Batches of different sizes are never compared, since drafts that pay for one sequence may cost where
// the forward of many takes its time by the row.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace specd {

struct MeasuredStep {
  uint64_t ns = 0;          // from the calls of drafters before it to those after it
  int32_t n_running = 0;    // its sequences, of any route
  int32_t n_sequences = 0;  // those of the route
  int32_t n_tokens = 0;     // that these got
  bool has_drafts = false;  // whether the drafter was asked for any
  bool has_prompt = false;  // computed a prompt, too: says nothing
  // Whether a probe may begin: not while that of another route runs, since each would take the other's drafts
  // for its own.
  bool may_probe = true;
};

struct BenefitVerdict {
  bool pays = true;
  double ns_with = 0, ns_without = 0;  // time per token of a sequence: medians of steps
  int32_t n_running_min = 0, n_running_max = 0;
  int32_t n_slower = 0;  // verdicts in a row, for batches of this size, that they do not pay
};

// [step] No clock, no thread, no allocation.
class Benefit {
 public:
  static constexpr size_t kDraftSteps = 64;  // that are compared
  static constexpr size_t kProbeSteps = 16;
  // Steps with drafts between two probes: at first as many as are compared, twice as many after each
  // probe that finds them worth it.
  static constexpr uint64_t kIntervalMax = 4096;
  // Drafts that take longer than this times the time without them do not pay. Less is noise.
  static constexpr double kSlower = 1.05;

  // Notes a step with sequences of the route. A verdict at the end of each probe.
  std::optional<BenefitVerdict> record(const MeasuredStep& step);
  // Whether the next step shall go without drafts of the route.
  bool is_probing() const { return n_left_ > 0; }

 private:
  // Batches of 2^i to 2^(i+1) - 1 sequences.
  struct Size {
    std::array<MeasuredStep, kDraftSteps> with{};     // the last steps with drafts: a ring
    std::array<MeasuredStep, kProbeSteps> without{};  // the steps of the probe
    size_t n_without = 0;
    uint64_t n_steps = 0;             // with drafts since the last probe
    uint64_t interval = kDraftSteps;  // of them until the next one
    int32_t n_slower = 0;             // see BenefitVerdict
  };

  void count_down();
  BenefitVerdict end_probe();

  std::array<Size, 31> sizes_;
  size_t probed_ = 0;   // index of the size whose probe runs
  int32_t n_left_ = 0;  // steps of the probe, of any size and kind
};

}  // namespace specd
