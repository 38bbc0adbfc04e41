// Steps of a device as graphs: what a step submits is captured when a step of its shape comes for
// the second time, and from then on submitted in one piece.
//
//   first time    propose, forward            the calls of model/1 are noted
//   second time   capture { propose, forward }, launch
//   later         the host's part of the noted calls, launch
//
// A shape is everything that decides what is submitted and where its columns lie; what is in the
// columns is not part of it. A step that cannot be had this way is submitted piece by piece.
// [step] all functions.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <vector>

#include "core/base/status.h"
#include "core/device/device.h"
#include "core/exec/model_service.h"

namespace specd {

class StepGraphs {
 public:
  using Shape = std::vector<uint64_t>;

  // One call of propose() on the device.
  struct Proposer {
    uint64_t route;  // its number
    specd_call* call;
    bool may_capture;               // SPECD_FEATURE_CAPTURE
    std::function<bool()> propose;  // false: it failed
    std::function<bool()> is_well;  // after the forward: nobody has failed a part of it
  };

  static constexpr size_t kShapesMax = 256, kGraphsMax = 256;
  static constexpr int kFailuresMax =
      3;  // captures of steps without drafts; then no more are tried

  // Both outlive this. Not for a device that is the host.
  StepGraphs(Device& device, ModelService& models) : device_(device), models_(models) {}
  ~StepGraphs() { clear(); }
  StepGraphs(const StepGraphs&) = delete;
  StepGraphs& operator=(const StepGraphs&) = delete;

  // Submits `columns`, the proposals and `forward`, in this order. On an error the device has
  // failed. REQUIRES that everything they need on the host is in its place.
  Status submit(const Shape& shape, const std::vector<Proposer>& proposers,
                const std::function<void()>& columns, const std::function<void()>& forward);

  // Forgets all graphs: addresses have changed. REQUIRES that the stream has passed them.
  void clear();

 private:
  struct Graph {
    int32_t id = -1;
    std::vector<ModelRecord> records;
  };
  struct Known {
    std::vector<ModelRecord> records;               // of the first time
    bool blocked = false;                           // never again as a graph
    std::map<std::vector<uint64_t>, Graph> graphs;  // by the layout of the models' columns
    uint64_t last_used = 0;
  };

  bool propose(const std::vector<Proposer>& proposers, std::vector<ModelRecord>& records,
               bool capturing);
  bool run_forward(const std::function<void()>& forward, bool capturing);
  Status capture(Known& known, Graph& graph, const std::vector<Proposer>& proposers,
                 const std::function<void()>& columns, const std::function<void()>& forward);
  void forget_oldest();
  void release(Known& known);

  Device& device_;
  ModelService& models_;
  std::map<Shape, Known> shapes_;
  uint64_t n_submitted_ = 0;
  size_t n_graphs_ = 0;
  int n_failures_ = 0;
  std::set<uint64_t> uncapturable_;  // routes
};

}  // namespace specd
