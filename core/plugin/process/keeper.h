// Keeps the process of one drafter: starts it, asks it, and starts it anew when it has died while it served. All
// talk with the process is on the keeper's own thread, which lives as long as the process may.
//
// A process that has died is started again after a pause, which doubles; after kDeathsMax deaths within
// kDeathsWithin it is lost for good. Each life has a link of its own for the step: rings that no earlier process
// has mapped.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/base/heartbeat.h"
#include "core/base/mutex.h"
#include "core/plugin/process/child.h"
#include "core/plugin/process/link.h"
#include "core/plugin/process/protocol.h"

namespace specd {

class ProcessKeeper {
 public:
  static constexpr size_t kDeathsMax = 5;
  static constexpr std::chrono::seconds kDeathsWithin{60};
  static constexpr std::chrono::milliseconds kFirstPause{100};

  struct Terms {
    std::string program;  // specd-runner
    DrafterOrder order;
    // For all of create(), activate() and the first serve(), and for each new start.
    std::chrono::milliseconds limit{0};
  };
  // [the keeper's thread]
  struct Hooks {
    std::function<void(const std::string& how, bool is_started_again)> on_death;
    std::function<void()> on_restart;
    std::function<void(const std::string& why)> on_lost;  // for good
  };
  struct Serving {
    size_t request_capacity = 0, reply_capacity = 0;
    bool is_shadow = false;
    std::function<std::unique_ptr<ProcessLink>(std::unique_ptr<SharedRings> rings,
                                               std::shared_ptr<DrafterChild> child)>
        connect;
    LinkSlot* links = nullptr;  // where the step finds its link; must outlive the serving
    Hooks hooks;
  };

  // kExhausted when there can be no more threads.
  static Result<std::unique_ptr<ProcessKeeper>> start(Terms terms);
  ~ProcessKeeper();  // ends the process
  ProcessKeeper(const ProcessKeeper&) = delete;
  ProcessKeeper& operator=(const ProcessKeeper&) = delete;

  // [control] Errors are those of PluginRegistry::make_drafter(), of Drafter::activate(), or tell how the process
  // ended. activate() returns the parents of a static tree.
  Result<CreatedDrafter> create();
  Result<std::vector<int32_t>> activate(const specd_drafter_grant& grant);
  // [control] From activate() on, `owner` gets the figures that the process tells.
  void set_owner(specd_owner* owner) { owner_ = owner; }
  // [control] The process reads calls from now on, in every life, until pause(), which gives it `limit` to end its
  // sequences and kills it otherwise.
  Status serve(Serving serving);
  void pause(std::chrono::milliseconds limit);
  // [any] Kills the process, and starts it no more.
  void abandon();

 private:
  explicit ProcessKeeper(Terms terms);
  void run();
  // Runs `work` on the keeper's thread.
  void on_thread(const std::function<void()>& work);
  void wake();
  void look();
  void wait();
  Result<Json> ask(const Json& question, int descriptor, uint64_t until_ns, const char* what);
  Result<CreatedDrafter> start_child(uint64_t until_ns);
  Result<Json> activate_child(uint64_t until_ns);
  Status connect(uint64_t until_ns);
  // With a new process when there is none.
  Status start_serving(uint64_t until_ns);
  void drop_link();
  void note_death(const std::string& how);
  void lose(const std::string& why);
  void revive();
  uint64_t limit_from_now() const;
  // Of what makes the drafter.
  uint64_t making_until() const { return has_served_ ? limit_from_now() : made_until_ns_; }
  std::string label() const {
    return "plugin " + terms_.order.plugin + " (" + terms_.order.instance_name + ")";
  }

  Terms terms_;
  std::atomic<specd_owner*> owner_{nullptr};
  FileDescriptor event_;
  std::atomic<bool> is_over_{false}, is_cancelled_{false}, is_lost_{false};
  Mutex mutex_;
  CondVar done_;
  const std::function<void()>* work_ SPECD_GUARDED_BY(mutex_) = nullptr;

  Heartbeat beat_;

  // [the keeper's thread]
  std::shared_ptr<DrafterChild> child_;
  Json created_;                              // the first answer to "create"
  std::optional<specd_drafter_grant> grant_;  // after activate()
  std::optional<Serving> serving_;
  bool has_served_ = false;
  const uint64_t made_until_ns_;
  std::map<std::string, double> counted_;  // by the lives before, see take_figures()
  std::shared_ptr<ProcessLink> link_;
  std::deque<uint64_t> deaths_;  // when, the last ones
  uint64_t restart_ns_ = 0;

  std::thread thread_;
};

}  // namespace specd
