#include "core/rank_process.h"

#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <new>
#include <thread>
#include <utility>

#include "core/base/to_size.h"
#include "core/device/agree.h"
#include "core/device/exchange.h"
#include "core/device/host_memory.h"
#include "core/engine/devices.h"
#include "core/engine/memory_plan.h"
#include "core/engine/options.h"
#include "core/engine/rank_process_impl.h"
#include "core/engine/shared_models.h"
#include "core/engine/target.h"
#include "core/ranks/same_files.h"

namespace specd {
namespace {

// `machine`: where process numbers mean the same.
struct Place {
  char machine[128] = {};
  int64_t pid = 0;
  uint64_t memory_bytes = 0;
  cpu_set_t cores;
};

Place place_of_this() {
  Place place;
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  char space[64] = {};
  (void)!readlink("/proc/self/ns/pid", space, sizeof(space) - 1);
  const std::string machine = boot + " " + space;
  std::copy_n(machine.begin(), std::min(machine.size(), sizeof(place.machine) - 1), place.machine);
  place.pid = getpid();
  place.memory_bytes = host_memory().bytes;
  CPU_ZERO(&place.cores);
  (void)sched_getaffinity(0, sizeof(place.cores), &place.cores);
  return place;
}

}  // namespace

RankProcess::RankProcess(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RankProcess::~RankProcess() = default;

bool RankProcess::is_one() { return is_under_mpirun(); }

Result<std::unique_ptr<RankProcess>> RankProcess::join(const EngineOptions& options,
                                                       RankSettings settings) {
  auto impl = std::make_unique<Impl>();
  SPECD_TRY(impl->messages, open_mpi());
  impl->settings = std::move(settings);
  impl->all = make_message_rank(
      *impl->messages, {.timeout = kLoadTimeout,
                        .silence_max = std::chrono::seconds(options.rank_timeout_seconds),
                        .spin = rank_spin(std::max(impl->messages->n_here(), options.threads))});
  impl->find_places();
  return std::unique_ptr<RankProcess>(new RankProcess(std::move(impl)));
}

int32_t RankProcess::rank() const { return impl_->messages->rank(); }
Status RankProcess::check_world(const EngineOptions& options) const {
  return impl_->check_world(options);
}
Status RankProcess::agree(const Status& mine) { return specd::agree(*impl_->all, mine); }

Status RankProcess::status() const { return impl_->all->status(); }

Status RankProcess::follow(const EngineOptions& options) {
  Status status;
  try {
    status = impl_->follow(options);
  } catch (const std::bad_alloc&) {
    status = Status(Code::kExhausted, kOutOfMemory);
  }
  if (status.ok()) return status;
  impl_->all->give_up(status);  // the first reason stays
  return impl_->all->status();
}

void RankProcess::give_up(const Status& why) { impl_->all->give_up(why); }

void RankProcess::give_up_if_gone() {
  std::string gone;
  for (size_t rank = 0; rank < impl_->pids.size(); ++rank) {
    const pid_t pid = impl_->pids[rank];
    if (pid == 0 || kill(pid, 0) == 0 || errno != ESRCH) continue;
    gone += (gone.empty() ? "rank " : " and rank ") + std::to_string(rank);
  }
  if (gone.empty()) return;
  give_up(Status(Code::kUnavailable, "the process of " + gone + " is gone"));
}

void RankProcess::abort(int code) {
  impl_->messages->abort(code);
  std::abort();  // GCC does not see that it is never reached
}

void RankProcess::Impl::find_places() {
  std::vector<Place> places(to_size(all->n_ranks()));
  const Place& mine = places[to_size(all->rank())] = place_of_this();
  all->all_gather(places.data(), sizeof(Place));
  n_sharing = n_here = 0;
  for (const Place& place : places) {
    const bool is_here = std::strcmp(place.machine, mine.machine) == 0;
    if (&place == &mine) place_here = n_here;
    if (is_here) ++n_here;
    pids.push_back(is_here ? static_cast<pid_t>(place.pid) : 0);
    if (is_here && CPU_EQUAL(&place.cores, &mine.cores)) ++n_sharing;
  }
  std::map<std::string, RankMemory> machines;
  for (size_t rank = 0; rank < places.size(); ++rank) {
    RankMemory& memory = machines[places[rank].machine];
    if (memory.ranks.empty()) {
      memory = {"the machine of rank " + std::to_string(rank), places[rank].memory_bytes, {}};
    }
    memory.bytes = std::min(memory.bytes, places[rank].memory_bytes);
    memory.ranks.push_back(static_cast<int32_t>(rank));
  }
  for (auto& [machine, memory] : machines) memories.push_back(std::move(memory));
  n_sharing = std::max(n_sharing, 1);
}

Status RankProcess::Impl::check_world(const EngineOptions& options) const {
  const int32_t started = messages->n_ranks(), wanted = n_ranks_of(options);
  if (started == wanted) return check_places(options, n_here);
  return Status(Code::kInvalidArgument, "engine.tensor_parallel_size",
                std::to_string(wanted) + " ranks are configured (tensor_parallel_size " +
                    std::to_string(options.tensor_parallel_size) + " x pipeline_parallel_size " +
                    std::to_string(options.pipeline_parallel_size) + "), and mpirun has started " +
                    std::to_string(started) + "; make them equal");
}

Result<std::vector<RankMemory>> RankProcess::Impl::memories_of(const Status& opened,
                                                               const Device* device) {
  SPECD_OK_OR_RETURN(specd::agree(*all, opened));
  if (device->is_host()) return memories;
  const std::vector<uint64_t> bytes = gathered(all.get(), device->total_bytes());
  SPECD_OK_OR_RETURN(all->status());
  std::vector<RankMemory> of_devices;
  for (size_t rank = 0; rank < bytes.size(); ++rank) {
    of_devices.push_back({"its device", bytes[rank], {static_cast<int32_t>(rank)}});
  }
  return of_devices;
}

Status RankProcess::Impl::share(DraftModels& drafts) {
  const uint64_t n = gathered(all.get(), drafts.size()).front();
  SPECD_OK_OR_RETURN(all->status());
  // Of rank 0's draft models; check_same() refuses a rank that has others.
  std::vector<char> places(n);
  for (size_t i = 0; i < std::min<size_t>(n, drafts.size()); ++i) {
    places[i] = !drafts[i]->status.ok() ? 'r' : drafts[i]->is_shared ? 's' : 'a';
  }
  all->broadcast(places.data(), n, 0);
  SPECD_OK_OR_RETURN(all->status());
  for (size_t i = 0; i < std::min<size_t>(n, drafts.size()); ++i) {
    DraftModel& draft = *drafts[i];
    draft.is_shared = places[i] == 's';
    if (places[i] == 'r' && draft.status.ok())
      draft.status = Status(Code::kUnavailable, "rank 0 refuses it");
    if (places[i] != 'r' && !draft.status.ok())
      return draft.status.with_context(draft.name).in_field(draft_model_field(i));
  }
  return Status();
}

Status RankProcess::Impl::check_same(std::span<const SharedModel> models,
                                     const DraftModels& drafts) {
  std::vector<std::string> values;
  for (const auto& [key, value] : settings) values.push_back(key + ": " + value);
  for (const std::unique_ptr<DraftModel>& draft : drafts) {
    values.push_back("draft model " + draft->name);
  }
  auto facts = agreed(all.get(), rank_facts(values, models));
  SPECD_OK_OR_RETURN(facts.status());
  return specd::check_same(*all, facts.value());
}

RankEnd RankProcess::Impl::end_of(const EngineOptions& options) {
  return RankEnd(all->group(0, all->n_ranks()), options.tensor_parallel_size,
                 options.pipeline_parallel_size);
}

Status RankProcess::Impl::follow(const EngineOptions& options) {
  SPECD_OK_OR_RETURN(check_limits(options));
  SPECD_OK_OR_RETURN(check_world(options));
  Target target;
  SPECD_OK_OR_RETURN(target.load(options.model));
  DraftModels checked = check_draft_models(options, target);
  const auto opened = open_rank_device(options, place_here, threads(options),
                                       device_limits(options, target.config, checked));
  SPECD_OK_OR_RETURN(
      memories_of(opened.status(), opened.ok() ? opened.value().get() : nullptr).status());
  Device* const device = opened.value().get();
  SPECD_OK_OR_RETURN(check_ranks(options, target.config, *device));
  SPECD_OK_OR_RETURN(share(checked));
  const std::vector<SharedModel> models = shared_models(options, target, checked);
  SPECD_OK_OR_RETURN(check_same(models, checked));
  RankEnd end = end_of(options);
  return follow_on(*device, end, models);
}

}  // namespace specd
