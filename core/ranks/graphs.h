// A device's steps as graphs: the work of a step is captured when a step of its shape comes for the
// second time, and is submitted in one piece from then on.
//
//   first time    upload, parts, forward            parts note what they asked for
//   second time   capture { upload, parts, forward }, launch
//   later         the host's part of what was noted, launch
//
// A step that cannot be captured is submitted piece by piece.
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
#include "core/ranks/stream_part.h"

namespace specd {

class Graphs {
 public:
  static constexpr size_t kShapesMax = 256, kGraphsMax = 256;
  // Captures of steps without parts that may fail before no more are tried.
  static constexpr int kFailuresMax = 3;

  // `device` outlives this and is not the host.
  explicit Graphs(Device& device) : device_(device) {}
  ~Graphs() { clear(); }
  Graphs(const Graphs&) = delete;
  Graphs& operator=(const Graphs&) = delete;

  // Submits `upload`, the parts and `forward`, in this order. forward(capturing) returns false when
  // it must not be repeated as a graph. On an error the device has failed. Requires that everything
  // on the host that they need is in place.
  Status submit(const StepShape& shape, std::span<StreamPart* const> parts,
                const std::function<void()>& upload,
                const std::function<bool(bool capturing)>& forward);

  // Forgets all graphs: addresses have changed. Requires that the stream has passed them.
  void clear();

 private:
  using Records = std::vector<std::unique_ptr<StreamRecord>>;
  struct Graph {
    int32_t id = -1;
    Records records;
  };
  struct Known {
    Records records;       // of the first time; empty = nothing to reserve by
    bool blocked = false;  // never again as a graph
    std::map<std::vector<uint64_t>, Graph> graphs;  // by where the parts' memory lies
    uint64_t last_used = 0;
  };

  static bool submit_parts(std::span<StreamPart* const> parts, Records& records, bool capturing);
  Status capture(Known& known, Graph& graph, std::span<StreamPart* const> parts,
                 const std::function<void()>& upload,
                 const std::function<bool(bool capturing)>& forward);
  void forget_oldest();
  void release(Known& known);

  Device& device_;
  std::map<StepShape, Known> shapes_;
  uint64_t n_submitted_ = 0;
  size_t n_graphs_ = 0;
  int n_failures_ = 0;
  std::set<uint64_t> uncapturable_;  // submitters
};

}  // namespace specd
