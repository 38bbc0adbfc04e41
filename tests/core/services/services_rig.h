// A host with all services, and a batch of three sequences.
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <memory>
#include <string>

#include "core/plugin/instance/tensor.h"
#include "core/services/directory.h"

namespace specd {

constexpr int32_t kVocab = 37;

inline specd_tensor host_f32(float* data, std::initializer_list<int64_t> shape) {
  return host_tensor(data, SPECD_DT_FLOAT, 32, shape);
}

class ServicesTest : public testing::Test {
 protected:
  ServicesTest() {
    for (specd_sampling& one : sampling_) one.struct_size = sizeof(one);
    sampling_[0].seed = 11;
    sampling_[1].flags = SPECD_SAMPLE_GREEDY;
    sampling_[1].seed = 12;
    sampling_[2].seed = 13;
    batch_.struct_size = sizeof(batch_);
    batch_.n_seqs = 3;
    batch_.call = &call_;
    call_.batch = &batch_;
    call_.sampling = sampling_ptr_;
    owner_.name = owner_.label = "inst";
    owner_.quota_bytes = 1000;
  }
  template <typename Table>
  const Table& table(const char* id) {
    const auto* found = static_cast<const Table*>(host_->get_service(host_, id));
    EXPECT_NE(found, nullptr) << id;
    EXPECT_EQ(found->struct_size, sizeof(Table));
    return *found;
  }
  void expect_text(const std::string& words) {
    EXPECT_NE(call_.text.find(words), std::string::npos) << call_.text;
    call_.clear();
  }

  std::unique_ptr<CpuDevice> cpu_ = CpuDevice::create("scalar", 3).value();
  Services services_{*cpu_, *cpu_, kVocab};
  const specd_host* host_ = make_host(&services_);
  specd_sampling sampling_[3] = {};
  const specd_sampling* sampling_ptr_[3] = {&sampling_[0], &sampling_[1], &sampling_[2]};
  specd_batch batch_{};
  specd_call call_;
  specd_owner owner_;
};

}  // namespace specd
