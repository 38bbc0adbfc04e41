#include "core/plugin/instance/instance.h"

#include <utility>

#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/base/bad_alloc.h"

namespace specd {
namespace {

// A plugin that still holds memory after destroy() must not make the daemon leak it.
void release_blocks(specd_owner& owner) {
  decltype(owner.blocks) left;
  uint64_t bytes = 0;
  {
    const MutexLock lock(owner.mutex);
    left.swap(owner.blocks);
    bytes = std::exchange(owner.used_bytes, 0);
  }
  if (left.empty()) return;
  or_drop([&] {
    log(LogLevel::kWarn, "plugin " + owner.label + ": destroy() left " +
                             std::to_string(left.size()) + " blocks of " + std::to_string(bytes) +
                             " bytes; freed by the host");
  });
}

void set_quota(specd_owner& owner, uint64_t bytes) {
  const MutexLock lock(owner.mutex);
  owner.quota_bytes = bytes;
}

void add(std::atomic<uint64_t>& counter, uint64_t n) {
  // One writer: the thread of the [step] calls.
  counter.store(counter.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
}

// Runs one call into the instance. What it reports without a specd_call goes to `text`.
template <typename Call>
auto run_named(const specd_owner& owner, const char* function, std::string* text, Call&& run) {
  const PluginScope scope(owner.label, text, {owner.plugin.c_str(), owner.build.c_str(), function});
  return without_exceptions(run);
}

// Runs, times and counts one [step] call, and turns its status into a Status.
template <typename Call>
Status timed(CallStats& stats, specd_owner& owner, const char* function, specd_call& call,
             Call&& run) {
  call.owner = &owner;
  const uint64_t start = now_ns();
  const specd_status status = run_named(owner, function, &call.text, run);
  add(stats.total_ns, now_ns() - start);
  add(stats.calls, 1);
  if (status == SPECD_OK || status == SPECD_E_DEADLINE) return Status();
  add(stats.failures, 1);
  return plugin_status(status, "plugin " + owner.label + ": " + function, call.text,
                       owner.has_config_key);
}

Status inactive(const std::string& label, const char* function) {
  return Status(Code::kFailedPrecondition, "plugin " + label + ": " + function +
                                               "() needs an active instance; activate() first");
}

Status already_active(const std::string& label) {
  return Status(Code::kFailedPrecondition, "plugin " + label + ": activate() was called before");
}

// What is wrong with the topology; empty when nothing is.
std::string tree_fault(const std::vector<int32_t>& parents, uint32_t max_depth) {
  std::vector<uint32_t> depth(parents.size());
  for (size_t i = 0; i < parents.size(); ++i) {
    const int32_t parent = parents[i];
    if (parent < -1 || parent >= static_cast<int32_t>(i)) {
      return "node " + std::to_string(i) + " has parent " + std::to_string(parent) +
             ", expected -1.." + std::to_string(static_cast<int64_t>(i) - 1);
    }
    depth[i] = parent < 0 ? 1 : depth[static_cast<size_t>(parent)] + 1;
    if (depth[i] > max_depth) {
      return "node " + std::to_string(i) + " has depth " + std::to_string(depth[i]) +
             ", the grant allows " + std::to_string(max_depth);
    }
  }
  return std::string();
}

struct StatusWord {
  Code code;
  const char* name;
};

StatusWord status_word(specd_status status) {
  switch (status) {
    case SPECD_OK:
      return {Code::kOk, "SPECD_OK"};
    case SPECD_E_INVALID:
      return {Code::kInvalidArgument, "SPECD_E_INVALID"};
    case SPECD_E_UNSUPPORTED:
      return {Code::kUnsupported, "SPECD_E_UNSUPPORTED"};
    case SPECD_E_EXHAUSTED:
      return {Code::kExhausted, "SPECD_E_EXHAUSTED"};
    case SPECD_E_DEADLINE:
      return {Code::kDeadlineExceeded, "SPECD_E_DEADLINE"};
    case SPECD_E_PRECONDITION:
      return {Code::kFailedPrecondition, "SPECD_E_PRECONDITION"};
    case SPECD_E_CONFIG:
      return {Code::kInvalidArgument, "SPECD_E_CONFIG"};
    case SPECD_E_DATA:
      return {Code::kDataLoss, "SPECD_E_DATA"};
    case SPECD_E_DEVICE:
      return {Code::kUnavailable, "SPECD_E_DEVICE"};
    case SPECD_E_ABI:
      return {Code::kUnsupported, "SPECD_E_ABI"};
    case SPECD_E_CANCELLED:
      return {Code::kCancelled, "SPECD_E_CANCELLED"};
    case SPECD_E_INTERNAL:
      return {Code::kInternal, "SPECD_E_INTERNAL"};
    default:
      return {Code::kInternal, "an unknown status"};
  }
}

// The key that a report about the configuration begins with, or "": "tree.depth" for
// "tree.depth: expected ...". A reason without a key may have a colon too.
std::string key_of_report(const std::string& text, const HasConfigKey& has_key) {
  const size_t end =
      text.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.[]");
  if (end == std::string::npos || text.compare(end, 2, ": ") != 0) return std::string();
  std::string key = text.substr(0, end);
  return has_key != nullptr && has_key(key) ? key : std::string();
}

}  // namespace

std::string status_text(specd_status status) {
  return std::string(status_word(status).name) + " (" + std::to_string(status) + ")";
}

Status plugin_status(specd_status status, const std::string& what, const std::string& text,
                     const HasConfigKey& has_key) {
  if (status == SPECD_OK) return Status();
  const StatusWord word = status_word(status);
  std::string key, reason = text;
  if (status == SPECD_E_CONFIG) {
    key = key_of_report(text, has_key);
    if (!key.empty()) reason = text.substr(key.size() + 2);
  }
  const Status made(word.code, key,
                    what + "() returned " + status_text(status) +
                        (reason.empty() ? ", reported no reason" : ": " + reason));
  return status == SPECD_E_CONFIG ? made.in_field("config") : made;
}

LoadedDrafter::LoadedDrafter(const specd_drafter_api* api, specd_drafter* self,
                             const specd_drafter_caps& caps, std::unique_ptr<specd_owner> owner,
                             std::string name, std::vector<UsedPlugin> parts)
    : Drafter(caps, std::move(owner), std::move(parts)), api_(api), self_(self) {
  if (owner_->label.empty()) owner_->label = std::move(name);
}

LoadedDrafter::~LoadedDrafter() {
  LoadedDrafter::deactivate();
  run_named(*owner_, "destroy", nullptr, [this] { api_->destroy(self_); });
  release_blocks(*owner_);
  log_dropped_lines();
}

void LoadedDrafter::deactivate() {
  if (active_) run_named(*owner_, "deactivate", nullptr, [this] { api_->deactivate(self_); });
  active_ = false;
}

void Drafter::set_fixed_parents(int32_t* parent, size_t n, size_t capacity) const {
  for (size_t i = 0; i < n; ++i) parent[i] = fixed_parent(i % capacity);
}

uint64_t Drafter::memory_bytes() const {
  const MutexLock lock(owner_->mutex);
  return owner_->used_bytes;
}

Status Drafter::take_parents(std::vector<int32_t> parents, uint32_t n,
                             const specd_drafter_grant& grant) {
  std::string fault;
  if (n == 0 || n > grant.max_nodes || n > parents.size()) {
    fault =
        "returned " + std::to_string(n) + " nodes, expected 1.." + std::to_string(grant.max_nodes);
  } else {
    parents.resize(n);
    fault = tree_fault(parents, grant.max_depth);
  }
  if (!fault.empty())
    return Status(Code::kInternal, "plugin " + owner_->label + ": static_tree(): " + fault);
  static_parents_ = std::move(parents);
  return Status();
}

Status LoadedDrafter::activate(const specd_drafter_grant& grant, const std::atomic<bool>& is_late) {
  if (active_) return already_active(owner_->label);
  set_quota(*owner_, grant.memory_bytes_max);
  owner_->device_type = grant.device_type;
  std::string text;
  const specd_status status =
      run_named(*owner_, "activate", &text, [&] { return api_->activate(self_, &grant); });
  SPECD_OK_OR_RETURN(plugin_status(status, "plugin " + owner_->label + ": activate", text,
                                   owner_->has_config_key));
  grant_ = grant;
  if (caps_.tree_mode == SPECD_TREE_STATIC) {
    SPECD_OK_OR_RETURN(check_in_time(is_late));
    std::vector<int32_t> parents(grant.max_nodes, -1);
    const uint32_t count = run_named(*owner_, "static_tree", nullptr, [&] {
      return api_->static_tree(self_, parents.data(), grant.max_nodes);
    });
    if (Status taken = take_parents(std::move(parents), count, grant); !taken.ok()) {
      SPECD_OK_OR_RETURN(check_in_time(is_late));
      run_named(*owner_, "deactivate", nullptr, [this] { api_->deactivate(self_); });
      return taken;
    }
  }
  active_ = true;
  return Status();
}

Status LoadedDrafter::begin(const specd_begin_args& args, specd_call& call) {
  if (!active_) return inactive(owner_->label, "begin");
  return timed(begin_stats, *owner_, "begin", call, [&] { return api_->begin(self_, &args); });
}

Status LoadedDrafter::update(const specd_update_args& args, specd_call& call) {
  if (!active_) return inactive(owner_->label, "update");
  return timed(update_stats, *owner_, "update", call, [&] { return api_->update(self_, &args); });
}

Status LoadedDrafter::propose(const specd_propose_args& args, specd_call& call) {
  if (!active_) return inactive(owner_->label, "propose");
  return timed(propose_stats, *owner_, "propose", call,
               [&] { return api_->propose(self_, &args); });
}

void LoadedDrafter::end(const specd_end_args& args, specd_call& call) {
  if (!active_) return;
  call.owner = owner_.get();
  // Turns off services that work on the batch: they would take pages or threads between two steps.
  call.batch = nullptr;
  call.sampling = nullptr;
  run_named(*owner_, "end", &call.text, [&] { api_->end(self_, &args); });
}

Verifier::Verifier(const specd_verifier_api* api, specd_verifier* self,
                   const specd_verifier_caps& caps, std::unique_ptr<specd_owner> owner,
                   std::string name)
    : api_(api), self_(self), caps_(caps), owner_(std::move(owner)) {
  if (owner_->label.empty()) owner_->label = std::move(name);
}

Verifier::~Verifier() {
  deactivate();
  run_named(*owner_, "destroy", nullptr, [this] { api_->destroy(self_); });
  release_blocks(*owner_);
  log_dropped_lines();
}

void Verifier::deactivate() {
  if (active_) run_named(*owner_, "deactivate", nullptr, [this] { api_->deactivate(self_); });
  active_ = false;
}

Status Verifier::activate(const specd_verifier_grant& grant) {
  if (active_) return already_active(owner_->label);
  std::string text;
  const specd_status status =
      run_named(*owner_, "activate", &text, [&] { return api_->activate(self_, &grant); });
  SPECD_OK_OR_RETURN(plugin_status(status, "plugin " + owner_->label + ": activate", text,
                                   owner_->has_config_key));
  active_ = true;
  return Status();
}

Status Verifier::verify(const specd_verify_args& args, specd_call& call) {
  if (!active_) return inactive(owner_->label, "verify");
  return timed(verify_stats, *owner_, "verify", call, [&] { return api_->verify(self_, &args); });
}

bool needs_q(const specd_drafter_caps& drafter, const specd_verifier_caps& verifier) {
  return drafter.draft_rule != SPECD_RULE_POINT_MASS && (verifier.needs & SPECD_NEED_Q) != 0;
}

uint32_t pair_guarantee(const specd_drafter_caps& drafter, const specd_verifier_caps& verifier,
                        std::string* why) {
  const auto unusable = [why](std::string reason) -> uint32_t {
    if (why != nullptr) *why = std::move(reason);
    return SPECD_GUARANTEE_UNUSABLE;
  };
  static constexpr const char* kModes[] = {"chain", "static", "variable"};
  if (drafter.tree_mode > SPECD_TREE_VARIABLE || drafter.draft_rule >= SPECD_RULE_COUNT) {
    return unusable("the drafter's tree mode or draft rule is not known");
  }
  if ((verifier.tree_modes & (1u << drafter.tree_mode)) == 0) {
    return unusable(std::string("the drafter proposes trees of mode ") + kModes[drafter.tree_mode] +
                    ", which the verifier does not judge");
  }
  // Other modes follow a smaller grant; a fixed tree cannot.
  if (drafter.tree_mode == SPECD_TREE_STATIC && verifier.max_nodes != 0 &&
      drafter.max_nodes > verifier.max_nodes) {
    return unusable("the drafter's fixed tree has up to " + std::to_string(drafter.max_nodes) +
                    " nodes, the verifier judges at most " + std::to_string(verifier.max_nodes));
  }
  const uint32_t guarantee = verifier.guarantee[drafter.draft_rule];
  if (guarantee == SPECD_GUARANTEE_UNUSABLE || guarantee > SPECD_GUARANTEE_IDENTICAL) {
    static constexpr const char* kRules[] = {"point mass", "independent", "without replacement"};
    return unusable(std::string("the verifier cannot judge drafts of rule '") +
                    kRules[drafter.draft_rule] + "'");
  }
  if (needs_q(drafter, verifier) && (drafter.features & SPECD_FEATURE_Q) == 0) {
    return unusable(
        "the verifier needs the distribution that drafts are drawn from, which the drafter does not "
        "hand on");
  }
  if (needs_q(drafter, verifier) &&
      ((drafter.device_types & verifier.device_types) >> SPECD_DEV_CPU & 1) == 0) {
    return unusable(
        "drafts with the distribution that they are drawn from are handed on in host "
        "memory, where the pair cannot work");
  }
  if (why != nullptr) why->clear();
  return guarantee;
}

}  // namespace specd
