// Owns one drafter or verifier instance, checks the order of its calls, and turns a returned status
// and report() into a Status. Every [step] call except end() is timed.
//
// Threads: [control] for construction, activate, destruction; [step] for the rest, one at a time: the step's
// thread, or that of the drafter (core/plugin/beside).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/run_within.h"
#include "core/base/status.h"
#include "core/plugin/instance/drafter_calls.h"
#include "core/plugin/instance/host_context.h"
#include "core/plugin/instance/plugin_config.h"
#include "specd/plugin_api/entry.h"

namespace specd {

// Time and outcome of one kind of call; read by reports, written by the step thread.
struct CallStats {
  std::atomic<uint64_t> calls{0};
  std::atomic<uint64_t> failures{0};  // status other than OK and DEADLINE
  std::atomic<uint64_t> total_ns{0};
};

// An instance, wherever its code runs: in this process (LoadedDrafter), or in one of its own.
class Drafter : public DrafterCalls {
 public:
  Drafter(const Drafter&) = delete;
  Drafter& operator=(const Drafter&) = delete;

  const specd_drafter_caps& caps() const { return caps_; }
  const specd_drafter_grant& grant() const { return grant_; }  // after activate()
  const specd_owner& owner() const { return *owner_; }         // its metrics
  const std::vector<UsedPlugin>& parts() const { return parts_; }
  uint64_t memory_bytes() const;  // held through memory/1 now
  // STATIC mode, after activate(): validated parents; else empty.
  const std::vector<int32_t>& static_parents() const { return static_parents_; }
  // CHAIN and STATIC mode: fills a column of `capacity` nodes per sequence with the parents.
  void set_fixed_parents(int32_t* parent, size_t n, size_t capacity) const;
  int32_t fixed_parent(size_t node) const {
    return node < static_parents_.size() ? static_parents_[node] : static_cast<int32_t>(node) - 1;
  }

  // Once. On failure the instance stays inactive and can only be destroyed. Once `is_late` is true it
  // makes no further call and fails; the instance is then in whatever state its last call left it.
  virtual Status activate(const specd_drafter_grant& grant,
                          const std::atomic<bool>& is_late = kNeverLate) = 0;
  virtual void deactivate() = 0;  // leaves destroy() to the destructor
  // A drafter without update() need not hear what was committed.
  virtual bool has_update() const = 0;

  CallStats begin_stats, update_stats, propose_stats;

 protected:
  Drafter(const specd_drafter_caps& caps, std::unique_ptr<specd_owner> owner,
          std::vector<UsedPlugin> parts)
      : caps_(caps), owner_(std::move(owner)), parts_(std::move(parts)) {}
  // Of STATIC mode. `n`: what static_tree() returned.
  Status take_parents(std::vector<int32_t> parents, uint32_t n, const specd_drafter_grant& grant);

  const specd_drafter_caps caps_;
  specd_drafter_grant grant_{};
  const std::unique_ptr<specd_owner> owner_;

 private:
  std::vector<int32_t> static_parents_;
  const std::vector<UsedPlugin> parts_;
};

class LoadedDrafter final : public Drafter {
 public:
  // `caps`: from describe(), checked by the registry. `parts`: the plugins of its parts.
  LoadedDrafter(const specd_drafter_api* api, specd_drafter* self, const specd_drafter_caps& caps,
                std::unique_ptr<specd_owner> owner, std::string name,
                std::vector<UsedPlugin> parts);
  ~LoadedDrafter()
      override;  // deactivates and destroys; memory still held by the plugin is freed and logged

  Status activate(const specd_drafter_grant& grant,
                  const std::atomic<bool>& is_late = kNeverLate) override;
  void deactivate() override;
  bool has_update() const override { return api_->update != nullptr; }

  Status begin(const specd_begin_args& args, specd_call& call) override;
  Status update(const specd_update_args& args, specd_call& call) override;
  Status propose(const specd_propose_args& args, specd_call& call) override;
  void end(const specd_end_args& args, specd_call& call) override;

 private:
  const specd_drafter_api* const api_;
  specd_drafter* const self_;
  bool active_ = false;
};

class Verifier {
 public:
  Verifier(const specd_verifier_api* api, specd_verifier* self, const specd_verifier_caps& caps,
           std::unique_ptr<specd_owner> owner, std::string name);
  ~Verifier();
  Verifier(const Verifier&) = delete;
  Verifier& operator=(const Verifier&) = delete;

  const specd_verifier_caps& caps() const { return caps_; }
  const specd_owner& owner() const { return *owner_; }

  Status activate(const specd_verifier_grant& grant);
  void deactivate();
  Status verify(const specd_verify_args& args, specd_call& call);

  CallStats verify_stats;

 private:
  const specd_verifier_api* api_;
  specd_verifier* self_;
  specd_verifier_caps caps_;
  std::unique_ptr<specd_owner> owner_;
  bool active_ = false;
};

// "SPECD_E_DATA (7)".
std::string status_text(specd_status status);

// SPECD_OK gives ok, an unknown status kInternal. The message has the name of the status and what
// the plugin reported. For SPECD_E_CONFIG the field is "config.KEY" when the report begins with
// "KEY: " (see SPECD_E_CONFIG) and `has_key` knows that key, else "config".
Status plugin_status(specd_status status, const std::string& what, const std::string& text,
                     const HasConfigKey& has_key = {});

// Whether the verifier needs to know what the drafter draws from.
bool needs_q(const specd_drafter_caps& drafter, const specd_verifier_caps& verifier);

// The guarantee of the pair: what the verifier states for the drafter's rule, or UNUSABLE when the
// tree mode or the node count of a fixed tree does not fit (other trees follow a smaller grant), or
// the drafter does not hand on the q that the verifier needs; then `why`, if not null, gets the
// reason.
uint32_t pair_guarantee(const specd_drafter_caps& drafter, const specd_verifier_caps& verifier,
                        std::string* why);

}  // namespace specd
