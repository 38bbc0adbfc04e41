// C++ wrapper of the service model/1: a draft model run by the daemon. Sessions and rounds are
// explained in plugin_api/services/model.h.
//
//   Model model(instance, "draft");                 // in the constructor: [control]
//   const std::vector<uint32_t> have = model.lengths(*batch);
//   ModelRows rows(batch->n_seqs);
//   rows.add(s, token, true);                       // sequences in the order of the batch
//   model.forward(*batch, rows);
//   rows.token(0);                                  // drawn after the first row that wanted output
//
// ModelCall does the same directly on the tensors of a proposal, in host or device memory, without
// copying through the host.
#ifndef SPECD_SDK_MODEL_H
#define SPECD_SDK_MODEL_H

#include <specd/plugin_api/batch.h>
#include <specd/plugin_api/services/model.h>
#include <specd/sdk/instance.h>

#include <cstdint>
#include <string>
#include <vector>

namespace specd::sdk {

// The input rows of one forward() or the outputs wanted from one follow(), and the results.
// Reusable: clear() keeps the allocated memory.
class ModelRows {
 public:
  // The outputs to compute.
  struct Wants {
    bool drawn = true;  // the target's draw on the model's logits
    bool logprob = false;
    uint32_t top_k = 0;  // most likely tokens with their log-probabilities
  };

  ModelRows() = default;
  explicit ModelRows(uint32_t n_seqs) { clear(n_seqs); }

  void clear(uint32_t n_seqs, Wants wants) {
    wants_ = wants;
    n_seqs_ = n_seqs;
    offsets_.assign(1, 0);
    token_.clear();
    parent_.clear();
    outputs_.clear();
    status_.assign(n_seqs, SPECD_OK);
    branches_ = false;
  }
  void clear(uint32_t n_seqs) { clear(n_seqs, Wants()); }

  // Adds a row to sequence `s` (index in the batch, never decreasing between calls). It follows the
  // previous row of the round. Returns the index of its output, or -1 without one.
  int32_t add(uint32_t s, int32_t token, bool output) {
    expect(!branches_, "ModelRows: rows with and without a parent in one forward");
    return push(s, token, output);
  }
  // Adds a row below row `parent` of the round; -1 = the last kept token.
  int32_t add_child(uint32_t s, int32_t token, int32_t parent, bool output) {
    expect(branches_ || token_.empty(), "ModelRows: rows with and without a parent in one forward");
    branches_ = true;
    parent_.push_back(parent);
    return push(s, token, output);
  }
  // follow(): requests the output of the last committed token of sequence `s`, in the order of
  // the batch.
  int32_t want(uint32_t s) {
    outputs_.push_back(s);
    return static_cast<int32_t>(outputs_.size() - 1);
  }
  bool empty() const { return token_.empty(); }

  // Results of forward() or follow(), by sequence and by output.
  specd_status status(uint32_t s) const { return status_[s]; }
  int32_t token(int32_t output) const { return drawn_[static_cast<std::size_t>(output)]; }
  float logprob(int32_t output) const { return logprob_[static_cast<std::size_t>(output)]; }
  int32_t top_token(int32_t output, uint32_t i) const {
    return top_token_[static_cast<std::size_t>(output) * wants_.top_k + i];
  }
  float top_logprob(int32_t output, uint32_t i) const {
    return top_logprob_[static_cast<std::size_t>(output) * wants_.top_k + i];
  }

 private:
  friend class Model;

  int32_t push(uint32_t s, int32_t token, bool output) {
    expect(s < n_seqs_ && s + 1 >= offsets_.size(), "ModelRows: sequences out of order");
    offsets_.resize(s + 1, static_cast<uint32_t>(token_.size()));
    token_.push_back(token);
    if (!output) return -1;
    outputs_.push_back(static_cast<uint32_t>(token_.size() - 1));
    return static_cast<int32_t>(outputs_.size() - 1);
  }

  Wants wants_;
  uint32_t n_seqs_ = 0;
  bool branches_ = false;
  std::vector<uint32_t> offsets_, outputs_;
  std::vector<int32_t> token_, parent_, drawn_, top_token_;
  std::vector<float> logprob_, top_logprob_;
  std::vector<specd_status> status_;
};

// A forward() or follow() whose tokens and outputs are elements of tensors. The tensors are those
// of a proposal, seen as one long column (flat()). Reusable.
class ModelCall {
 public:
  void clear(uint32_t n_seqs) {
    offsets_.assign(n_seqs + 1, 0);
    token_at_.clear();
    outputs_.clear();
    output_at_.clear();
    status_.assign(n_seqs, SPECD_OK);
  }
  // follow(): the output for the last committed token of sequence `s` goes to element `output_at`.
  void want(uint32_t s, uint32_t output_at) {
    outputs_.push_back(s);
    output_at_.push_back(output_at);
  }
  // forward(): adds a row with output to sequence `s` (never decreasing between calls).
  void add(uint32_t s, uint32_t token_at, uint32_t output_at) {
    token_at_.push_back(token_at);
    for (std::size_t i = s + 1; i < offsets_.size(); ++i) {
      offsets_[i] = static_cast<uint32_t>(token_at_.size());
    }
    outputs_.push_back(static_cast<uint32_t>(token_at_.size() - 1));
    output_at_.push_back(output_at);
  }
  bool empty() const { return outputs_.empty(); }
  specd_status status(uint32_t s) const { return status_[s]; }

  // All elements of a dense tensor as one column, [n] or [n, 1].
  static specd_tensor flat(const specd_tensor& tensor, uint32_t rank) {
    specd_tensor t = tensor;
    t.rank = rank;
    for (uint32_t axis = 1; axis < tensor.rank; ++axis) t.shape[0] *= tensor.shape[axis];
    t.stride[0] = t.stride[1] = 1;
    t.shape[1] = rank == 2 ? 1 : 0;
    return t;
  }

 private:
  friend class Model;
  std::vector<uint32_t> offsets_, token_at_, outputs_, output_at_;
  std::vector<specd_status> status_;
};

// One instance's use of a model that the daemon has loaded. Name SPECD_SERVICE_MODEL in the caps.
class Model {
 public:
  // Throws with the reason from open() when there is no such model or it does not fit the target.
  Model(const Instance& instance, const std::string& name)
      : host_(instance.host()),
        owner_(instance.owner()),
        table_(require_service<specd_models>(host_, SPECD_SERVICE_MODEL)) {
    check(table_->open(host_, owner_, name.c_str(), &model_), "open");
    info_.struct_size = sizeof info_;
    const specd_status status = table_->info(host_, owner_, model_, &info_);
    if (status != SPECD_OK) table_->close(host_, owner_, model_);
    check(status, "info");
  }
  ~Model() { table_->close(host_, owner_, model_); }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const specd_target_info& info() const { return info_; }

  // [step] Number of kept tokens of every sequence of the batch.
  std::vector<uint32_t> lengths(const specd_batch& batch) const {
    std::vector<uint32_t> out(batch.n_seqs);
    check(table_->length(host_, batch.call, model_, out.data()), "length");
    return out;
  }

  // [step] Keeps kept[s] tokens of sequence s, followed by one path of rows of the round. One entry
  // per sequence in each argument.
  void keep(const specd_batch& batch, const std::vector<uint32_t>& kept,
            const std::vector<std::vector<uint32_t>>& paths) const {
    std::vector<uint32_t> offsets{0}, rows;
    for (const std::vector<uint32_t>& path : paths) {
      rows.insert(rows.end(), path.begin(), path.end());
      offsets.push_back(static_cast<uint32_t>(rows.size()));
    }
    check(table_->keep(host_, batch.call, model_, kept.data(), offsets.data(), rows.data()),
          "keep");
  }

  // [step] Computes `rows`. Failed sequences have their status in rows.status().
  void forward(const specd_batch& batch, ModelRows& rows) const {
    rows.offsets_.resize(batch.n_seqs + 1, static_cast<uint32_t>(rows.token_.size()));
    const auto n_rows = static_cast<int64_t>(rows.token_.size());
    const specd_tensor token = view(rows.token_.data(), SPECD_DT_INT, n_rows, -1);
    RowOutputs out(rows);
    out.args.n_rows = static_cast<uint32_t>(n_rows);
    out.args.row_offsets = rows.offsets_.data();
    out.args.parent = rows.branches_ ? rows.parent_.data() : nullptr;
    out.args.token = &token;
    check(table_->forward(host_, batch.call, model_, &out.args), "forward");
  }
  // [step] Computes the outputs requested with want(). rows_max limits the total rows of sequences
  // that miss more than two tokens.
  void follow(const specd_batch& batch, ModelRows& rows, uint32_t rows_max) const {
    RowOutputs out(rows);
    out.args.n_rows = rows_max;
    check(table_->follow(host_, batch.call, model_, &out.args), "follow");
  }

  // [step] The outputs of forward() or follow(); each may be null.
  struct Tensors {
    uint32_t purpose = 0;                     // of the noise of drawn; see specd_forward_args
    const specd_tensor* drawn = nullptr;      // [..] int32
    const specd_tensor* logprob = nullptr;    // [..] float32, of drawn
    const specd_tensor* top_token = nullptr;  // [.., k] int32
    const specd_tensor* top_logprob = nullptr;
    const specd_tensor* law = nullptr;  // [.., vocab_size] float32, what drawn is drawn from
    const specd_tensor* lse = nullptr;  // [..] float32
  };
  void forward(const specd_batch& batch, ModelCall& call, const specd_tensor& token,
               const Tensors& out) const {
    specd_forward_args args = args_of(call, out);
    args.n_rows = static_cast<uint32_t>(call.token_at_.size());
    args.row_offsets = call.offsets_.data();
    args.token_at = call.token_at_.data();
    args.token = &token;
    check(table_->forward(host_, batch.call, model_, &args), "forward");
  }
  // rows_max limits the total rows of sequences that miss more than two tokens.
  void follow(const specd_batch& batch, ModelCall& call, uint32_t rows_max,
              const Tensors& out) const {
    specd_forward_args args = args_of(call, out);
    args.n_rows = rows_max;
    check(table_->follow(host_, batch.call, model_, &args), "follow");
  }

 private:
  // Storage for the outputs that `rows` wants, and the arguments that point to it.
  struct RowOutputs {
    explicit RowOutputs(ModelRows& rows) {
      const auto n = static_cast<int64_t>(rows.outputs_.size());
      const int64_t k = rows.wants_.top_k;
      rows.drawn_.assign(rows.outputs_.size(), -1);
      rows.logprob_.assign(rows.outputs_.size(), 0);
      rows.top_token_.assign(static_cast<std::size_t>(n * k), -1);
      rows.top_logprob_.assign(static_cast<std::size_t>(n * k), 0);
      drawn = view(rows.drawn_.data(), SPECD_DT_INT, n, -1);
      logprob = view(rows.logprob_.data(), SPECD_DT_FLOAT, n, -1);
      top = view(rows.top_token_.data(), SPECD_DT_INT, n, k);
      top_logprob = view(rows.top_logprob_.data(), SPECD_DT_FLOAT, n, k);
      const bool draws = rows.wants_.drawn || rows.wants_.logprob;
      args.struct_size = sizeof args;
      args.n_outputs = static_cast<uint32_t>(n);
      args.output_rows = rows.outputs_.data();
      args.out_token = n > 0 && draws ? &drawn : nullptr;
      args.out_logprob = n > 0 && rows.wants_.logprob ? &logprob : nullptr;
      args.out_topk_token = n > 0 && k > 0 ? &top : nullptr;
      args.out_topk_logprob = n > 0 && k > 0 ? &top_logprob : nullptr;
      args.seq_status = rows.status_.data();
    }
    RowOutputs(const RowOutputs&) = delete;
    RowOutputs& operator=(const RowOutputs&) = delete;
    specd_tensor drawn, logprob, top, top_logprob;
    specd_forward_args args{};
  };
  static specd_forward_args args_of(ModelCall& call, const Tensors& out) {
    specd_forward_args args{};
    args.struct_size = sizeof args;
    args.n_outputs = static_cast<uint32_t>(call.outputs_.size());
    args.output_rows = call.outputs_.data();
    args.output_at = call.output_at_.data();
    args.out_token = out.drawn;
    args.out_logprob = out.logprob;
    args.out_topk_token = out.top_token;
    args.out_topk_logprob = out.top_logprob;
    args.purpose = out.purpose;
    args.out_law = out.law;
    args.out_lse = out.lse;
    args.seq_status = call.status_.data();
    return args;
  }
  // [n], or [n, columns] when columns >= 0.
  static specd_tensor view(void* data, uint8_t dtype_code, int64_t n, int64_t columns) {
    specd_tensor t{};
    t.struct_size = sizeof t;
    t.dtype_code = dtype_code;
    t.dtype_bits = 32;
    t.dtype_lanes = 1;
    t.device_type = SPECD_DEV_CPU;
    t.rank = columns < 0 ? 1 : 2;
    t.data = data;
    t.shape[0] = n;
    t.stride[0] = columns < 0 ? 1 : columns;
    t.shape[1] = columns < 0 ? 0 : columns;
    t.stride[1] = columns < 0 ? 0 : 1;
    t.byte_capacity =
        4 * static_cast<uint64_t>(n) * static_cast<uint64_t>(columns < 0 ? 1 : columns);
    return t;
  }
  static void check(specd_status status, const char* function) {
    if (status == SPECD_OK) return;
    throw Error(status, std::string("the host refused model.") + function + "()");
  }

  const specd_host* host_;
  specd_owner* owner_;
  const specd_models* table_;
  specd_model* model_ = nullptr;
  specd_target_info info_{};
};

}  // namespace specd::sdk

#endif
