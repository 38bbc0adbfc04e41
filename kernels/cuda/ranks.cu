// Exchanges between ranks by NCCL, which is loaded on demand, so that it is not required otherwise.
#include <dlfcn.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "kernels/cuda/backend.h"
#include "kernels/cuda/nccl.h"

namespace specd::kernels::cuda {
namespace {

template <typename Fn>
bool find_call(void* library, const char* name, Fn& out) {
  out = reinterpret_cast<Fn>(dlsym(library, name));
  return out != nullptr;
}

nccl::Calls api;
bool is_loaded = false, has_calls = false;

void load_nccl() {
  // A rank that captures a graph must not wait for the others, which may not capture theirs just now.
  setenv("NCCL_GRAPH_REGISTER", "0", 1);
  void* const library = dlopen(nccl::kLibrary, RTLD_NOW | RTLD_LOCAL);
  is_loaded = library != nullptr;
  has_calls = is_loaded && find_call(library, "ncclGetUniqueId", api.get_unique_id) &&
              find_call(library, "ncclCommInitRank", api.comm_init_rank) &&
              find_call(library, "ncclCommAbort", api.comm_abort) &&
              find_call(library, "ncclCommGetAsyncError", api.comm_get_async_error) &&
              find_call(library, "ncclGetErrorString", api.get_error_string) &&
              find_call(library, "ncclGetLastError", api.get_last_error) &&
              find_call(library, "ncclAllGather", api.all_gather) &&
              find_call(library, "ncclBroadcast", api.broadcast) &&
              find_call(library, "ncclSend", api.send) &&
              find_call(library, "ncclRecv", api.receive) &&
              find_call(library, "ncclGroupStart", api.group_start) &&
              find_call(library, "ncclGroupEnd", api.group_end);
}

// False and the reason. [any]
bool has_nccl(CudaProblem& problem) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, &load_nccl);
  if (has_calls) return true;
  std::snprintf(problem.text, sizeof(problem.text),
                is_loaded ? "ranks need NCCL 2.13 or later, and %s is older; update libnccl2"
                          : "ranks need NCCL, and %s cannot be loaded; install libnccl2",
                nccl::kLibrary);
  return false;
}

bool is_good(int result, int device, nccl::Communicator* communicator, CudaProblem& problem) {
  if (result == nccl::kSuccess || result == nccl::kInProgress) return true;
  std::snprintf(problem.text, sizeof(problem.text), "cuda:%d: NCCL: %s: %s", device,
                api.get_error_string(result), api.get_last_error(communicator));
  return false;
}

// A communicator in the making. NCCL waits for all ranks, however long they take, and cannot be stopped, so a
// thread waits, which owns this once nobody else wants the result.
struct Joining {
  nccl::UniqueId id{};
  int32_t rank = 0, n_ranks = 0, device = 0;
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
  bool is_done = false, is_wanted = true;
  int result = nccl::kSuccess;
  nccl::Communicator* communicator = nullptr;  // null when it failed
  CudaProblem problem{};

  static void* run(void* self) {
    auto* const joining = static_cast<Joining*>(self);
    (void)cudaSetDevice(joining->device);
    nccl::Communicator* made = nullptr;
    const int result = api.comm_init_rank(&made, joining->n_ranks, joining->id, joining->rank);
    if (!is_good(result, joining->device, nullptr, joining->problem)) made = nullptr;
    pthread_mutex_lock(&joining->mutex);
    joining->result = result;
    joining->communicator = made;
    joining->is_done = true;
    const bool is_wanted = joining->is_wanted;
    pthread_cond_signal(&joining->changed);
    pthread_mutex_unlock(&joining->mutex);
    if (is_wanted) return nullptr;
    if (made != nullptr) (void)api.comm_abort(made);
    delete joining;
    return nullptr;
  }
  // Whether the thread is done; else it owns this.
  bool wait_done(CudaWait& wait) {
    constexpr int64_t kNs = 1'000'000'000, kStepNs = 1'000'000;
    pthread_mutex_lock(&mutex);
    while (!is_done && is_wanted) {
      timespec until{};
      clock_gettime(CLOCK_MONOTONIC, &until);
      until.tv_nsec += kStepNs;
      until.tv_sec += until.tv_nsec / kNs;
      until.tv_nsec %= kNs;
      (void)pthread_cond_clockwait(&changed, &mutex, CLOCK_MONOTONIC, &until);
      if (!is_done) is_wanted = wait.goes_on();
    }
    const bool done = is_done;
    pthread_mutex_unlock(&mutex);
    return done;
  }
};

class NcclRank final : public CudaRank {
 public:
  NcclRank(CudaStream& stream, int32_t rank, int32_t n_ranks, nccl::Communicator* communicator)
      : stream_(stream), rank_(rank), n_ranks_(n_ranks), communicator_(communicator) {}
  // Destroying the communicator would wait for the others, which may be gone.
  ~NcclRank() override {
    abort();
    if (is_aborting_) pthread_join(aborter_, nullptr);
  }

  void all_gather(void* data, uint64_t bytes) override {
    submit([&] {
      return api.all_gather(static_cast<char*>(data) + static_cast<uint64_t>(rank_) * bytes, data,
                            bytes, nccl::kBytes, communicator_, stream_.handle);
    });
  }
  void gather(const void* part, void* parts, uint64_t bytes, int32_t root) override {
    if (rank_ != root) return send(part, bytes, root);
    stream_.note(cudaMemcpyAsync(static_cast<char*>(parts) + static_cast<uint64_t>(rank_) * bytes,
                                 part, bytes, cudaMemcpyDeviceToDevice, of(stream_).handle));
    submit([&] {
      int result = api.group_start();
      for (int32_t from = 0; from < n_ranks_ && result == nccl::kSuccess; ++from) {
        if (from == rank_) continue;
        result = api.receive(static_cast<char*>(parts) + static_cast<uint64_t>(from) * bytes, bytes,
                             nccl::kBytes, from, communicator_, stream_.handle);
      }
      const int ended = api.group_end();
      return result == nccl::kSuccess ? ended : result;
    });
  }
  void broadcast(void* data, uint64_t bytes, int32_t root) override {
    submit([&] {
      return api.broadcast(data, data, bytes, nccl::kBytes, root, communicator_, stream_.handle);
    });
  }
  void send(const void* data, uint64_t bytes, int32_t to) override {
    submit([&] { return api.send(data, bytes, nccl::kBytes, to, communicator_, stream_.handle); });
  }
  void receive(void* data, uint64_t bytes, int32_t from) override {
    submit([&] {
      return api.receive(data, bytes, nccl::kBytes, from, communicator_, stream_.handle);
    });
  }

  bool check(CudaProblem& problem) override {
    if (failed_.text[0] != '\0') {
      problem = failed_;
      return false;
    }
    if (communicator_ == nullptr) return true;
    int error = nccl::kSuccess;
    const int result = api.comm_get_async_error(communicator_, &error);
    return is_good(result == nccl::kSuccess ? error : result, problem);
  }
  // NCCL ends what is under way, and then waits until no graph has an exchange of this communicator, and for
  // all work of the device, another communicator's perhaps. So another thread waits.
  void abort() override {
    if (communicator_ == nullptr) return;
    aborted_ = communicator_;
    communicator_ = nullptr;
    const auto run = [](void* self) -> void* {
      auto* const rank = static_cast<NcclRank*>(self);
      (void)cudaSetDevice(rank->stream_.device);
      (void)api.comm_abort(rank->aborted_);
      return nullptr;
    };
    is_aborting_ = pthread_create(&aborter_, nullptr, run, this) == 0;
    if (!is_aborting_) run(this);
  }

 private:
  template <typename Fn>
  void submit(Fn&& call) {
    of(stream_);
    if (communicator_ == nullptr) return;  // aborted
    CudaProblem problem;
    if (is_good(call(), problem)) return;
    // Of a capture nothing runs, and the stream says that it has failed.
    if (failed_.text[0] == '\0' && !stream_.capturing) failed_ = problem;
    stream_.note(cudaErrorLaunchFailure);
  }
  bool is_good(int result, CudaProblem& problem) const {
    return cuda::is_good(result, stream_.device, communicator_, problem);
  }

  CudaStream& stream_;
  const int32_t rank_, n_ranks_;
  nccl::Communicator *communicator_, *aborted_ = nullptr;
  pthread_t aborter_{};
  bool is_aborting_ = false;
  CudaProblem failed_;  // the first call that failed
};

}  // namespace

bool make_group(CudaGroupId* id, CudaProblem& problem) {
  if (!has_nccl(problem)) return false;
  if (id == nullptr) return true;
  nccl::UniqueId unique{};
  const int result = api.get_unique_id(&unique);
  std::memcpy(id->bytes, unique.internal, sizeof(id->bytes));
  if (result == nccl::kSuccess) return true;
  std::snprintf(problem.text, sizeof(problem.text), "NCCL: %s: %s", api.get_error_string(result),
                api.get_last_error(nullptr));
  return false;
}

CudaRank* join_group(CudaStream& stream, const CudaGroupId& id, int32_t rank, int32_t n_ranks,
                     CudaWait& wait, CudaProblem& problem) {
  if (!has_nccl(problem)) return nullptr;
  auto* const joining = new Joining{.rank = rank, .n_ranks = n_ranks, .device = stream.device};
  static_assert(sizeof(joining->id.internal) == sizeof(id.bytes));
  std::memcpy(joining->id.internal, id.bytes, sizeof(id.bytes));
  pthread_t thread{};
  if (pthread_create(&thread, nullptr, &Joining::run, joining) != 0) {
    delete joining;
    std::snprintf(problem.text, sizeof(problem.text), "cuda:%d: NCCL: no thread to join with",
                  stream.device);
    return nullptr;
  }
  if (!joining->wait_done(wait)) {
    pthread_detach(thread);
    std::snprintf(problem.text, sizeof(problem.text), "cuda:%d: NCCL: not all ranks have joined",
                  stream.device);
    return nullptr;
  }
  pthread_join(thread, nullptr);
  // Another rank has failed, and may still have to tell why, which says more than this.
  constexpr int kTellMs = 1'000;
  for (int ms = 0; joining->result == nccl::kRemoteError && ms < kTellMs && wait.goes_on(); ++ms) {
    usleep(1'000);
  }
  problem = joining->problem;
  nccl::Communicator* const made = joining->communicator;
  delete joining;
  return made == nullptr ? nullptr : new NcclRank(stream, rank, n_ranks, made);
}

}  // namespace specd::kernels::cuda
