// Computes a recorded run again with a worker in this process, and compares every drawn token, the
// most likely tokens and every tap with the record, bit by bit.
//
//   step_replay RECORD MODEL DEVICE THREADS ROWS_MAX PAGES [TAP POINT...]
//
// Prints the number of runs. Exit code 1 at the first difference or input that is refused.
// Uses neither plugins nor the engine, like a follower among several ranks.
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>

#include "core/device/cuda_device.h"
#include "tests/core/ranks/step_record.h"

namespace specd {
namespace {

template <typename T>
bool same_bits(const std::string& what, std::span<const T> got, std::span<const T> wanted,
               int run) {
  if (got.size() == wanted.size() &&
      (got.empty() || std::memcmp(got.data(), wanted.data(), got.size() * sizeof(T)) == 0)) {
    return true;
  }
  std::cerr << what << " of run " << run << " differs: " << got.size() << " entries for "
            << wanted.size() << "\n";
  return false;
}

bool same_output(const StepOutput& got, const StepOutput& wanted, int run) {
  if (!same_bits<int32_t>("drawn", got.drawn, wanted.drawn, run) ||
      !same_bits("top", on_host(got.top), on_host(wanted.top), run)) {
    return false;
  }
  if (got.taps.size() != wanted.taps.size()) {
    std::cerr << "run " << run << " has " << got.taps.size() << " taps for " << wanted.taps.size()
              << "\n";
    return false;
  }
  for (size_t i = 0; i < got.taps.size(); ++i) {
    if (!same_bits("tap " + std::to_string(i), on_host(got.taps[i]), on_host(wanted.taps[i]),
                   run)) {
      return false;
    }
  }
  return true;
}

int replay(int argc, char** argv) {
  const std::string model_path = argv[2], device_name = argv[3];
  const int32_t threads = std::atoi(argv[4]), rows_max = std::atoi(argv[5]),
                n_pages = std::atoi(argv[6]);
  std::unique_ptr<Device> device;
  if (device_name == "cpu") {
    device = CpuDevice::create("", threads).value();
  } else {
    device = open_cuda_device(cuda_index(device_name), {}).value();
  }
  const ModelConfig config = load_model_config(model_path).value();
  const auto model = Transformer::load(*device, model_path, config, rows_max, rows_max, {}).value();
  for (int i = 7; i < argc; ++i) {
    model->add_tap(model->make_tap(static_cast<uint32_t>(std::atoi(argv[i]))).value());
  }
  KvStore kv = KvStore::create(*device, config, kernels::KvDType::kF32, n_pages).value();
  const auto worker = Worker::create(*device, *model, kv).value();

  StepRecordReader record(argv[1]);
  StepRecordEntry entry;
  StepOutput got;
  int runs = 0;
  while (record.next(entry)) {
    if (entry.kind == StepRecordKind::kMove) {
      if (!worker->move({entry.from, entry.to}).ok()) return 1;
      continue;
    }
    // A release build's worker does not check; a damaged record must not crash this one.
    const std::string fault = step_input_fault(entry.input, worker->limits());
    if (!fault.empty()) {
      std::cerr << "run " << runs << ": " << fault << "\n";
      return 1;
    }
    worker->new_columns();
    const Status ran = worker->run(
        entry.input, {}, [] {}, got);
    if (!ran.ok()) {
      std::cerr << "run " << runs << ": " << ran.to_string() << "\n";
      return 1;
    }
    if (!same_output(got, entry.output, runs)) return 1;
    ++runs;
  }
  std::cout << runs << "\n";
  return 0;
}

}  // namespace
}  // namespace specd

int main(int argc, char** argv) {
  if (argc < 7) {
    std::cerr << "usage: step_replay RECORD MODEL DEVICE THREADS ROWS_MAX PAGES [TAP POINT...]\n";
    return 2;
  }
  return specd::replay(argc, argv);
}
