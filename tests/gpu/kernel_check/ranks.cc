// Exchanges between ranks by NCCL: one rank, and with several devices two and more, at most four. Each exchange
// alone and as a graph on every rank but the last.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/gpu/kernel_check/rig.h"

namespace specd::kernels {
namespace {

constexpr int32_t kRanksMax = 4;
constexpr uint64_t kNumbers = 70'001, kBytes = kNumbers * sizeof(int32_t);

// Element 0 is enough to know whose and when; the rest shows that all of it came.
std::vector<int32_t> numbers_of(int32_t rank, int32_t round) {
  std::vector<int32_t> numbers(kNumbers);
  for (uint64_t i = 0; i < kNumbers; ++i) {
    numbers[i] = 10'000'000 * rank + 1'000'000 * round + static_cast<int32_t>(i);
  }
  return numbers;
}

// Waits like the engine: not when another rank has failed, and not for ever.
bool wait(CudaDevice* device, CudaRank* end, const std::atomic<bool>& has_failed,
          CudaProblem& problem) {
  const auto last = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!device->is_done()) {
    std::this_thread::yield();
    if (!has_failed && std::chrono::steady_clock::now() < last && end->check(problem)) continue;
    end->abort();
    std::snprintf(problem.text, sizeof(problem.text), "its stream waits for another rank");
    return false;
  }
  return device->synchronize(problem);
}

class UntilOneFails final : public CudaWait {
 public:
  explicit UntilOneFails(const std::atomic<bool>& has_failed) : has_failed_(has_failed) {}
  bool goes_on() override { return !has_failed_; }

 private:
  const std::atomic<bool>& has_failed_;
};

// One rank, in a thread of its own. Returns "" or what was wrong.
std::string run_rank(CudaDevice* device, const CudaGroupId& id, int32_t rank, int32_t n,
                     std::atomic<bool>& has_failed) {
  CudaProblem problem;
  UntilOneFails joins(has_failed);
  CudaRank* end = device->join(id, rank, n, joins, problem);
  if (end == nullptr) {
    has_failed = true;
    return problem.text;
  }
  const auto n_parts = static_cast<uint64_t>(n);
  std::string wrong;
  auto* mine = static_cast<int32_t*>(device->allocate_pinned(kBytes, problem));
  auto* seen = static_cast<int32_t*>(device->allocate_pinned((2 * n_parts + 2) * kBytes, problem));
  auto* data = static_cast<char*>(device->allocate((2 * n_parts + 3) * kBytes, problem));
  if (mine == nullptr || seen == nullptr || data == nullptr) wrong = problem.text;
  // Gathered by all, by the last rank, of rank 0, of the rank before, and what this one has.
  char *const by_all = data, *const by_last = data + n_parts * kBytes,
              *const of_first = data + 2 * n_parts * kBytes, *const before = of_first + kBytes,
              *const own = before + kBytes;
  const int32_t last = n - 1;
  const auto submit = [&] {
    for (char* to : {own, of_first, by_all + static_cast<uint64_t>(rank) * kBytes}) {
      device->copy_in(to, mine, kBytes);
    }
    end->all_gather(by_all, kBytes);
    end->gather(own, rank == last ? by_last : nullptr, kBytes, last);
    end->broadcast(of_first, kBytes, 0);
    if (n > 1) {
      if (rank == 0) end->send(own, kBytes, 1);
      end->receive(before, kBytes, (rank + n - 1) % n);
      if (rank != 0) end->send(own, kBytes, (rank + 1) % n);
    }
    device->copy_out(seen, data, (2 * n_parts + 2) * kBytes);
  };
  int32_t graph = -1;
  for (int32_t round = 0; round < 3 && wrong.empty(); ++round) {
    const std::vector<int32_t> numbers = numbers_of(rank, round);
    std::copy(numbers.begin(), numbers.end(), mine);
    if (round == 1 && (rank != last || n == 1)) {
      if (device->begin_capture(problem)) {
        submit();
        graph = device->end_capture(problem);
      }
      if (graph < 0) wrong = problem.text;
    }
    if (wrong.empty()) graph < 0 ? submit() : device->launch(graph);
    if (wrong.empty() && !wait(device, end, has_failed, problem)) wrong = problem.text;
    const auto expect = [&](const char* what, uint64_t place, int32_t of) {
      if (!wrong.empty()) return;
      const int32_t* found = seen + place * kNumbers;
      if (std::vector<int32_t>(found, found + kNumbers) == numbers_of(of, round)) return;
      wrong = std::string(what) + " of rank " + std::to_string(of) + " is wrong on rank " +
              std::to_string(rank) + ", round " + std::to_string(round);
    };
    for (int32_t of = 0; of < n; ++of) {
      expect("all_gather", static_cast<uint64_t>(of), of);
      if (rank == last) expect("gather", n_parts + static_cast<uint64_t>(of), of);
    }
    expect("broadcast", 2 * n_parts, 0);
    if (n > 1) expect("send", 2 * n_parts + 1, (rank + n - 1) % n);
  }
  if (!wrong.empty()) has_failed = true;
  (void)device->synchronize(problem);
  if (graph >= 0) device->release_graph(graph);
  delete end;
  if (data != nullptr) device->release(data);
  if (seen != nullptr) device->release_pinned(seen);
  if (mine != nullptr) device->release_pinned(mine);
  return wrong;
}

}  // namespace

void check_ranks(Rig& rig) {
  const CudaLibrary& library = *rig.gpu.library;
  CudaProblem problem;
  if (!library.make_group(nullptr, problem)) {
    std::printf("       not run: %s\n", problem.text);
    return;
  }
  const int32_t most = std::min(library.count(problem), kRanksMax);
  for (int32_t n = 1; n <= most; ++n) {
    CudaGroupId id;
    std::string wrong;
    if (!library.make_group(&id, problem)) wrong = problem.text;
    std::vector<CudaDevice*> devices;
    while (wrong.empty() && static_cast<int32_t>(devices.size()) < n) {
      devices.push_back(
          library.open(static_cast<int32_t>(devices.size()), {.scratch_bytes = 1 << 20}, problem));
      if (devices.back() == nullptr) wrong = problem.text;
    }
    std::vector<std::thread> ranks;
    std::mutex mutex;
    std::atomic<bool> has_failed{false};
    const int32_t n_started = wrong.empty() ? n : 0;
    for (int32_t rank = 0; rank < n_started; ++rank) {
      ranks.emplace_back([&, rank] {
        const std::string found =
            run_rank(devices[static_cast<size_t>(rank)], id, rank, n, has_failed);
        const std::lock_guard lock(mutex);
        if (wrong.empty()) wrong = found;
      });
    }
    for (std::thread& each : ranks) each.join();
    for (CudaDevice* each : devices) delete each;
    rig.report.check(std::to_string(n) + (n == 1 ? " rank exchanges" : " ranks exchange") +
                         " by NCCL, alone and in a graph",
                     wrong.empty(), wrong);
  }
}

}  // namespace specd::kernels
