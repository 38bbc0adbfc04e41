#include "tests/device/fake_cuda.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "specd/kernels/cpu.h"
#include "specd/kernels/cuda.h"
#include "tests/device/strict_nccl/group.h"

namespace specd::fake_cuda {
namespace {

using namespace specd::kernels;

std::mutex g_mutex;
Record g_record;  // guarded by g_mutex

void note(const std::string& call) {
  const std::lock_guard lock(g_mutex);
  g_record.calls.push_back(call);
}
void fault(const std::string& words) {
  const std::lock_guard lock(g_mutex);
  g_record.faults.push_back(words);
}

std::string setting(const std::string& name, bool* found = nullptr) {
  const char* all = std::getenv("SPECD_FAKE_CUDA");
  std::string words = std::string(",") + (all == nullptr ? "" : all) + ",";
  const size_t at = words.find("," + name);
  const size_t end = at + 1 + name.size();
  const bool has = at != std::string::npos && (words[end] == ',' || words[end] == '=');
  if (found != nullptr) *found = has;
  if (!has || words[end] != '=') return "";
  return words.substr(end + 1, words.find(',', end) - end - 1);
}
bool has(const std::string& name) {
  bool found = false;
  setting(name, &found);
  return found;
}
uint64_t number(const std::string& name, uint64_t otherwise) {
  const std::string text = setting(name);
  return text.empty() ? otherwise : std::stoull(text);
}

constexpr uint64_t kScratchBytes = 4096;  // never used

void say(CudaProblem& problem, const std::string& text) {
  std::snprintf(problem.text, sizeof(problem.text), "%s", text.c_str());
}

// Blocks of one kind of memory, each on separate pages.
class Memory {
 public:
  explicit Memory(int idle) : idle_(idle) {}
  ~Memory() {
    if (!blocks_.empty()) fault(std::to_string(blocks_.size()) + " blocks were never released");
    for (const auto& [data, bytes] : blocks_) munmap(data, bytes);
  }
  void* allocate(uint64_t bytes) {
    const uint64_t pages = (std::max<uint64_t>(bytes, 1) + 4095) / 4096 * 4096;
    void* data = mmap(nullptr, pages, idle_, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const std::lock_guard lock(mutex_);
    blocks_[static_cast<char*>(data)] = pages;
    used_ += pages;
    return data;
  }
  void release(void* data) {
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(static_cast<char*>(data));
    if (found == blocks_.end()) return fault("memory was released that is not there");
    used_ -= found->second;
    munmap(found->first, found->second);
    blocks_.erase(found);
  }
  bool holds(const void* data, uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    auto after = blocks_.upper_bound(const_cast<char*>(static_cast<const char*>(data)));
    if (after == blocks_.begin()) return false;
    --after;
    return static_cast<const char*>(data) + bytes <= after->first + after->second;
  }
  void protect(int how) {
    if (idle_ != PROT_NONE) return;
    const std::lock_guard lock(mutex_);
    for (const auto& [data, bytes] : blocks_) mprotect(data, bytes, how);
  }
  uint64_t used() {
    const std::lock_guard lock(mutex_);
    return used_;
  }

 private:
  const int idle_;
  std::mutex mutex_;
  std::map<char*, uint64_t> blocks_;
  uint64_t used_ = 0;
};

// The memory of a device, which all its streams share. Their work takes turns.
struct Machine {
  Memory device{has("open") ? PROT_READ | PROT_WRITE : PROT_NONE}, pinned{PROT_READ | PROT_WRITE};
  std::mutex running;

  static std::shared_ptr<Machine> of(int32_t index) {
    static std::mutex mutex;
    static std::map<int32_t, std::weak_ptr<Machine>> all;
    const std::lock_guard lock(mutex);
    std::shared_ptr<Machine> machine = all[index].lock();
    if (machine == nullptr) all[index] = machine = std::make_shared<Machine>();
    return machine;
  }
};

class FakeStream final : public Stream {
 public:
  explicit FakeStream(int32_t index) : machine_(Machine::of(index)) {}
  using Work = std::function<void()>;
  struct Item {
    std::string name;
    std::function<bool()> work;  // false: it waits for another rank
  };
  Memory& device() { return machine_->device; }
  Memory& pinned() { return machine_->pinned; }
  std::deque<Item> queue;
  std::deque<Item>* recording = nullptr;
  std::string failed;

  void submit(std::string name, Work work) {
    submit_waiting(std::move(name), [work = std::move(work)] {
      work();
      return true;
    });
  }
  void submit_waiting(std::string name, std::function<bool()> work) {
    note(name);
    (recording != nullptr ? *recording : queue).push_back({std::move(name), std::move(work)});
  }
  void fail(const std::string& why) {
    fault(why);
    if (failed.empty()) failed = why;
  }
  // Checks that the device may read and write `data`.
  bool on_device(const char* op, const void* data, uint64_t bytes = 1) {
    if (data == nullptr || device().holds(data, bytes)) return true;
    fail(std::string(op) + ": " + std::to_string(bytes) + " bytes that are not the device's");
    return false;
  }
  void run() {
    while (!advance()) {
    }
  }
  // Runs what can run, and looks for a while at what waits. True: nothing is left.
  bool advance() {
    if (queue.empty()) return true;
    const std::lock_guard lock(machine_->running);
    device().protect(PROT_READ | PROT_WRITE);
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(1);
    while (!queue.empty() && std::chrono::steady_clock::now() < end) {
      const Item item = queue.front();
      if (!item.work()) {
        std::this_thread::yield();
      } else if (!queue.empty()) {  // not cleared by a failure
        queue.pop_front();
      }
    }
    device().protect(PROT_NONE);
    return queue.empty();
  }

 private:
  const std::shared_ptr<Machine> machine_;
};

CpuStream& cpu() {
  static WorkerPool pool(1);
  static CpuStream stream(pool);
  return stream;
}
const Ops& cpu_table() { return cpu_ops(best_isa()); }
FakeStream& of(Stream& stream) { return static_cast<FakeStream&>(stream); }

// Checks columns of n 4-byte numbers and the other pointers of an op.
template <typename Args, typename... Pointers>
void op(Stream& any, const char* name, void (*run)(Stream&, const Args&), const Args& args,
        Pointers... pointers) {
  FakeStream& stream = of(any);
  const bool good = (stream.on_device(name, pointers) && ...);
  if (!good) return;
  stream.submit(name, [run, args] { run(cpu(), args); });
}

size_t packed_bytes(DType type, int32_t n_out, int32_t n_in) {
  return cpu_table().packed_bytes(type, n_out, n_in);
}

// A device has scratch memory of its own, the CPU's op takes it from its caller.
void matmul(Stream& stream, const MatmulArgs& args) {
  constexpr size_t kAlign = 64;
  std::vector<char> scratch(matmul_scratch_bytes(args.weights, args.n_rows) + kAlign);
  const auto begin = reinterpret_cast<uintptr_t>(scratch.data());
  MatmulArgs a = args;
  a.scratch = scratch.data() + (kAlign - begin % kAlign);
  cpu_table().matmul(stream, a);
}
size_t packed_code_bytes(const CodeOrder& order, int32_t n_out) {
  return cpu_table().packed_code_bytes(order, n_out);
}

const Ops& table() {
  static const Ops ops = {
      "fake-cuda",
      // As strict as the real one.
      [](DType type) { return SplitRule{.grain = type == DType::kBF16 ? 16 : 1}; },
      packed_bytes,
      // Runs at once: the source is host memory and may be freed after the call.
      [](Stream& s, const PackArgs& a) {
        FakeStream& stream = of(s);
        if (!stream.on_device("pack", a.packed.data)) return;
        if (stream.recording != nullptr) return stream.fail("pack in a capture");
        stream.submit("pack", [a] { cpu_table().pack(cpu(), a); });
        stream.run();
      },
      [](Stream& s, const EmbedArgs& a) {
        op(s, "embed", cpu_table().embed, a, a.table, a.token, a.out);
      },
      [](Stream& s, const RmsNormArgs& a) {
        op(s, "rmsnorm", cpu_table().rmsnorm, a, a.x, a.delta, a.weight, a.out);
      },
      [](Stream& s, const HeadNormArgs& a) {
        op(s, "head_norm", cpu_table().head_norm, a, a.qkv, a.q_weight, a.k_weight);
      },
      [](Stream& s, const MatmulArgs& a) {
        const CodeOrder none, &order = a.weights.order == nullptr ? none : *a.weights.order;
        op(s, "matmul", matmul, a, a.x, a.weights.data, a.out, order.runs, order.source);
      },
      [](Stream& s, const AddSegmentsArgs& a) {
        op(s, "add_segments", cpu_table().add_segments, a, a.parts, a.out);
      },
      [](Stream& s, const RopeTableArgs& a) {
        op(s, "rope_table", cpu_table().rope_table, a, a.position, a.inv_freq, a.cos_sin);
      },
      [](Stream& s, const RopeAppendArgs& a) {
        op(s, "rope_append", cpu_table().rope_append, a, a.qkv, a.cos_sin, a.slot, a.kv.k, a.kv.v);
      },
      [](Stream& s, const AttentionArgs& a) {
        op(s, "attention", cpu_table().attention, a, a.qkv, a.out, a.kv.k, a.kv.v, a.position,
           a.span, a.table, a.pages, a.tail_begin, a.tail);
      },
      [](Stream& s, const MapArgs& a) { op(s, "map", cpu_table().map, a, a.x, a.y, a.out); },
      [](Stream& s, const CopyRowsArgs& a) {
        op(s, "copy_rows", cpu_table().copy_rows, a, a.from, a.to, a.from_row, a.to_row);
      },
      [](Stream& s, const KvMoveArgs& a) {
        op(s, "kv_move", cpu_table().kv_move, a, a.kv.k, a.kv.v, a.from, a.to);
      },
      [](Stream& s, const PenalizeArgs& a) {
        op(s, "penalize", cpu_table().penalize, a, a.logits, a.row, a.seen, a.path, a.token,
           a.bias);
      },
      [](Stream& s, const DrawArgs& a) {
        op(s, "draw", cpu_table().draw, a, a.logits, a.row, a.token, a.law, a.lse);
      },
      [](Stream& s, const DrawNoiseArgs& a) {
        op(s, "draw_noise", cpu_table().draw_noise, a, a.seed, a.position, a.out);
      },
      [](Stream& s, const UniformArgs& a) {
        op(s, "uniform", cpu_table().uniform, a, a.row, a.sequence, a.position, a.out);
      },
      [](Stream& s, const TopKArgs& a) { op(s, "top_k", cpu_table().top_k, a, a.logits, a.token); },
      [](Stream& s, const LogProbArgs& a) {
        op(s, "log_prob", cpu_table().log_prob, a, a.logits, a.token, a.out);
      },
      [](Stream& s, const PickTokensArgs& a) {
        op(s, "pick_tokens", cpu_table().pick_tokens, a, a.source, a.from, a.target, a.to);
      },
      [](Stream& s, const ClampNodesArgs& a) {
        op(s, "clamp_nodes", cpu_table().clamp_nodes, a, a.n_nodes, a.token);
      },
      [](Stream& s, const WalkTreeArgs& a) {
        op(s, "walk_tree", cpu_table().walk_tree, a, a.n_nodes, a.token, a.parent, a.flags,
           a.wanted, a.n_path, a.path, a.last);
      },
      packed_code_bytes,
  };
  return ops;
}

class FakeRank final : public CudaRank {
 public:
  using Operation = strict_nccl::Operation;

  FakeRank(FakeStream& stream, int32_t rank, int32_t n_ranks,
           std::unique_ptr<strict_nccl::Rank> joined)
      : stream_(stream), rank_(rank), n_ranks_(n_ranks), joined_(std::move(joined)) {}
  ~FakeRank() override { abort(); }

  void all_gather(void* data, uint64_t bytes) override {
    auto* all = static_cast<char*>(data);
    if (!stream_.on_device("all_gather", all, bytes * static_cast<uint64_t>(n_ranks_))) return;
    submit("all_gather", {of(Operation::Kind::kAllGather,
                             all + static_cast<uint64_t>(rank_) * bytes, all, bytes, 0)});
  }
  void gather(const void* part, void* parts, uint64_t bytes, int32_t root) override {
    if (rank_ != root) return send(part, bytes, root);
    auto* all = static_cast<char*>(parts);
    if (!stream_.on_device("gather", part, bytes) ||
        !stream_.on_device("gather", all, bytes * static_cast<uint64_t>(n_ranks_))) {
      return;
    }
    char* const mine = all + static_cast<uint64_t>(rank_) * bytes;
    stream_.submit("copy", [=] { std::memcpy(mine, part, bytes); });
    std::vector<Operation> group;
    for (int32_t from = 0; from < n_ranks_; ++from) {
      if (from == rank_) continue;
      group.push_back(of(Operation::Kind::kReceive, nullptr,
                         all + static_cast<uint64_t>(from) * bytes, bytes, from));
    }
    submit("gather", std::move(group));
  }
  void broadcast(void* data, uint64_t bytes, int32_t root) override {
    if (!stream_.on_device("broadcast", data, bytes)) return;
    submit("broadcast", {of(Operation::Kind::kBroadcast, data, data, bytes, root)});
  }
  void send(const void* data, uint64_t bytes, int32_t to) override {
    if (!stream_.on_device("send", data, bytes)) return;
    submit("send", {of(Operation::Kind::kSend, data, nullptr, bytes, to)});
  }
  void receive(void* data, uint64_t bytes, int32_t from) override {
    if (!stream_.on_device("receive", data, bytes)) return;
    submit("receive", {of(Operation::Kind::kReceive, nullptr, data, bytes, from)});
  }
  bool check(CudaProblem& problem) override {
    const std::string why = joined_->failure();
    if (!why.empty()) say(problem, "NCCL: " + why);
    return why.empty();
  }
  void abort() override { joined_->abort(); }

 private:
  static Operation of(Operation::Kind kind, const void* from, void* to, uint64_t bytes,
                      int32_t other) {
    return {.kind = kind,
            .from = from,
            .to = to,
            .count = bytes,
            .type = 1,
            .bytes = bytes,
            .other = other};
  }
  void submit(const char* name, std::vector<Operation> group) {
    stream_.submit_waiting(name, [&stream = stream_, joined = joined_, group = std::move(group)] {
      const auto state = joined->advance(group);
      if (state == strict_nccl::Rank::State::kFailed) {
        stream.queue.clear();
        if (!joined->failure().empty()) stream.fail("NCCL: " + joined->failure());
      }
      return state != strict_nccl::Rank::State::kWaits;
    });
  }

  FakeStream& stream_;
  const int32_t rank_, n_ranks_;
  const std::shared_ptr<strict_nccl::Rank> joined_;
};

class FakeDevice final : public CudaDevice {
 public:
  FakeDevice(int32_t index, uint64_t bytes)
      : stream_(index),
        fail_after_(number("fail_after", ~uint64_t{0})),
        fail_capture_(has("fail_capture")) {
    info_.index = index;
    std::snprintf(info_.name, sizeof(info_.name), "Fake GPU");
    info_.major = 9;
    info_.multiprocessors = 1;
    info_.total_bytes = info_.free_bytes = bytes;
    info_.scratch_bytes = kScratchBytes;
  }
  ~FakeDevice() override {
    stream_.run();
    const std::lock_guard lock(g_mutex);
    g_record.n_graphs -= n_graphs_;
  }

  const CudaDeviceInfo& info() const override { return info_; }
  const Ops& ops() const override { return table(); }
  Stream& stream() override { return stream_; }
  void* native_stream() override { return static_cast<CudaDevice*>(this); }

  void* allocate(uint64_t bytes, CudaProblem& problem) override {
    const uint64_t left = info_.total_bytes - stream_.device().used();
    if (bytes > left) {
      say(problem, "cuda:" + std::to_string(info_.index) + " needs " + std::to_string(bytes) +
                       " bytes, has " + std::to_string(left) + " free of " +
                       std::to_string(info_.total_bytes) + ": out of memory");
      return nullptr;
    }
    note("allocate");
    return stream_.device().allocate(bytes);
  }
  void release(void* data) override { stream_.device().release(data); }
  void* allocate_pinned(uint64_t bytes, CudaProblem&) override {
    note("allocate_pinned");
    return stream_.pinned().allocate(bytes);
  }
  void release_pinned(void* data) override { stream_.pinned().release(data); }

  void copy_in(void* device, const void* host, uint64_t bytes) override {
    copy("copy_in", device, host, device, host, bytes);
  }
  void copy_out(void* host, const void* device, uint64_t bytes) override {
    copy("copy_out", device, host, host, device, bytes);
  }

  bool begin_capture(CudaProblem& problem) override {
    if (!synchronize(problem)) return false;
    note("begin_capture");
    captured_.clear();
    stream_.recording = &captured_;
    return true;
  }
  int32_t end_capture(CudaProblem& problem) override {
    note("end_capture");
    stream_.recording = nullptr;
    if (fail_capture_ || !stream_.failed.empty()) {
      say(problem, "capture: " + (fail_capture_ ? "as asked for" : stream_.failed));
      stream_.failed.clear();
      return -1;
    }
    const std::lock_guard lock(g_mutex);
    ++g_record.n_graphs;
    ++n_graphs_;
    graphs_[++last_graph_] = std::move(captured_);
    return last_graph_;
  }
  void launch(int32_t graph) override {
    const auto found = graphs_.find(graph);
    if (found == graphs_.end()) return stream_.fail("a graph that is not there was launched");
    note("launch");
    // Like a device, a launch uses the columns' content at the time it runs.
    stream_.queue.insert(stream_.queue.end(), found->second.begin(), found->second.end());
    const std::lock_guard lock(g_mutex);
    g_record.n_launched_ops += found->second.size();
  }
  void release_graph(int32_t graph) override {
    if (graphs_.erase(graph) == 0) return stream_.fail("a graph was released twice");
    const std::lock_guard lock(g_mutex);
    --g_record.n_graphs;
    --n_graphs_;
  }
  bool is_done() override {
    if (stream_.recording != nullptr) stream_.fail("is_done() in a capture");
    return stream_.advance();
  }
  CudaRank* join(const CudaGroupId& id, int32_t rank, int32_t n_ranks, CudaWait& wait,
                 CudaProblem& problem) override {
    strict_nccl::GroupId group;
    std::memcpy(group.bytes, id.bytes, sizeof(group.bytes));
    std::string why;
    auto joined = strict_nccl::Rank::join(
        group, rank, n_ranks, "cuda:" + std::to_string(info_.index),
        [&wait] { return wait.goes_on(); }, why);
    if (joined == nullptr) return say(problem, "NCCL: " + why), nullptr;
    return new FakeRank(stream_, rank, n_ranks, std::move(joined));
  }
  bool synchronize(CudaProblem& problem) override {
    if (stream_.recording != nullptr) stream_.fail("synchronize() in a capture");
    note("synchronize");
    if (++n_synchronized_ >= fail_after_) {
      stream_.queue.clear();
      say(problem, "cuda:" + std::to_string(info_.index) +
                       " (Fake GPU): unspecified launch failure (cudaErrorLaunchFailure)");
      return false;
    }
    stream_.run();
    if (stream_.failed.empty()) return true;
    say(problem, stream_.failed);
    stream_.failed.clear();
    return false;
  }
  void submit(void (*kernel)(const void*), const std::string& args) {
    stream_.submit("plugin", [=] {
      // Aligned as the original arguments.
      alignas(std::max_align_t) char copy[256];
      std::memcpy(copy, args.data(), std::min(args.size(), sizeof(copy)));
      kernel(copy);
    });
  }
  void mark(int32_t) override {}
  uint64_t elapsed_ns() override { return 0; }

 private:
  void copy(const char* name, const void* device, const void* host, void* to, const void* from,
            uint64_t bytes) {
    if (!stream_.on_device(name, device, bytes)) return;
    const bool pinned = stream_.pinned().holds(host, bytes);
    if (!pinned && stream_.recording != nullptr) {
      return stream_.fail(std::string(name) + " of memory that is not pinned, in a capture");
    }
    stream_.submit(name, [=] { std::memcpy(to, from, bytes); });
    if (pinned) return;
    note("wait");
    stream_.run();
  }

  CudaDeviceInfo info_;
  FakeStream stream_;
  std::deque<FakeStream::Item> captured_;
  std::map<int32_t, std::deque<FakeStream::Item>> graphs_;
  int32_t last_graph_ = -1;
  uint64_t n_graphs_ = 0, n_synchronized_ = 0;
  const uint64_t fail_after_;
  const bool fail_capture_;
};

int32_t count(CudaProblem& problem) {
  if (has("no_driver")) return say(problem, "no CUDA driver is installed (fake)"), -1;
  if (has("old_driver")) {
    return say(problem, "the CUDA driver is for CUDA 11.4, this library is built with 12.6"), -1;
  }
  return has("no_device") ? 0 : static_cast<int32_t>(number("devices", 1));
}

CudaDevice* open(int32_t index, const CudaLimits&, CudaProblem& problem) {
  const int32_t n = count(problem);
  if (n < 0) return nullptr;
  const std::string name = "cuda:" + std::to_string(index);
  if (index < 0 || index >= n) {
    return say(problem, name + ": this machine has " + std::to_string(n) + " CUDA devices"),
           nullptr;
  }
  if (has("old_gpu")) {
    say(problem, name + ": Fake GPU has compute capability 6.1, needed is 8.0 or later");
    return nullptr;
  }
  return new FakeDevice(index, number("bytes", uint64_t{8} << 30));
}

bool make_group(CudaGroupId* id, CudaProblem& problem) {
  if (has("no_nccl")) return say(problem, "ranks need NCCL (fake)"), false;
  if (id == nullptr) return true;
  strict_nccl::GroupId group;
  std::string why;
  if (!strict_nccl::make_group(group, why)) return say(problem, why), false;
  std::memcpy(id->bytes, group.bytes, sizeof(group.bytes));
  return true;
}

constexpr CudaLibrary kLibrary = {kCudaBuild, sizeof(Ops), &count, &open, &make_group};

}  // namespace
}  // namespace specd::fake_cuda

extern "C" __attribute__((visibility("default"))) const specd::kernels::CudaLibrary*
specd_cuda_library() {
  return &specd::fake_cuda::kLibrary;
}
extern "C" __attribute__((visibility("default"))) void specd_fake_cuda_take_record(
    specd::fake_cuda::Record* out) {
  const std::lock_guard lock(specd::fake_cuda::g_mutex);
  specd::fake_cuda::Record& all = specd::fake_cuda::g_record;
  *out = all;
  all.calls.clear();
  all.faults.clear();
  all.n_launched_ops = 0;
}

// Submits a plugin's "kernel" in stream order: a function and a copy of its arguments.
extern "C" __attribute__((visibility("default"))) void specd_fake_cuda_submit(
    void* stream, void (*kernel)(const void*), const void* args, size_t bytes) {
  static_cast<specd::fake_cuda::FakeDevice*>(static_cast<specd::kernels::CudaDevice*>(stream))
      ->submit(kernel, std::string(static_cast<const char*>(args), bytes));
}

// Adds a line of the caller to the record.
extern "C" __attribute__((visibility("default"))) void specd_fake_cuda_note(const char* line) {
  specd::fake_cuda::note(line);
}
