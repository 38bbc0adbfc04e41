// C++ wrapper of the service ops/1. Name SPECD_SERVICE_OPS in the caps. [step] all functions; what
// the host refuses is thrown as an Error, which fails the call.
#ifndef SPECD_SDK_OPS_H
#define SPECD_SDK_OPS_H

#include <specd/plugin_api/batch.h>
#include <specd/plugin_api/services/ops.h>
#include <specd/sdk/tensor.h>

#include <algorithm>
#include <string>
#include <vector>

namespace specd::sdk {

class Ops {
 public:
  explicit Ops(const Instance& instance)
      : host_(instance.host()), table_(require_service<specd_ops>(host_, SPECD_SERVICE_OPS)) {}

  void linear(const specd_batch& batch, const specd_matrix* matrix, const specd_tensor& x,
              const specd_tensor* bias, const specd_tensor& out) const {
    check_service(table_->linear(host_, batch.call, matrix, &x, bias, &out), "ops.linear");
  }
  void embed(const specd_batch& batch, const specd_tensor& table, const specd_tensor& token,
             const specd_tensor& out) const {
    check_service(table_->embed(host_, batch.call, &table, &token, &out), "ops.embed");
  }
  void rmsnorm(const specd_batch& batch, const specd_tensor& x, const specd_tensor& weight,
               double eps, const specd_tensor& out) const {
    check_service(table_->rmsnorm(host_, batch.call, &x, &weight, eps, &out), "ops.rmsnorm");
  }
  void map(const specd_batch& batch, uint32_t map, const specd_tensor& x, const specd_tensor& y,
           const specd_tensor& out) const {
    check_service(table_->map(host_, batch.call, map, &x, &y, &out), "ops.map");
  }
  void silu(const specd_batch& batch, const specd_tensor& x, const specd_tensor& out) const {
    check_service(table_->map(host_, batch.call, SPECD_MAP_SILU, &x, nullptr, &out), "ops.map");
  }
  // to[to_row[i]] = from[from_row[i]]; null = i.
  void copy(const specd_batch& batch, const specd_tensor& from, const specd_tensor* from_row,
            const specd_tensor& to, const specd_tensor* to_row = nullptr) const {
    check_service(table_->copy(host_, batch.call, &from, from_row, &to, to_row), "ops.copy");
  }
  void topk(const specd_batch& batch, const specd_tensor& logits, const specd_tensor& out_index,
            const specd_tensor* out_logprob) const {
    check_service(table_->topk(host_, batch.call, &logits, &out_index, out_logprob), "ops.topk");
  }
  // out = what the target's draw would take the largest of, for tokens `offset` behind the root, of
  // rows of these sequences of the batch. token_id: of each column; null = its number.
  void target_scores(const specd_propose_args& in, const specd_tensor& logits,
                     const specd_tensor& sequence, uint32_t offset, const specd_tensor* token_id,
                     const specd_tensor& out) const {
    specd_draw_args args{};
    args.struct_size = sizeof args;
    args.position_offset = offset;
    args.logits = &logits;
    args.seq_index = &sequence;
    args.position = in.root_position;
    args.token_id = token_id;
    args.out_score = &out;
    check_service(table_->draw(host_, in.batch->call, &args), "ops.draw");
  }
  // Brings values from host memory to the first elements of `to`, which is dense. Not while propose()
  // is captured.
  template <class T>
  void put(const specd_batch& batch, std::vector<T>& values, const specd_tensor& to) const {
    const auto n = static_cast<int64_t>(values.size());
    for (int64_t done = 0; done < n; done += kRowsMax) {
      const int64_t rows = std::min(n - done, kRowsMax);
      copy(batch, rows_from(host_view(values, n, 1), done, rows), nullptr,
           rows_from(shaped(to, n, 1), done, rows));
    }
  }

  static constexpr int64_t kRowsMax = 65535;  // of one call

 private:
  const specd_host* host_;
  const specd_ops* table_;
};

}  // namespace specd::sdk

#endif
