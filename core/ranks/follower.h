// A rank that follows: loads its part of the models that the lead names, then computes what the lead
// computes (lead.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/device/collective.h"
#include "core/device/device.h"
#include "core/device/staging.h"
#include "core/model/kv_store.h"
#include "core/model/transformer.h"
#include "core/ranks/graphs.h"
#include "core/ranks/ranks.h"

namespace specd {

// A model that the ranks share. All ranks have the same list; the first is the target.
struct SharedModel {
  std::string path;
  ModelConfig config;
  kernels::KvDType kv_dtype = kernels::KvDType::kBF16;
  int32_t rows_max = 0, logits_rows_max = 0;
};

class Follower {
 public:
  // What run() allocates before it obeys; grows with the forwards.
  static constexpr uint64_t kColumnBytes = uint64_t{1} << 20;

  // All must outlive this.
  Follower(Device& device, const RankLinks& links, std::span<const SharedModel> models)
      : device_(device),
        ranks_(*links.all),
        links_(links),
        models_(models),
        loaded_(models.size()),
        graphs_(device) {}

  // Obeys until the lead says stop, or until the group fails, and returns why. Memory that is short during
  // a step fails the group, because the others wait.
  Status run();

 private:
  struct Loaded {
    std::unique_ptr<Transformer> transformer;
    std::optional<KvStore> kv;
  };
  Status obey(std::span<const int32_t> words);
  Status load(size_t model);
  Status add_tap(uint32_t point);
  Status make_pages(size_t model, int32_t n_pages);
  Status forward(size_t model, std::span<const int32_t> words);
  Status move(Loaded& model, std::span<const int32_t> words);
  void clear_columns() {
    if (columns_.clear()) graphs_.clear();  // they have moved
  }

  Device& device_;
  Collective& ranks_;
  const RankLinks links_;
  const std::span<const SharedModel> models_;
  std::vector<Loaded> loaded_;
  Graphs graphs_;
  Staging columns_;
  ForwardRows rows_;
};

// Joins the rank's device to those of the others, then obeys as a Follower.
Status follow_on(Device& device, RankEnd& end, std::span<const SharedModel> models);

}  // namespace specd
