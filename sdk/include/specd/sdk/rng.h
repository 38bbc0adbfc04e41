// C++ wrapper of the service rng/1, and the noise that a verifier decides with. Name
// SPECD_SERVICE_RNG in the caps. [step] all functions; what the host refuses is thrown as an Error.
#ifndef SPECD_SDK_RNG_H
#define SPECD_SDK_RNG_H

#include <specd/plugin_api/batch.h>
#include <specd/plugin_api/services/rng.h>
#include <specd/sdk/instance.h>
#include <specd/sdk/tensor.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace specd::sdk {

class Rng {
 public:
  explicit Rng(const Instance& instance)
      : host_(instance.host()), table_(require_service<specd_rng>(host_, SPECD_SERVICE_RNG)) {}

  // n numbers in [0, 1) for one sequence of the batch, keyed as the service says.
  void uniform(const specd_batch& batch, uint32_t seq_index, int32_t position, uint32_t purpose,
               float* out, std::size_t n) const {
    auto sequence = static_cast<int32_t>(seq_index);
    const specd_tensor sequence_t = host(&sequence, 1), position_t = host(&position, 1);
    const specd_tensor out_t = host(out, 1, static_cast<int64_t>(n));
    check_service(table_->uniform(host_, batch.call, &sequence_t, &position_t, purpose, &out_t),
                  "rng.uniform");
  }
  // The noise that the target's draw adds to the logits of all tokens at this position.
  void draw_noise(const specd_batch& batch, uint32_t seq_index, int32_t position, float* out,
                  std::size_t vocab_size) const {
    auto sequence = static_cast<int32_t>(seq_index);
    const specd_tensor sequence_t = host(&sequence, 1), position_t = host(&position, 1);
    const specd_tensor out_t = host(out, 1, static_cast<int64_t>(vocab_size));
    check_service(table_->draw_noise(host_, batch.call, &sequence_t, &position_t, &out_t),
                  "rng.draw_noise");
  }

 private:
  template <class T>
  static specd_tensor host(T* data, int64_t rows, int64_t columns = -1) {
    return tensor_at(data, rows, columns, SPECD_DEV_CPU, 0);
  }

  const specd_host* host_;
  const specd_rng* table_;
};

// Independent decisions of one sequence in one verify() or propose(): new in every step, and the same
// when a step is computed again. One object per sequence and call: a second one with the same purpose
// would repeat its numbers. A rule that is written over these two functions can be enumerated: a test calls
// it with a source that takes every way and multiplies probabilities.
class Noise {
 public:
  // `root_position`: no other step of the sequence has it. `purpose`: ACCEPT of a verifier, DRAFT of a
  // drafter, so that a draft and its judgement are independent.
  Noise(const Rng& rng, const specd_batch& batch, uint32_t seq_index, int32_t root_position,
        uint32_t purpose = SPECD_PURPOSE_ACCEPT)
      : rng_(rng), batch_(batch), seq_(seq_index), position_(root_position), purpose_(purpose) {}

  // True with this probability.
  bool bernoulli(double probability) { return next() < probability; }
  // An index below n with the probability weight[index] / their sum. REQUIRES a positive sum.
  std::size_t categorical(const double* weight, std::size_t n) {
    double total = 0;
    for (std::size_t i = 0; i < n; ++i) total += weight[i];
    const double target = next() * total;
    double sum = 0;
    std::size_t last = 0;
    for (std::size_t i = 0; i < n; ++i) {
      if (weight[i] <= 0) continue;
      last = i;
      sum += weight[i];
      if (sum > target) return i;
    }
    return last;  // the sum was rounded
  }

 private:
  // 48 bits, from two lanes.
  double next() {
    if (used_ + 2 > n_) {
      n_ = std::max<std::size_t>(16, 2 * n_);
      lanes_.resize(n_);
      rng_.uniform(batch_, seq_, position_, purpose_, lanes_.data(), n_);
    }
    const double high = lanes_[used_], low = lanes_[used_ + 1];
    used_ += 2;
    return high + low * 0x1p-24;
  }

  const Rng& rng_;
  const specd_batch& batch_;
  uint32_t seq_;
  int32_t position_;
  uint32_t purpose_;
  std::vector<float> lanes_;
  std::size_t used_ = 0, n_ = 0;
};

}  // namespace specd::sdk

#endif
