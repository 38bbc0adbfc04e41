// The sequences of one route as a specd_batch, for one plugin call.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "core/base/to_size.h"
#include "core/device/device.h"
#include "core/device/staging.h"
#include "core/plugin/instance/host_context.h"
#include "core/step/active_sequence.h"
#include "specd/plugin_api/batch.h"

namespace specd {

using Members = std::vector<ActiveSequence*>;

// Calls fn(route, members of that route) once per route, in the order of their first members.
// REQUIRES that every member has a route.
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

// The column's host memory or device memory as a tensor.
specd_tensor tensor_of(const Device& device, bool on_device, const Column<int32_t>& column,
                       std::initializer_list<int64_t> shape);

// Valid for one call; the members must outlive it.
class PluginBatch {
 public:
  PluginBatch(const Members& members, uint64_t step_id);
  PluginBatch(const PluginBatch&) = delete;
  PluginBatch& operator=(const PluginBatch&) = delete;

  // For a plugin that works on the device: adds the slots to `columns`, which the caller uploads,
  // and passes the stream. kExhausted when `columns` has no memory; the batch stays on the host.
  Status place_on(Device& device, Staging& columns);
  // Lets services read the members' committed tokens (model.follow).
  void offer_committed() { call.committed = &committed_; }
  // The members' committed tokens, and how many they are.
  std::vector<const int32_t*> text() const;
  std::vector<uint32_t> text_len() const;
  // Member i's status, and the text that the plugin reported for it.
  std::string why(size_t i) const;
  bool all_ok() const;

  // Sets the deadline of a call of `route`'s drafter that begins now. Returns the present time.
  uint64_t start(const LiveRoute& route);

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
