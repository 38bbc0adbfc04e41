// The ranks that share models, seen from the lead.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "core/device/collective.h"
#include "core/device/cuda_ranks.h"
#include "core/model/lead.h"
#include "core/model/split.h"

namespace specd {

// A rank's ends of its groups.
struct RankEnd {
  std::unique_ptr<Collective> all, stage;
  // Null on CPUs; `stage_devices` also where the stage is all, or this rank alone.
  std::unique_ptr<Exchanges> devices, stage_devices;
  Split split;

  // `n_ranks`: of a stage.
  RankEnd(std::unique_ptr<Collective> end, int32_t n_ranks, int32_t n_stages)
      : all(std::move(end)),
        stage(all->group(all->rank() / n_ranks * n_ranks, n_ranks)),
        split(split_of(all->rank(), n_ranks, n_stages)) {}
  // Joins the ranks' devices; all ranks call it, before they load. Close it before the device is.
  Status open(Device& device) {
    if (device.is_host()) return Status();
    SPECD_TRY(devices, join_cuda_ranks(device, *all));
    if (split.n_stages == 1 || split.n_ranks == 1) return Status();
    SPECD_TRY(stage_devices, join_cuda_ranks(device, *stage));
    return Status();
  }
  void close() {
    stage_devices.reset();
    devices.reset();
  }
  RankLinks links() const {
    return {.all = all.get(),
            .stage = stage.get(),
            .tensors_all = devices.get(),
            .tensors_stage = split.n_stages == 1 ? devices.get() : stage_devices.get(),
            .split = split};
  }
};

class Ranks {
 public:
  virtual ~Ranks() = default;  // ends the others
  // Joins this rank's device to those of the others, which do the same. It must outlive this.
  Status open(Device& device) {
    SPECD_OK_OR_RETURN(end().open(device));
    lead_.emplace(end().links());
    return Status();
  }
  // REQUIRES open().
  Lead& lead() { return *lead_; }

 private:
  virtual RankEnd& end() = 0;  // of rank 0
  std::optional<Lead> lead_;
};

// The lead of ranks that are processes of their own; they obey until it ends.
class RankProcesses final : public Ranks {
 public:
  explicit RankProcesses(RankEnd end) : end_(std::move(end)) {}
  ~RankProcesses() override { Lead(end_.links()).stop(); }

 private:
  RankEnd& end() override { return end_; }
  RankEnd end_;
};

}  // namespace specd
