// C++ wrapper of the service kv/1: KV for layers of the drafter's own. Sessions and rounds are
// explained in plugin_api/services/kv.h. Name SPECD_SERVICE_KV in the caps.
#ifndef SPECD_SDK_KV_H
#define SPECD_SDK_KV_H

#include <specd/plugin_api/services/kv.h>
#include <specd/sdk/ops.h>

#include <cstdint>
#include <vector>

namespace specd::sdk {

// The rows of one Kv::rows(). Reusable: clear() keeps the allocated memory.
class KvRows {
 public:
  void clear(uint32_t n_seqs) {
    offsets_.assign(n_seqs + 1, 0);
    parent_.clear();
    queries_.clear();
    status_.assign(n_seqs, SPECD_OK);
    n_rows_ = n_seqs_ = 0;
    branches_ = false;
  }
  // Adds n rows to sequence s (never decreasing between calls), each after the one before it in the
  // round. Returns the first one's number in this call.
  uint32_t add(uint32_t s, uint32_t n) {
    expect(!branches_ || n == 0, "KvRows: rows with and without a parent in one call");
    return push(s, n);
  }
  // Adds a row below row `parent` of the sequence's round; -1 = the last kept row.
  uint32_t add_child(uint32_t s, int32_t parent) {
    expect(branches_ || n_rows_ == 0, "KvRows: rows with and without a parent in one call");
    branches_ = true;
    parent_.push_back(parent);
    return push(s, 1);
  }
  // Row `row` of this call attends in attend() of queries. In increasing order.
  void query(uint32_t row) { queries_.push_back(row); }

  specd_status status(uint32_t s) const { return status_[s]; }

 private:
  friend class Kv;
  uint32_t push(uint32_t s, uint32_t n) {
    expect(s + 1 >= n_seqs_ && s + 1 < offsets_.size(), "KvRows: sequences out of order");
    n_seqs_ = s + 1;
    const uint32_t first = n_rows_;
    n_rows_ += n;
    for (std::size_t i = s + 1; i < offsets_.size(); ++i) offsets_[i] = n_rows_;
    return first;
  }

  std::vector<uint32_t> offsets_, queries_;
  std::vector<int32_t> parent_;
  std::vector<specd_status> status_;
  uint32_t n_rows_ = 0, n_seqs_ = 0;
  bool branches_ = false;
};

// Open from activated() to deactivated(). [step] all functions but the constructor.
class Kv {
 public:
  static constexpr int64_t kHeadsMax = 4096, kKvHeadsMax = 1024, kHeadDimMax = 256;
  struct Shape {
    uint32_t n_layers, n_kv_heads, head_dim, rows_max, positions_max;
    std::vector<float> inv_freq;  // empty = no rotation
    double rope_scale = 1;
  };
  Kv(const Instance& instance, const Shape& shape)
      : host_(instance.host()),
        owner_(instance.owner()),
        table_(require_service<specd_kv_api>(host_, SPECD_SERVICE_KV)) {
    specd_kv_open_args args{};
    args.struct_size = sizeof args;
    args.n_layers = shape.n_layers;
    args.n_kv_heads = shape.n_kv_heads;
    args.head_dim = shape.head_dim;
    args.rows_max = shape.rows_max;
    args.positions_max = shape.positions_max;
    args.inv_freq = shape.inv_freq.empty() ? nullptr : shape.inv_freq.data();
    args.rope_scale = shape.rope_scale;
    check_service(table_->open(host_, owner_, &args, &kv_), "kv.open");
  }
  ~Kv() { table_->close(host_, owner_, kv_); }
  Kv(const Kv&) = delete;
  Kv& operator=(const Kv&) = delete;

  std::vector<uint32_t> lengths(const specd_batch& batch) const {
    std::vector<uint32_t> out(batch.n_seqs);
    check_service(table_->length(host_, batch.call, kv_, out.data()), "kv.length");
    return out;
  }
  // Failed sequences have their status in rows.status().
  void rows(const specd_batch& batch, KvRows& rows) const {
    specd_kv_rows_args args{};
    args.struct_size = sizeof args;
    args.n_rows = rows.n_rows_;
    args.n_queries = static_cast<uint32_t>(rows.queries_.size());
    args.row_offsets = rows.offsets_.data();
    args.parent = rows.branches_ ? rows.parent_.data() : nullptr;
    args.query_rows = rows.queries_.data();
    args.seq_status = rows.status_.data();
    check_service(table_->rows(host_, batch.call, kv_, &args), "kv.rows");
  }
  void append(const specd_batch& batch, const specd_kv_append_args& args) const {
    check_service(table_->append(host_, batch.call, kv_, &args), "kv.append");
  }
  void attend(const specd_batch& batch, const specd_kv_attend_args& args) const {
    check_service(table_->attend(host_, batch.call, kv_, &args), "kv.attend");
  }
  // Ends the round: keeps the first kept[s] rows and no rows of the round.
  void drop_round(const specd_batch& batch, const std::vector<uint32_t>& kept) const {
    check_service(table_->keep(host_, batch.call, kv_, kept.data(), nullptr, nullptr), "kv.keep");
  }
  // Keeps kept[s] rows, and then the chain of all rows of this call of rows(). Nothing of a sequence
  // that failed: later rows would be at wrong distances from what it has kept.
  void keep_all(const specd_batch& batch, std::vector<uint32_t> kept, const KvRows& rows) const {
    std::vector<uint32_t> offsets{0}, path;
    for (uint32_t s = 0; s < batch.n_seqs; ++s) {
      if (rows.status_[s] != SPECD_OK) kept[s] = 0;
      const uint32_t n = rows.offsets_[s + 1] - rows.offsets_[s];
      for (uint32_t i = 0; i < n && rows.status_[s] == SPECD_OK; ++i) path.push_back(i);
      offsets.push_back(static_cast<uint32_t>(path.size()));
    }
    check_service(table_->keep(host_, batch.call, kv_, kept.data(), offsets.data(), path.data()),
                  "kv.keep");
  }

 private:
  const specd_host* host_;
  specd_owner* owner_;
  const specd_kv_api* table_;
  specd_kv* kv_ = nullptr;
};

}  // namespace specd::sdk

#endif
