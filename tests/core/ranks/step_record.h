// A worker's run as bytes: every StepInput with its StepOutput, and every KV move, in order. One
// process records, another computes it again.
#pragma once

#include <cstdint>
#include <fstream>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/ranks/worker.h"

namespace specd {

enum class StepRecordKind : uint8_t { kRun = 1, kMove = 2 };

struct StepRecordEntry {
  StepRecordKind kind{};
  StepInput input;  // kRun
  StepOutput output;
  std::vector<int32_t> top;              // what output.top views
  std::vector<std::vector<float>> taps;  // what output.taps views
  std::vector<int32_t> from, to;         // kMove
};

// A result of a step as it is in host memory; empty when it was not copied there.
template <typename T>
std::span<const T> on_host(const Column<const T>& column) {
  return {column.host, column.host == nullptr ? 0 : column.n};
}

// Calls fn(column) for every column of the input, in one order for writing and reading.
template <typename Input, typename Fn>
void each_column(Input& input, Fn&& fn) {
  auto& r = input.rows;
  for (auto* column : {&r.token, &r.position, &r.slot, &r.span, &r.table, &r.tail_begin, &r.pages,
                       &r.tail, &r.logits_rows, &r.tap_rows}) {
    fn(*column);
  }
  fn(input.draws);
  fn(input.penalty_row);
  fn(input.penalty_seen);
  fn(input.penalty_path);
  fn(input.penalty_bias);
}

class StepRecordWriter {
 public:
  explicit StepRecordWriter(const std::string& path) : file_(path, std::ios::binary) {}

  // `input` has no picks.
  void run(const StepInput& input, const StepOutput& output) {
    put(StepRecordKind::kRun);
    each_column(input, [this](const auto& column) { put_column(column); });
    put(input.top_k);
    put(input.taps_to_host);
    put_column(output.drawn);
    put_column(on_host(output.top));
    put(static_cast<uint32_t>(output.taps.size()));
    for (const Column<const float>& tap : output.taps) put_column(on_host(tap));
  }
  void move(const std::vector<int32_t>& from, const std::vector<int32_t>& to) {
    put(StepRecordKind::kMove);
    put_column(from);
    put_column(to);
  }
  void add(const StepRecordEntry& entry) {
    if (entry.kind == StepRecordKind::kRun) run(entry.input, entry.output);
    if (entry.kind == StepRecordKind::kMove) move(entry.from, entry.to);
  }
  void close() { file_.close(); }

 private:
  template <typename T>
  void put(const T& value) {
    file_.write(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  template <typename T>
  void put_column(std::span<const T> column) {
    put(static_cast<uint32_t>(column.size()));
    file_.write(reinterpret_cast<const char*>(column.data()),
                static_cast<std::streamsize>(column.size() * sizeof(T)));
  }
  template <typename T>
  void put_column(const std::vector<T>& column) {
    put_column(std::span<const T>(column));
  }
  std::ofstream file_;
};

// What a record has of everything that a worker can do. A test asserts that nothing is missing.
struct StepRecordCounts {
  int runs = 0;
  size_t moved_slots = 0;  // also those of copied pages
  size_t penalized = 0;    // logits rows whose penalties have something to change
  size_t picked = 0;       // tokens
  size_t top = 0;          // tokens
  size_t tap_rows = 0;     // of all taps
};

// Records what all workers of this process do while it exists.
class StepRecorder final : public WorkerObserver {
 public:
  explicit StepRecorder(const std::string& path) : writer_(path) { Worker::observe(this); }
  ~StepRecorder() override { Worker::observe(nullptr); }

  void ran(const StepInput& input, const StepInput& known, const StepOutput& output) override {
    ++counts_.runs;
    for (const TokenPick& pick : input.picks) counts_.picked += pick.to.size();
    for (const kernels::PenaltyRow& row : input.penalty_row) {
      const bool changes = row.repetition != 1 || row.frequency != 0 || row.presence != 0;
      counts_.penalized += changes && row.seen_begin < row.seen_end ? 1 : 0;
    }
    counts_.top += output.top.n;
    counts_.tap_rows += output.taps.size() * input.rows.tap_rows.size();
    writer_.run(known, output);
  }
  void moved(const std::vector<int32_t>& from, const std::vector<int32_t>& to) override {
    counts_.moved_slots += from.size();
    writer_.move(from, to);
  }
  // Requires that no worker runs any more.
  StepRecordCounts close() {
    Worker::observe(nullptr);
    writer_.close();
    return counts_;
  }

 private:
  StepRecordWriter writer_;
  StepRecordCounts counts_;
};

class StepRecordReader {
 public:
  explicit StepRecordReader(const std::string& path) : file_(path, std::ios::binary) {}

  // False at the end. Throws when the record ends too early.
  bool next(StepRecordEntry& entry) {
    if (!file_.read(reinterpret_cast<char*>(&entry.kind), sizeof(entry.kind))) return false;
    if (entry.kind == StepRecordKind::kMove) {
      take_column(entry.from);
      take_column(entry.to);
      return true;
    }
    entry.input.clear();
    each_column(entry.input, [this](auto& column) { take_column(column); });
    take(entry.input.top_k);
    take(entry.input.taps_to_host);
    take_column(entry.output.drawn);
    take_column(entry.top);
    entry.output.top = {entry.top.data(), entry.top.data(), entry.top.size()};
    uint32_t n_taps = 0;
    take(n_taps);
    entry.taps.resize(n_taps);
    entry.output.taps.clear();
    for (std::vector<float>& tap : entry.taps) {
      take_column(tap);
      entry.output.taps.push_back({tap.data(), tap.data(), tap.size()});
    }
    return true;
  }

 private:
  template <typename T>
  void take(T& value) {
    if (!file_.read(reinterpret_cast<char*>(&value), sizeof(value))) {
      throw std::runtime_error("the record ends within an entry");
    }
  }
  template <typename T>
  void take_column(std::vector<T>& column) {
    uint32_t n = 0;
    take(n);
    column.resize(n);
    file_.read(reinterpret_cast<char*>(column.data()), static_cast<std::streamsize>(n * sizeof(T)));
    if (!file_) throw std::runtime_error("the record ends within a column");
  }
  std::ifstream file_;
};

}  // namespace specd
