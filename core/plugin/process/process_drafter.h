// A drafter in a process of its own: specd-runner loads the plugin, and the code of it never runs in this process. When
// it crashes or hangs, the step goes on without drafts, the process is started again, and the sequences begin anew.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "core/plugin/beside/drafter_beside.h"
#include "core/plugin/beside/server.h"
#include "core/plugin/instance/instance.h"
#include "core/plugin/process/keeper.h"

namespace specd {

class ProcessDrafter final : public Drafter {
 public:
  // Starts the process and makes the drafter in it. Errors as those of PluginRegistry::make_drafter(). `host`: that
  // of this process. [control]
  static Result<std::unique_ptr<ProcessDrafter>> make(ProcessKeeper::Terms terms,
                                                      const specd_host& host);
  // What the drafter says of itself. Its process ends at once. [control]
  static Result<specd_drafter_caps> describe(ProcessKeeper::Terms terms, const specd_host& host);
  ~ProcessDrafter() override;

  Status activate(const specd_drafter_grant& grant,
                  const std::atomic<bool>& is_late = kNeverLate) override;
  void deactivate() override {}  // with the process
  bool has_update() const override { return has_update_; }
  // [any] Kills the process, which is not started again.
  void abandon() { keeper_->abandon(); }
  // Hashes of the plugin and its parts, by what they were called: see BundleInfo::content_sha256.
  const std::map<std::string, std::string>& contents() const { return contents_; }

  // It works from now on. `observer`: of a shadow, told on the thread of the step; null = it is none. [control]
  Result<std::unique_ptr<DrafterBeside>> serve(const BesideTerms& terms, ShadowObserver* observer,
                                               ProcessKeeper::Hooks hooks);

  // It only works beside the step.
  Status begin(const specd_begin_args& args, specd_call& call) override;
  Status update(const specd_update_args& args, specd_call& call) override;
  Status propose(const specd_propose_args& args, specd_call& call) override;
  void end(const specd_end_args& args, specd_call& call) override;

 private:
  ProcessDrafter(CreatedDrafter created, std::unique_ptr<specd_owner> owner,
                 std::unique_ptr<ProcessKeeper> keeper);
  void count(CallKind kind, const Status& status, uint64_t took_ns);

  const std::vector<const char*> services_;  // of the caps
  const bool has_update_;
  const std::map<std::string, std::string> contents_;
  std::unique_ptr<ProcessKeeper> keeper_;
};

}  // namespace specd
