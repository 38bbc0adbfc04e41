// Layers of trained heads, of ops/1 and kv/1. [control] check(), describe() and the constructors;
// [step] the rest. Buffers are made once; a call works on the first rows of them.
#ifndef SPECD_SDK_LAYERS_H
#define SPECD_SDK_LAYERS_H

#include <specd/sdk/kv.h>
#include <specd/sdk/ops.h>
#include <specd/sdk/weights.h>

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace specd::sdk {

// The last hidden state of every sequence, by slot. Zeros until the first one.
class SlotStates {
 public:
  SlotStates(const Place& place, int64_t n_max, int64_t width)
      : state_(Owned::make<float>(place, n_max, width)),
        zero_(Owned::make<float>(place, 1, width)),
        row_zero_(Owned::make<int32_t>(place, n_max)) {}
  // What describe() says of a head on the last state that the target's output head got.
  static void describe(const Context& context, specd_drafter_caps& caps) {
    static const char* const kServices[] = {SPECD_SERVICE_MEMORY, SPECD_SERVICE_OPS,
                                            SPECD_SERVICE_WEIGHTS, SPECD_SERVICE_TARGET};
    caps.needs |= SPECD_NEED_HIDDEN;
    caps.n_taps = 1;
    caps.taps[0] = context.target->n_layers + 1;
    caps.rows_max = Ops::kRowsMax;  // of one update(); only the last one of a sequence is used
    caps.attach_modes = SPECD_ATTACH_FRESH | SPECD_ATTACH_COLD;  // the last state is enough
    caps.device_types |= 1u << SPECD_DEV_CUDA;
    caps.services = kServices;
    caps.n_services = 4;
  }
  static uint64_t bytes_per_sequence(uint64_t width) { return 4 * (width + 1); }
  static uint64_t bytes_fixed(uint64_t width) { return 4 * width; }

  // Call in begin_tensors(): no sequence begins with the state of another.
  void begin(const Ops& ops, const specd_batch& batch) const {
    const specd_tensor rows = row_zero_.rows(batch.n_seqs);
    ops.copy(batch, *zero_, &rows, *state_, batch.slots);
  }
  // Keeps row from_row[s] of `from` for sequence s of the batch; -1 = it keeps what it has.
  void keep(const Ops& ops, const specd_batch& batch, const specd_tensor& from,
            const specd_tensor* from_row) const {
    ops.copy(batch, from, from_row, *state_, batch.slots);
  }
  // out[i] = the state of slot slots[i].
  void gather(const Ops& ops, const specd_batch& batch, const specd_tensor& slots,
              const specd_tensor& out) const {
    ops.copy(batch, *state_, &slots, out);
  }

 private:
  Owned state_, zero_, row_zero_;
};

// out = W x + b.
class Linear {
 public:
  Linear(const Weights& weights, const std::vector<std::string>& matrices,
         const std::vector<std::string>& biases, int64_t n_out, int64_t n_in)
      : matrix_(weights.matrix(matrices, n_out, n_in)) {
    if (!biases.empty()) bias_ = weights.copy<float>(biases[0], {n_out});
  }
  void operator()(const Ops& ops, const specd_batch& batch, const specd_tensor& x,
                  const specd_tensor& out) const {
    ops.linear(batch, matrix_, x, bias_ ? &*bias_ : nullptr, out);
  }

 private:
  specd_matrix* matrix_;
  std::optional<specd_tensor> bias_;
};

// x + silu(W x + b), the block of Medusa's and ReDrafter's heads.
class ResidualBlock {
 public:
  ResidualBlock(const Weights& weights, const std::string& weight, const std::string& bias,
                int64_t width)
      : linear_(weights, {weight}, bias.empty() ? std::vector<std::string>() : std::vector{bias},
                width, width) {}
  static void check(Weights& weights, const std::string& weight, const std::string& bias,
                    int64_t width) {
    weights.expect(weight, {width, width});
    if (!bias.empty()) weights.expect(bias, {width});
  }
  // `out` is not x. scratch: as large as x.
  void operator()(const Ops& ops, const specd_batch& batch, const specd_tensor& x,
                  const specd_tensor& scratch, const specd_tensor& out) const {
    linear_(ops, batch, x, scratch);
    ops.map(batch, SPECD_MAP_SILU_ADD, scratch, x, out);
  }

 private:
  Linear linear_;
};

// A layer of the Llama family behind its input norm:
//   y = residual + o(attention(qkv(input)));  residual = y + down(silu(gate(n)) * up(n)), n = norm(y)
class DecoderLayer {
 public:
  struct Shape {
    int64_t hidden, input;  // width of the residual stream, and of the input
    int64_t n_heads, n_kv_heads, head_dim, ffn;
    double norm_eps;
    bool qkv_bias, o_bias, mlp_bias, head_norm;
    int64_t window;  // positions that a row sees; 0 = all

    int64_t q_width() const { return n_heads * head_dim; }
    int64_t qkv_width() const { return q_width() + 2 * n_kv_heads * head_dim; }
  };

  // `at`: the prefix of the layer's keys in config.json.
  static void check_activation(const Config& config, const std::string& at) {
    const std::string key = at + "hidden_act", found = config.string(key.c_str(), "silu");
    if (found == "silu" || found == "swish") return;
    throw Error(SPECD_E_CONFIG, key + ": found '" + found + "', expected 'silu'");
  }
  // at: "layers.0."
  static void check(Weights& weights, const std::string& at, const Shape& s) {
    if (s.n_heads % s.n_kv_heads != 0 || s.head_dim % 16 != 0) {
      weights.fail("config.json: " + std::to_string(s.n_heads) + " heads, " +
                   std::to_string(s.n_kv_heads) + " of K and V, head_dim " +
                   std::to_string(s.head_dim) +
                   "; expected a multiple of the heads of K and V, and a head_dim of 16, 32, ..");
    }
    const std::string attention = at + "self_attn.", mlp = at + "mlp.";
    const int64_t kv_width = s.n_kv_heads * s.head_dim;
    weights.expect(attention + "q_proj.weight", {s.q_width(), s.input});
    weights.expect(attention + "k_proj.weight", {kv_width, s.input});
    weights.expect(attention + "v_proj.weight", {kv_width, s.input});
    weights.expect_one_type(qkv_names(at));
    weights.expect(attention + "o_proj.weight", {s.hidden, s.q_width()});
    weights.expect(mlp + "gate_proj.weight", {s.ffn, s.hidden});
    weights.expect(mlp + "up_proj.weight", {s.ffn, s.hidden});
    weights.expect_one_type(gate_up_names(at));
    weights.expect(mlp + "down_proj.weight", {s.hidden, s.ffn});
    weights.expect(at + "post_attention_layernorm.weight", {s.hidden});
    if (s.qkv_bias) {
      weights.expect(attention + "q_proj.bias", {s.q_width()});
      weights.expect(attention + "k_proj.bias", {kv_width});
      weights.expect(attention + "v_proj.bias", {kv_width});
    }
    if (s.o_bias) weights.expect(attention + "o_proj.bias", {s.hidden});
    if (s.mlp_bias) {
      weights.expect(mlp + "gate_proj.bias", {s.ffn});
      weights.expect(mlp + "up_proj.bias", {s.ffn});
      weights.expect(mlp + "down_proj.bias", {s.hidden});
    }
    if (!s.head_norm) return;
    weights.expect(attention + "q_norm.weight", {s.head_dim});
    weights.expect(attention + "k_norm.weight", {s.head_dim});
  }
  // Bytes of the buffers.
  static uint64_t bytes(const Shape& s, int64_t rows_max, int64_t full_rows_max) {
    const int64_t full = s.qkv_width() + s.q_width() + 2 * s.hidden + 3 * s.ffn;
    return 4 * static_cast<uint64_t>(rows_max * s.qkv_width() + full_rows_max * full);
  }

  // Number `number` in the KV. rows_max: rows of a call; full_rows_max: rows of a call that attend.
  DecoderLayer(const Place& place, const Weights& weights, const std::string& at,
               const Shape& shape, uint32_t number, int64_t rows_max, int64_t full_rows_max)
      : shape_(shape),
        number_(number),
        matrices_(weights, at, shape),
        qkv_(Owned::make<float>(place, rows_max, shape.qkv_width())),
        some_qkv_(Owned::make<float>(place, full_rows_max, shape.qkv_width())),
        heads_(Owned::make<float>(place, full_rows_max, shape.q_width())),
        delta_(Owned::make<float>(place, full_rows_max, shape.hidden)),
        normed_(Owned::make<float>(place, full_rows_max, shape.hidden)),
        gate_up_(Owned::make<float>(place, full_rows_max, 2 * shape.ffn)),
        act_(Owned::make<float>(place, full_rows_max, shape.ffn)) {}

  // Keeps K and V of the rows in the KV: input [n, input] of all rows of Kv::rows(). Call before
  // finish().
  void begin(const Ops& ops, const specd_batch& batch, const Kv& kv, const specd_tensor& input) {
    const specd_tensor qkv = qkv_.rows(input.shape[0]);
    ops.linear(batch, matrices_.qkv, input, nullptr, qkv);
    add_bias(ops, batch, matrices_.qkv_bias, qkv);
    specd_kv_append_args args{};
    args.struct_size = sizeof args;
    args.layer = number_;
    args.n_heads = static_cast<uint32_t>(shape_.n_heads);
    args.norm_eps = shape_.norm_eps;
    args.qkv = &qkv;
    args.q_norm = shape_.head_norm ? &matrices_.q_norm : nullptr;
    args.k_norm = shape_.head_norm ? &matrices_.k_norm : nullptr;
    kv.append(batch, args);
  }
  // The rest of the layer for all n rows, or for the queries of Kv::rows(): row i of `residual` is
  // then row queries[i], [n] int32 in the granted memory. `residual` is changed in place.
  void finish(const Ops& ops, const specd_batch& batch, const Kv& kv, int64_t n,
              const specd_tensor* queries, const specd_tensor& residual) {
    const int64_t n_full = residual.shape[0];
    specd_tensor qkv = qkv_.rows(n);
    if (queries != nullptr) {
      ops.copy(batch, qkv, queries, some_qkv_.rows(n_full));
      qkv = some_qkv_.rows(n_full);
    }
    const specd_tensor heads = heads_.rows(n_full), delta = delta_.rows(n_full),
                       normed = normed_.rows(n_full), act = act_.rows(n_full),
                       gate_up = gate_up_.rows(n_full);
    specd_kv_attend_args args{};
    args.struct_size = sizeof args;
    args.layer = number_;
    args.n_heads = static_cast<uint32_t>(shape_.n_heads);
    args.window = static_cast<uint32_t>(shape_.window);
    args.queries = queries == nullptr ? SPECD_ATTEND_ALL : SPECD_ATTEND_QUERIES;
    args.scale = 1 / std::sqrt(static_cast<double>(shape_.head_dim));
    args.qkv = &qkv;
    args.out = &heads;
    kv.attend(batch, args);
    matrices_.o(ops, batch, heads, delta);
    ops.map(batch, SPECD_MAP_ADD, residual, delta, residual);
    ops.rmsnorm(batch, residual, matrices_.mlp_norm, shape_.norm_eps, normed);
    ops.linear(batch, matrices_.gate_up, normed, nullptr, gate_up);
    add_bias(ops, batch, matrices_.gate_up_bias, gate_up);
    ops.map(batch, SPECD_MAP_SILU_MUL, columns_of(gate_up, 0, shape_.ffn),
            columns_of(gate_up, shape_.ffn, shape_.ffn), act);
    matrices_.down(ops, batch, act, delta);
    ops.map(batch, SPECD_MAP_ADD, residual, delta, residual);
  }

 private:
  // Biases of matrices that are one: q, k and v; gate and up.
  struct Part {
    int64_t first;
    specd_tensor bias;
  };
  static void add_bias(const Ops& ops, const specd_batch& batch, const std::vector<Part>& parts,
                       const specd_tensor& out) {
    for (const Part& each : parts) {
      const specd_tensor columns = columns_of(out, each.first, each.bias.shape[0]);
      ops.map(batch, SPECD_MAP_ADD, columns, each.bias, columns);
    }
  }
  static std::vector<std::string> qkv_names(const std::string& at) {
    return {at + "self_attn.q_proj.weight", at + "self_attn.k_proj.weight",
            at + "self_attn.v_proj.weight"};
  }
  static std::vector<std::string> gate_up_names(const std::string& at) {
    return {at + "mlp.gate_proj.weight", at + "mlp.up_proj.weight"};
  }
  struct Matrices {
    Matrices(const Weights& w, const std::string& at, const Shape& s)
        : qkv(w.matrix(qkv_names(at), s.qkv_width(), s.input)),
          gate_up(w.matrix(gate_up_names(at), 2 * s.ffn, s.hidden)),
          o(w, {at + "self_attn.o_proj.weight"}, some(s.o_bias, at + "self_attn.o_proj.bias"),
            s.hidden, s.q_width()),
          down(w, {at + "mlp.down_proj.weight"}, some(s.mlp_bias, at + "mlp.down_proj.bias"),
               s.hidden, s.ffn),
          mlp_norm(w.copy<float>(at + "post_attention_layernorm.weight", {s.hidden})) {
      const int64_t kv_width = s.n_kv_heads * s.head_dim;
      const auto bias = [&](const std::string& name, int64_t n) {
        return w.copy<float>(at + name, {n});
      };
      if (s.qkv_bias) {
        qkv_bias = {{0, bias("self_attn.q_proj.bias", s.q_width())},
                    {s.q_width(), bias("self_attn.k_proj.bias", kv_width)},
                    {s.q_width() + kv_width, bias("self_attn.v_proj.bias", kv_width)}};
      }
      if (s.mlp_bias) {
        gate_up_bias = {{0, bias("mlp.gate_proj.bias", s.ffn)},
                        {s.ffn, bias("mlp.up_proj.bias", s.ffn)}};
      }
      if (!s.head_norm) return;
      q_norm = bias("self_attn.q_norm.weight", s.head_dim);
      k_norm = bias("self_attn.k_norm.weight", s.head_dim);
    }
    static std::vector<std::string> some(bool wanted, const std::string& name) {
      return wanted ? std::vector{name} : std::vector<std::string>();
    }
    specd_matrix *qkv, *gate_up;
    Linear o, down;
    specd_tensor mlp_norm, q_norm{}, k_norm{};
    std::vector<Part> qkv_bias, gate_up_bias;
  };

  Shape shape_;
  uint32_t number_;
  Matrices matrices_;
  Owned qkv_, some_qkv_, heads_, delta_, normed_, gate_up_, act_;
};

// Layers one after the other on one residual stream. Only queries go through the rest of the last
// layer: the other rows have left all that later rows read of them, K and V.
class DecoderStack {
 public:
  using Shapes = std::vector<DecoderLayer::Shape>;

  // Bytes of the buffers.
  static uint64_t bytes(const Shapes& shapes, int64_t rows_max, int64_t queries_max) {
    uint64_t bytes = 4 * static_cast<uint64_t>(queries_max * shapes[0].hidden);
    for (std::size_t l = 0; l < shapes.size(); ++l) {
      const bool is_last = l + 1 == shapes.size();
      bytes += DecoderLayer::bytes(shapes[l], rows_max, is_last ? queries_max : rows_max);
    }
    return bytes;
  }

  // Layer l is number l in the KV; its tensors begin with at[l]: "layers.0.".
  DecoderStack(const Place& place, const Weights& weights, const std::vector<std::string>& at,
               const Shapes& shapes, int64_t rows_max, int64_t queries_max)
      : norm_eps_(shapes[0].norm_eps),
        stream_(Owned::make<float>(place, queries_max, shapes[0].hidden)) {
    for (std::size_t l = 0; l < shapes.size(); ++l) {
      const bool is_last = l + 1 == shapes.size();
      layers_.emplace_back(place, weights, at[l], shapes[l], static_cast<uint32_t>(l), rows_max,
                           is_last ? queries_max : rows_max);
      if (l == 0) continue;
      input_norms_.push_back(
          weights.copy<float>(at[l] + "input_layernorm.weight", {shapes[l].hidden}));
    }
  }

  // Returns the stream after the last layer: of all rows, or of the queries of Kv::rows(), [n]
  // int32 in the granted memory; valid until the next call. `input` is the first layer's, as it is;
  // the later ones read the norm of the stream, in `normed` [rows, hidden]. `residual` is the stream
  // at the start and is changed in place.
  specd_tensor run(const Ops& ops, const specd_batch& batch, const Kv& kv,
                   const specd_tensor& input, const specd_tensor* queries,
                   const specd_tensor& normed, const specd_tensor& residual) {
    specd_tensor stream = residual;
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      if (l > 0) ops.rmsnorm(batch, residual, input_norms_[l - 1], norm_eps_, normed);
      layers_[l].begin(ops, batch, kv, l == 0 ? input : normed);
      const bool is_picked = l + 1 == layers_.size() && queries != nullptr;
      if (is_picked) {
        stream = stream_.rows(queries->shape[0]);
        ops.copy(batch, residual, queries, stream);
      }
      layers_[l].finish(ops, batch, kv, residual.shape[0], is_picked ? queries : nullptr, stream);
    }
    return stream;
  }

 private:
  double norm_eps_;
  std::vector<DecoderLayer> layers_;
  std::vector<specd_tensor> input_norms_;  // of the layers after the first
  Owned stream_;                           // of the queries
};

}  // namespace specd::sdk

#endif
