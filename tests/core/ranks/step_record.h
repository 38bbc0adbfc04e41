// A worker's run as bytes: every StepInput with its StepOutput, and every KV move, in order. One
// process records, another computes it again.
#pragma once

#include <cstdint>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/ranks/worker.h"

namespace specd {

enum class StepRecordKind : uint8_t { kRun = 1, kMove = 2 };

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
}

class StepRecorder final : public WorkerObserver {
 public:
  explicit StepRecorder(const std::string& path) : file_(path, std::ios::binary) {
    Worker::observe(this);
  }
  ~StepRecorder() override { Worker::observe(nullptr); }

  void ran(const StepInput& input, const StepOutput& output) override {
    ++n_runs_;
    put(StepRecordKind::kRun);
    each_column(input, [this](const auto& column) { put_column(column); });
    put(input.wants_top1);
    put_column(output.drawn);
    put_column(output.top1);
    put(static_cast<uint32_t>(output.taps.size()));
    for (const std::span<const float> tap : output.taps) {
      put_column(std::vector<float>(tap.begin(), tap.end()));
    }
  }
  void moved(const std::vector<int32_t>& from, const std::vector<int32_t>& to) override {
    put(StepRecordKind::kMove);
    put_column(from);
    put_column(to);
  }
  // Requires that no worker runs any more.
  int close() {
    Worker::observe(nullptr);
    file_.close();
    return n_runs_;
  }

 private:
  template <typename T>
  void put(const T& value) {
    file_.write(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  template <typename T>
  void put_column(const std::vector<T>& column) {
    put(static_cast<uint32_t>(column.size()));
    file_.write(reinterpret_cast<const char*>(column.data()),
                static_cast<std::streamsize>(column.size() * sizeof(T)));
  }
  std::ofstream file_;
  int n_runs_ = 0;
};

class StepRecordReader {
 public:
  explicit StepRecordReader(const std::string& path) : file_(path, std::ios::binary) {}

  // False at the end.
  bool next(StepRecordKind& kind) {
    return static_cast<bool>(file_.read(reinterpret_cast<char*>(&kind), sizeof(kind)));
  }
  void read(StepInput& input, StepOutput& output, std::vector<std::vector<float>>& taps) {
    input.clear();
    each_column(input, [this](auto& column) { take_column(column); });
    take(input.wants_top1);
    take_column(output.drawn);
    take_column(output.top1);
    uint32_t n_taps = 0;
    take(n_taps);
    taps.resize(n_taps);
    for (std::vector<float>& tap : taps) take_column(tap);
  }
  void read(std::vector<int32_t>& from, std::vector<int32_t>& to) {
    take_column(from);
    take_column(to);
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
