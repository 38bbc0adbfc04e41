// A specd_batch for unit tests.
#ifndef SPECD_SDK_FAKE_BATCH_H
#define SPECD_SDK_FAKE_BATCH_H

#include <specd/plugin_api/batch.h>
#include <specd/sdk/fake_services.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace specd::sdk {

inline specd_sampling greedy_sampling(uint64_t tokens_left = 1u << 20) {
  specd_sampling s{};
  s.struct_size = sizeof s;
  s.flags = SPECD_SAMPLE_GREEDY;
  s.temperature = 1.0f;
  s.top_p = 1.0f;
  s.typical_p = 1.0f;
  s.tokens_left = tokens_left;
  return s;
}

// A specd_batch over sequences, together with everything it points to.
class FakeBatch {
 public:
  struct Item {
    uint64_t id;
    uint32_t slot;
    void* state;
    const specd_sampling* sampling;
  };
  FakeBatch(FakeHost& host, const std::vector<Item>& items)
      : host_(host), slots_(items.size(), 1, 1), status_(items.size(), 1, 1) {
    for (std::size_t i = 0; i < items.size(); ++i) {
      ids_.push_back(items[i].id);
      states_.push_back(items[i].state);
      slot_.push_back(items[i].slot);
      slots_.at(i) = static_cast<int32_t>(items[i].slot);
      sampling_.push_back(items[i].sampling);
    }
    call_.host = &host;
    call_.sampling = sampling_.data();
    call_.n_seqs = static_cast<uint32_t>(items.size());
    specd_batch& b = batch_.value;
    b.struct_size = sizeof b;
    b.n_seqs = call_.n_seqs;
    b.call = call_.handle();
    b.seq_id = call_.seq_id = ids_.data();
    b.seq_state = states_.data();
    b.seq_status = status_.data();
    b.slot = slot_.data();
    b.slots = slots_.tensor();
  }
  ~FakeBatch() {
    host_.check(batch_.intact() && slots_.intact() && status_.intact(), "wrote past the batch");
  }
  FakeBatch(const FakeBatch&) = delete;
  FakeBatch& operator=(const FakeBatch&) = delete;

  const specd_batch* get() const { return &batch_.value; }
  const specd_sampling* const* sampling() const { return sampling_.data(); }
  void** states() { return states_.data(); }
  specd_status status(std::size_t i) { return status_.at(i); }
  FakeHost::Call& call() { return call_; }

 private:
  FakeHost& host_;
  std::vector<uint64_t> ids_;
  std::vector<void*> states_;
  std::vector<uint32_t> slot_;
  std::vector<const specd_sampling*> sampling_;
  GuardedColumn<int32_t> slots_;
  GuardedColumn<specd_status> status_;
  FakeHost::Call call_;
  Guarded<specd_batch> batch_;
};

}  // namespace specd::sdk

#endif
