// Steps as device graphs: the work of a step is captured when its shape occurs for the second time,
// and is launched as one graph from then on.
//
//   first time    upload, parts, announce, forward    parts record their calls
//   second time   capture { upload, parts, announce, forward }, launch
//   later         host's part of the records, announce, launch
//
// Where ranks share the model, the others follow only what runs: what parts and announce() tell them in a
// capture waits for the launch.
//
// A step that cannot be captured is submitted without a graph.
// [step] all functions.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "core/base/status.h"
#include "core/device/device.h"
#include "core/model/lead.h"
#include "core/model/transformer.h"
#include "core/ranks/stream_part.h"

namespace specd {

// Adds what determines the work of a forward.
inline void add_shape(StepShape& shape, const ForwardColumns& rows, const Transformer& model) {
  for (const int32_t n : {rows.n_rows, rows.n_logits, rows.n_taps}) {
    shape.push_back(static_cast<uint64_t>(n));
  }
  shape.push_back(model.n_taps());
  for (const int32_t* column :
       {const_cast<const int32_t*>(rows.token.device), rows.pages, rows.tail, rows.logits_rows}) {
    shape.push_back(reinterpret_cast<uintptr_t>(column));
  }
}

class Graphs {
 public:
  static constexpr size_t kShapesMax = 256, kGraphsMax = 256;
  // After this many failed captures of steps without parts, no step is captured any more.
  static constexpr int kFailuresMax = 3;

  // `device` must outlive this. Only submit() requires that it is not the host.
  // `lead`: as in Worker.
  explicit Graphs(Device& device, Lead* lead = nullptr) : device_(device), lead_(lead) {}
  ~Graphs() { clear(); }
  Graphs(const Graphs&) = delete;
  Graphs& operator=(const Graphs&) = delete;

  struct Work {
    std::function<void()> upload;
    std::function<void()> announce;               // tells other ranks that the forward comes
    std::function<bool(bool capturing)> forward;  // false: it must not be repeated as a graph
  };
  // Submits the upload, the parts and the forward, in this order. An error means that the device has
  // failed. REQUIRES that all columns are filled on the host.
  Status submit(const StepShape& shape, std::span<StreamPart* const> parts, const Work& work);

  // Releases all graphs, when addresses have changed. REQUIRES that the stream has finished with
  // them.
  void clear();

 private:
  using Records = std::vector<std::unique_ptr<StreamRecord>>;
  struct Graph {
    int32_t id = -1;
    Records records;
  };
  struct Known {
    Records records;       // of the last submission without a graph; empty = unusable
    bool blocked = false;  // not to be captured or launched any more
    std::map<std::vector<uint64_t>, Graph> graphs;  // by the layout of the parts' memory
    uint64_t last_used = 0;
  };

  static bool submit_parts(std::span<StreamPart* const> parts, Records& records, bool capturing);
  Status capture(Known& known, Graph& graph, std::span<StreamPart* const> parts, const Work& work);
  bool release_commands(bool is_launched) {
    return lead_ == nullptr || lead_->release(is_launched);
  }
  void forget_oldest();
  void release(Known& known);

  Device& device_;
  Lead* const lead_;
  std::map<StepShape, Known> shapes_;
  uint64_t n_submitted_ = 0;
  size_t n_graphs_ = 0;
  int n_failures_ = 0;
  std::set<uint64_t> uncapturable_;  // submitters
};

}  // namespace specd
