// The members of one call to a plugin: the sequences of one route, as the boundary wants them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "core/device/device.h"
#include "core/device/staging.h"
#include "core/plugin/instance/host_context.h"
#include "core/step/active_sequence.h"
#include "specd/plugin_api/batch.h"

namespace specd {

using Members = std::vector<ActiveSequence*>;

inline size_t at(int32_t i) { return static_cast<size_t>(i); }

// Calls fn(route, members of that route) once a route, in the order of the first members.
// Requires that every member has one.
template <typename Fn>
void by_route(const Members& members, Fn&& fn) {
  std::vector<LiveRoute*> routes;
  for (const ActiveSequence* member : members) {
    LiveRoute* route = member->route.get();
    if (std::find(routes.begin(), routes.end(), route) == routes.end()) routes.push_back(route);
  }
  for (LiveRoute* route : routes) {
    Members of_route;
    for (ActiveSequence* member : members) {
      if (member->route.get() == route) of_route.push_back(member);
    }
    fn(*route, of_route);
  }
}

// A column where a plugin finds it: in host memory, or on the device.
specd_tensor tensor_of(const Device& device, bool on_device, const Column<int32_t>& column,
                       std::initializer_list<int64_t> shape);

// Lives for one call.
class PluginBatch {
 public:
  PluginBatch(const Members& members, uint64_t step_id);
  PluginBatch(const PluginBatch&) = delete;
  PluginBatch& operator=(const PluginBatch&) = delete;

  // For a plugin that works on the device: its slots lie there, and it may use the stream. The
  // caller uploads `columns`.
  void place_on(Device& device, Staging& columns);
  // The members' committed tokens, for services that follow the text.
  void offer_committed() { call.committed = &committed_; }
  // What the plugin said about member i.
  std::string why(size_t i) const;
  bool all_ok() const;

  specd_call call;
  specd_batch batch{};
  std::vector<specd_status> status;                 // [members], written by the plugin
  std::vector<const specd_sampling*> sampling_ptr;  // [members]

 private:
  std::vector<uint64_t> seq_id_;
  std::vector<void*> state_;
  std::vector<uint32_t> slot_;
  std::vector<int32_t> slot_column_;
  std::vector<specd_sampling> sampling_;
  std::vector<std::span<const int32_t>> committed_;
  specd_tensor slots_{};
};

}  // namespace specd
