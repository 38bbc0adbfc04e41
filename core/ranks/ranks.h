// The ranks that share models, seen from the lead.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "core/device/collective.h"
#include "core/model/lead.h"
#include "core/model/split.h"

namespace specd {

// A rank's ends of its groups.
struct RankEnd {
  std::unique_ptr<Collective> all, stage;
  Split split;

  // `n_ranks`: of a stage.
  RankEnd(std::unique_ptr<Collective> end, int32_t n_ranks, int32_t n_stages)
      : all(std::move(end)),
        stage(all->group(all->rank() / n_ranks * n_ranks, n_ranks)),
        split(split_of(all->rank(), n_ranks, n_stages)) {}
  RankLinks links() const { return {.all = all.get(), .stage = stage.get(), .split = split}; }
};

class Ranks {
 public:
  virtual ~Ranks() = default;  // ends the others
  virtual Lead& lead() = 0;
};

// The lead of ranks that are processes of their own; they obey until it ends.
class RankProcesses final : public Ranks {
 public:
  explicit RankProcesses(RankEnd end) : end_(std::move(end)), lead_(end_.links()) {}
  ~RankProcesses() override { lead_.stop(); }
  Lead& lead() override { return lead_; }

 private:
  const RankEnd end_;
  Lead lead_;
};

}  // namespace specd
