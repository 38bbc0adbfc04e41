// What the daemon and the process of a drafter tell each other outside of steps. The daemon asks, one question at
// a time; the process answers with a status and what belongs to it, and now and then tells its figures.
//
//   {"do": "create", ..}      -> its caps        the plugin is loaded, and its instance created
//   {"do": "activate", ..}    -> its parents     from then on the process may open nothing any more
//   {"do": "serve", ..}       -> nothing         reads the calls of the rings whose file comes along
//   {"do": "pause"}           -> nothing         ends the sequences, and reads no more calls
//   {"do": "end"}             -> nothing         destroys the instance, and ends
//
// The answers may come from a hostile process: readers refuse what is out of range.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/base/log.h"
#include "core/base/status.h"
#include "core/plugin/bundle/registry.h"

namespace specd {

// What is needed to make a drafter elsewhere.
struct DrafterOrder {
  PluginRegistry::Options registry;
  std::string isa;    // of EngineOptions
  bool bf16 = false;  // numerics
  LogLevel log_level = LogLevel::kInfo;
  std::string plugin;  // ID@VERSION
  std::string factory = {};
  Json config = Json::object();
  std::string instance_name;
  // Of the model. The texts are owned.
  specd_target_info target = {};
  std::string model_id = {}, architecture = {};
  std::array<uint8_t, 32> tokenizer_sha256 = {};
  bool describes_only = false;  // create() is not called
  // Known hashes, see CreatedDrafter: the process refuses a bundle with another hash before it runs its code.
  std::map<std::string, std::string> contents = {};

  void set_target(const specd_target_info& info);
  // With its pointers set; valid as long as this.
  specd_target_info target_info() const;
};

// The answer to "create".
struct CreatedDrafter {
  specd_drafter_caps caps{};  // its services lie in `services`
  std::vector<const char*> services;
  bool has_update = false;
  std::vector<std::string> parts;  // plugins
  std::map<std::string, std::string>
      contents;  // of the plugin and its parts: BundleInfo::content_sha256
};

Json order_to_json(const DrafterOrder& order);
// kFailedPrecondition when it comes from a program of another build, whose messages may look otherwise.
Result<DrafterOrder> order_from_json(const Json& json);

Json created_to_json(const CreatedDrafter& created);
// The caps are for check_caps() to check. kUnsupported when it needs a service that this build does not have.
Result<CreatedDrafter> created_from_json(const Json& json);

Json grant_to_json(const specd_drafter_grant& grant);
Result<specd_drafter_grant> grant_from_json(const Json& json);

// The memory that an instance holds, and its metrics.
Json figures_to_json(const specd_owner& owner);
// Gives `owner` those that make sense. `counted`: the values of counters when the process before ended, which are
// added. Values that are not finite, or would make a counter fall, are ignored.
using Counted = std::map<std::string, double>;
void take_figures(const Json& json, const Counted& counted, specd_owner& owner);
// The process has ended: the instance has no memory and no gauges any more.
void end_figures(Counted& counted, specd_owner& owner);

// "status" of an answer, which each has. Long texts are cut.
Json status_to_json(const Status& status);
Status status_from_json(const Json& answer);

}  // namespace specd
