// Computes a recorded run again with a worker in this process, and compares every drawn and top-1
// token with the record.
//
//   step_replay RECORD MODEL DEVICE THREADS ROWS_MAX PAGES     exit code 1 at the first difference
//
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
bool same_bits(const char* what, std::span<const T> got, std::span<const T> wanted, int run) {
  if (got.size() == wanted.size() &&
      std::memcmp(got.data(), wanted.data(), got.size() * sizeof(T)) == 0) {
    return true;
  }
  std::cerr << what << " of run " << run << " differs: " << got.size() << " entries for "
            << wanted.size() << "\n";
  return false;
}

int replay(char** argv) {
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
  KvStore kv = KvStore::create(*device, config, kernels::DType::kF32, n_pages).value();
  const auto worker = Worker::create(*device, *model, kv).value();

  StepRecordReader record(argv[1]);
  StepRecordKind kind{};
  StepInput input;
  StepOutput wanted, got;
  std::vector<std::vector<float>> taps;
  std::vector<int32_t> from, to;
  int runs = 0;
  while (record.next(kind)) {
    if (kind == StepRecordKind::kMove) {
      record.read(from, to);
      if (!worker->move(from, to).ok()) return 1;
      continue;
    }
    record.read(input, wanted, taps);
    const std::string fault = step_input_fault(input, worker->limits());
    if (!fault.empty()) {
      std::cerr << "run " << runs << ": " << fault << "\n";
      return 1;
    }
    worker->new_columns();
    const Status ran = worker->run(
        input, {}, [] {}, got);
    if (!ran.ok()) {
      std::cerr << "run " << runs << ": " << ran.to_string() << "\n";
      return 1;
    }
    if (!same_bits<int32_t>("drawn", got.drawn, wanted.drawn, runs) ||
        !same_bits<int32_t>("top1", got.top1, wanted.top1, runs)) {
      return 1;
    }
    ++runs;
  }
  std::cout << runs << "\n";
  return 0;
}

}  // namespace
}  // namespace specd

int main(int argc, char** argv) {
  if (argc != 7) {
    std::cerr << "usage: step_replay RECORD MODEL DEVICE THREADS ROWS_MAX PAGES\n";
    return 2;
  }
  return specd::replay(argv);
}
