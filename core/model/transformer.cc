#include "core/model/transformer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <initializer_list>
#include <optional>
#include <span>

namespace specd {
namespace {

using kernels::DType;
using kernels::PackedMatrix;

struct Layer {
  PackedMatrix qkv, o, gate_up, down;
  const float* attention_norm = nullptr;
  const float* mlp_norm = nullptr;
};

size_t size(int32_t n) { return static_cast<size_t>(n); }

}  // namespace

Status check_tensors(const SafetensorsFile& file, const ModelConfig& c) {
  const int64_t q = int64_t{c.n_heads} * c.head_dim, kv = int64_t{c.n_kv_heads} * c.head_dim;
  const auto need = [&](const std::string& name, std::initializer_list<int64_t> shape) -> Status {
    const auto found = file.require(name, std::span<const int64_t>(shape.begin(), shape.size()));
    return found.ok() ? Status() : found.status();
  };
  SPECD_OK_OR_RETURN(need("model.embed_tokens.weight", {c.vocab_size, c.hidden_size}));
  for (int32_t i = 0; i < c.n_layers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    SPECD_OK_OR_RETURN(need(layer + "input_layernorm.weight", {c.hidden_size}));
    SPECD_OK_OR_RETURN(need(layer + "post_attention_layernorm.weight", {c.hidden_size}));
    SPECD_OK_OR_RETURN(need(layer + "self_attn.q_proj.weight", {q, c.hidden_size}));
    SPECD_OK_OR_RETURN(need(layer + "self_attn.k_proj.weight", {kv, c.hidden_size}));
    SPECD_OK_OR_RETURN(need(layer + "self_attn.v_proj.weight", {kv, c.hidden_size}));
    SPECD_OK_OR_RETURN(need(layer + "self_attn.o_proj.weight", {c.hidden_size, q}));
    SPECD_OK_OR_RETURN(need(layer + "mlp.gate_proj.weight", {c.intermediate_size, c.hidden_size}));
    SPECD_OK_OR_RETURN(need(layer + "mlp.up_proj.weight", {c.intermediate_size, c.hidden_size}));
    SPECD_OK_OR_RETURN(need(layer + "mlp.down_proj.weight", {c.hidden_size, c.intermediate_size}));
  }
  SPECD_OK_OR_RETURN(need("model.norm.weight", {c.hidden_size}));
  return c.tie_word_embeddings ? Status() : need("lm_head.weight", {c.vocab_size, c.hidden_size});
}

void ForwardRows::clear() {
  for (auto* column : {&token, &position, &slot, &span, &table, &tail_begin, &pages, &tail,
                       &logits_rows, &tap_rows}) {
    column->clear();
  }
}

uint64_t ForwardRows::staging_bytes(int64_t rows, int64_t pages, int64_t tail) {
  const auto bytes = [](int64_t n) { return Staging::bytes_of<int32_t>(static_cast<size_t>(n)); };
  const auto rounded = [&](int64_t n) {  // as stage() does
    return bytes(static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(n))));
  };
  return 8 * bytes(rows) + rounded(pages) + rounded(tail);
}

ForwardColumns ForwardRows::stage(Staging& staging) const {
  const auto put = [&](const std::vector<int32_t>& column) { return staging.add(column).device; };
  ForwardColumns columns;
  columns.n_rows = n_rows();
  columns.n_logits = static_cast<int32_t>(logits_rows.size());
  columns.n_taps = static_cast<int32_t>(tap_rows.size());
  columns.token = staging.add(token);
  columns.position = put(position);
  columns.slot = put(slot);
  columns.span = put(span);
  columns.table = put(table);
  columns.tail_begin = put(tail_begin);
  // These grow with the text: rounded up, the columns behind them stay where they are for a while.
  const auto put_rounded = [&](const std::vector<int32_t>& column) {
    Column<int32_t> rounded = staging.add<int32_t>(std::bit_ceil(column.size()));
    std::copy(column.begin(), column.end(), rounded.host);
    return rounded.device;
  };
  columns.pages = put_rounded(pages);
  columns.tail = put_rounded(tail);
  columns.logits_rows = put(logits_rows);
  columns.tap_rows = put(tap_rows);
  return columns;
}

ForwardColumns ForwardRows::in_place() {
  return {.n_rows = n_rows(),
          .n_logits = static_cast<int32_t>(logits_rows.size()),
          .n_taps = static_cast<int32_t>(tap_rows.size()),
          .token = {token.data(), token.data(), token.size()},
          .position = position.data(),
          .slot = slot.data(),
          .span = span.data(),
          .table = table.data(),
          .tail_begin = tail_begin.data(),
          .pages = pages.data(),
          .tail = tail.data(),
          .logits_rows = logits_rows.data(),
          .tap_rows = tap_rows.data()};
}

struct Transformer::Impl {
  Device& device;
  ModelConfig config;
  DType dtype = DType::kBF16;
  int32_t rows_max = 0;
  int32_t logits_rows_max = 0;

  std::optional<SafetensorsFile> file;  // holds the embedding table of the CPU
  std::vector<Buffer> buffers;
  const void* embedding = nullptr;  // [vocab, hidden], row-major
  std::vector<Layer> layers;
  const float* final_norm = nullptr;
  PackedMatrix lm_head;
  std::vector<Weights> streamed;
  uint64_t held_bytes = 0;
  uint64_t parameters = 0;

  // Activations, float32.
  float *x = nullptr, *h = nullptr, *qkv = nullptr, *heads = nullptr, *delta = nullptr,
        *gate_up = nullptr, *act = nullptr, *cos_sin = nullptr, *inv_freq = nullptr,
        *picked = nullptr, *logits = nullptr;
  uint64_t activation_bytes = 0;
  std::vector<Tap> taps;

  explicit Impl(Device& d, const ModelConfig& c) : device(d), config(c) {}

  int32_t q_width() const { return config.n_heads * config.head_dim; }
  int32_t kv_width() const { return config.n_kv_heads * config.head_dim; }

  Result<void*> allocate(uint64_t bytes, const char* what) {
    SPECD_TRY(Buffer buffer, device.allocate(bytes, what));
    void* data = buffer.data();
    buffers.push_back(std::move(buffer));
    return data;
  }

  Result<PackedMatrix> matrix(int32_t n_out, int32_t n_in) {
    PackedMatrix packed{.dtype = dtype, .n_out = n_out, .n_in = n_in, .data = nullptr};
    const size_t bytes = device.ops().packed_bytes(dtype, n_out, n_in);
    SPECD_TRY(packed.data, allocate(bytes, "weights"));
    streamed.push_back({packed.data, bytes});
    held_bytes += bytes;
    return packed;
  }

  Status allocate_matrices() {
    const ModelConfig& c = config;
    layers.resize(size(c.n_layers));
    for (Layer& layer : layers) {
      SPECD_TRY(layer.qkv, matrix(q_width() + 2 * kv_width(), c.hidden_size));
      SPECD_TRY(layer.o, matrix(c.hidden_size, q_width()));
      SPECD_TRY(layer.gate_up, matrix(2 * c.intermediate_size, c.hidden_size));
      SPECD_TRY(layer.down, matrix(c.hidden_size, c.intermediate_size));
    }
    SPECD_TRY(lm_head, matrix(c.vocab_size, c.hidden_size));
    return Status();
  }

  Status allocate_activations() {
    const ModelConfig& c = config;
    const auto make = [&](float*& out, int64_t rows, int64_t width) -> Status {
      const uint64_t bytes =
          static_cast<uint64_t>(rows) * static_cast<uint64_t>(width) * sizeof(float);
      SPECD_TRY(void* data, allocate(bytes, "activations"));
      out = static_cast<float*>(data);
      activation_bytes += bytes;
      return Status();
    };
    SPECD_OK_OR_RETURN(make(x, rows_max, c.hidden_size));
    SPECD_OK_OR_RETURN(make(h, rows_max, c.hidden_size));
    SPECD_OK_OR_RETURN(make(qkv, rows_max, q_width() + 2 * kv_width()));
    SPECD_OK_OR_RETURN(make(heads, rows_max, q_width()));
    SPECD_OK_OR_RETURN(make(delta, rows_max, c.hidden_size));
    SPECD_OK_OR_RETURN(make(gate_up, rows_max, 2 * c.intermediate_size));
    SPECD_OK_OR_RETURN(make(act, rows_max, c.intermediate_size));
    SPECD_OK_OR_RETURN(make(cos_sin, rows_max, c.head_dim));
    SPECD_OK_OR_RETURN(make(inv_freq, 1, c.head_dim / 2));
    SPECD_OK_OR_RETURN(make(picked, logits_rows_max, c.hidden_size));
    SPECD_OK_OR_RETURN(make(logits, logits_rows_max, c.vocab_size));
    std::vector<float> frequencies;
    for (int32_t i = 0; i < c.head_dim / 2; ++i) {
      frequencies.push_back(static_cast<float>(
          1.0 / std::pow(static_cast<float>(c.rope_theta),
                         static_cast<float>(2 * i) / static_cast<float>(c.head_dim))));
    }
    device.copy_in(inv_freq, frequencies.data(), frequencies.size() * sizeof(float));
    return device.synchronize();
  }

  Status pack(const PackedMatrix& into, const std::string& name, int32_t n_rows,
              int32_t column_begin) {
    const TensorView* view = file->find(name);  // check_tensors() has seen it
    if (kernel_dtype(view->type).value() != dtype) {
      return Status(Code::kUnsupported,
                    file->path() + ": tensor '" + name + "' is " + tensor_type_name(view->type) +
                        ", model.embed_tokens.weight is not; mixed matrix types are not supported");
    }
    device.ops().pack(
        device.stream(),
        {.packed = into, .source = view->data, .n_rows = n_rows, .column_begin = column_begin});
    parameters += static_cast<uint64_t>(n_rows) * static_cast<uint64_t>(into.n_in);
    return Status();
  }

  // Norm gains as float32: they are few, and every row multiplies by them.
  Result<const float*> gain(const std::string& name) {
    const TensorView* view = file->find(name);
    SPECD_TRY(void* data, allocate(size(config.hidden_size) * sizeof(float), "norm weights"));
    SPECD_TRY(const Buffer narrow, device.allocate(view->bytes, "norm weights"));
    SPECD_TRY(const Buffer only_row, device.allocate(sizeof(int32_t), "norm weights"));  // row 0
    device.copy_in(narrow.data(), view->data, view->bytes);
    device.ops().embed(device.stream(), {.table = narrow.data(),
                                         .dtype = kernel_dtype(view->type).value(),
                                         .token = only_row.as<int32_t>(),
                                         .out = static_cast<float*>(data),
                                         .n_rows = 1,
                                         .n = config.hidden_size});
    SPECD_OK_OR_RETURN(device.synchronize());
    parameters += static_cast<uint64_t>(config.hidden_size);
    return static_cast<const float*>(data);
  }

  // On the CPU the file is read in place.
  Result<const void*> embedding_of(const TensorView& view) {
    if (device.is_host()) return view.data;
    SPECD_TRY(void* data, allocate(view.bytes, "embedding table"));
    device.copy_in(data, view.data, view.bytes);
    return static_cast<const void*>(data);
  }

  Status read_weights(const std::string& path, const std::function<void(double)>& progress) {
    const ModelConfig& c = config;
    SPECD_TRY(file, SafetensorsFile::open(path + "/model.safetensors"));
    // Before anything is allocated: sizes come from config.json, and the file is what limits them.
    SPECD_OK_OR_RETURN(check_tensors(*file, c));
    const TensorView* embed_view = file->find("model.embed_tokens.weight");
    dtype = kernel_dtype(embed_view->type).value();
    SPECD_TRY(embedding, embedding_of(*embed_view));
    parameters += static_cast<uint64_t>(c.vocab_size) * static_cast<uint64_t>(c.hidden_size);
    held_bytes += embed_view->bytes;
    SPECD_OK_OR_RETURN(allocate_matrices());
    for (int32_t i = 0; i < c.n_layers; ++i) {
      Layer& layer = layers[size(i)];
      const std::string prefix = "model.layers." + std::to_string(i) + ".";
      const auto norm = [&](const float*& out, const char* name) -> Status {
        SPECD_TRY(out, gain(prefix + name));
        return Status();
      };
      SPECD_OK_OR_RETURN(norm(layer.attention_norm, "input_layernorm.weight"));
      SPECD_OK_OR_RETURN(norm(layer.mlp_norm, "post_attention_layernorm.weight"));
      SPECD_OK_OR_RETURN(pack(layer.qkv, prefix + "self_attn.q_proj.weight", q_width(), 0));
      SPECD_OK_OR_RETURN(
          pack(layer.qkv, prefix + "self_attn.k_proj.weight", kv_width(), q_width()));
      SPECD_OK_OR_RETURN(
          pack(layer.qkv, prefix + "self_attn.v_proj.weight", kv_width(), q_width() + kv_width()));
      SPECD_OK_OR_RETURN(pack(layer.o, prefix + "self_attn.o_proj.weight", c.hidden_size, 0));
      SPECD_OK_OR_RETURN(
          pack(layer.gate_up, prefix + "mlp.gate_proj.weight", c.intermediate_size, 0));
      SPECD_OK_OR_RETURN(pack(layer.gate_up, prefix + "mlp.up_proj.weight", c.intermediate_size,
                              c.intermediate_size));
      SPECD_OK_OR_RETURN(pack(layer.down, prefix + "mlp.down_proj.weight", c.hidden_size, 0));
      if (progress) progress(static_cast<double>(i + 1) / (c.n_layers + 1));
    }
    SPECD_TRY(final_norm, gain("model.norm.weight"));
    const bool tied = c.tie_word_embeddings;
    SPECD_OK_OR_RETURN(
        pack(lm_head, tied ? "model.embed_tokens.weight" : "lm_head.weight", c.vocab_size, 0));
    if (tied)
      parameters -= static_cast<uint64_t>(c.vocab_size) * static_cast<uint64_t>(c.hidden_size);
    if (progress) progress(1);
    return Status();
  }

  Status make_random(uint64_t seed) {
    const ModelConfig& c = config;
    SPECD_OK_OR_RETURN(allocate_matrices());
    uint64_t state = seed | 1;
    const auto next = [&state] {  // xorshift: content does not matter, only that it is finite
      state ^= state << 13;
      state ^= state >> 7;
      state ^= state << 17;
      return state;
    };
    // Numbers for some rows; every matrix is filled from another place of them.
    constexpr int32_t kRows = 64;
    std::vector<uint16_t> pool;
    const auto numbers = [&](size_t n, uint64_t exponent) {
      while (pool.size() < n + 4096) {  // bf16, either sign
        pool.push_back(static_cast<uint16_t>((next() & 0x807F) | (exponent << 7)));
      }
      return pool.data() + next() % 4096;
    };
    const auto fill = [&](const PackedMatrix& into) {
      for (int32_t j = 0; j < into.n_out; j += kRows) {
        const int32_t n = std::min(kRows, into.n_out - j);
        // Of magnitude 2^-6 or less.
        device.ops().pack(device.stream(), {.packed = into,
                                            .source = numbers(size(n) * size(into.n_in), 121),
                                            .n_rows = n,
                                            .column_begin = j});
      }
      parameters += static_cast<uint64_t>(into.n_out) * static_cast<uint64_t>(into.n_in);
    };
    SPECD_TRY(void* ones, allocate(size(c.hidden_size) * sizeof(float), "norm weights"));
    const std::vector<float> all_ones(size(c.hidden_size), 1.0f);
    device.copy_in(ones, all_ones.data(), all_ones.size() * sizeof(float));
    for (Layer& layer : layers) {
      layer.attention_norm = layer.mlp_norm = static_cast<const float*>(ones);
      for (const PackedMatrix* each : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down})
        fill(*each);
    }
    fill(lm_head);
    final_norm = static_cast<const float*>(ones);
    SPECD_TRY(void* table,
              allocate(size(c.vocab_size) * size(c.hidden_size) * sizeof(uint16_t), "embedding"));
    pool.clear();
    const size_t width = size(c.hidden_size);
    for (int32_t i = 0; i < c.vocab_size; i += kRows) {
      const size_t cells = size(std::min(kRows, c.vocab_size - i)) * width;
      device.copy_in(static_cast<uint16_t*>(table) + size(i) * width, numbers(cells, 126),
                     cells * sizeof(uint16_t));
    }
    embedding = table;
    return device.synchronize();
  }

  void tap(uint32_t point, const float* source, const ForwardColumns& rows) {
    for (const Tap& each : taps) {
      if (each.point != point) continue;
      device.ops().gather_rows(device.stream(), {.x = source,
                                                 .row = rows.tap_rows,
                                                 .out = each.rows.as<float>(),
                                                 .n_rows = rows.n_taps,
                                                 .n = config.hidden_size});
    }
  }
};

Transformer::Transformer() = default;
Transformer::~Transformer() = default;

Result<std::unique_ptr<Transformer>> Transformer::load(
    Device& device, const std::string& path, const ModelConfig& config, int32_t rows_max,
    int32_t logits_rows_max, const std::function<void(double)>& progress) {
  std::unique_ptr<Transformer> model(new Transformer());
  model->impl_ = std::make_unique<Impl>(device, config);
  model->impl_->rows_max = rows_max;
  model->impl_->logits_rows_max = logits_rows_max;
  SPECD_OK_OR_RETURN(model->impl_->read_weights(path, progress));
  SPECD_OK_OR_RETURN(model->impl_->allocate_activations());
  return model;
}

Result<std::unique_ptr<Transformer>> Transformer::random(Device& device, const ModelConfig& config,
                                                         DType dtype, int32_t rows_max,
                                                         int32_t logits_rows_max, uint64_t seed) {
  SPECD_CHECK(dtype == DType::kBF16, "random weights are bf16");
  std::unique_ptr<Transformer> model(new Transformer());
  model->impl_ = std::make_unique<Impl>(device, config);
  model->impl_->rows_max = rows_max;
  model->impl_->logits_rows_max = logits_rows_max;
  SPECD_OK_OR_RETURN(model->impl_->make_random(seed));
  SPECD_OK_OR_RETURN(model->impl_->allocate_activations());
  return model;
}

Result<Transformer::Tap> Transformer::make_tap(uint32_t point) const {
  const Impl& m = *impl_;
  SPECD_CHECK(point <= static_cast<uint32_t>(m.config.n_layers) + 1,
              "tap " + std::to_string(point));
  const size_t bytes = size(m.rows_max) * size(m.config.hidden_size) * sizeof(float);
  SPECD_TRY(Buffer rows, m.device.allocate(bytes, "rows of tap " + std::to_string(point)));
  return Tap{.point = point, .rows = std::move(rows)};
}

void Transformer::add_tap(Tap tap) { impl_->taps.push_back(std::move(tap)); }

void Transformer::forward(const ForwardColumns& rows, KvStore& kv) {
  Impl& m = *impl_;
  const ModelConfig& c = m.config;
  const kernels::Ops& ops = m.device.ops();
  kernels::Stream& stream = m.device.stream();
  const int32_t n = rows.n_rows;
  const int32_t n_logits = rows.n_logits;
  SPECD_CHECK(n >= 1 && n <= m.rows_max, std::to_string(n) + " rows");
  SPECD_CHECK(n_logits <= m.logits_rows_max, std::to_string(n_logits) + " rows of logits");

  const auto matmul = [&](const float* in, const PackedMatrix& weights, float* out, int32_t n_rows,
                          int32_t segments) {
    ops.matmul(stream,
               {.x = in, .weights = weights, .out = out, .n_rows = n_rows, .k_segments = segments});
  };
  const auto norm = [&](const float* delta, const float* weight) {
    ops.rmsnorm(stream, {.x = m.x,
                         .delta = delta,
                         .weight = weight,
                         .out = m.h,
                         .n_rows = n,
                         .n = c.hidden_size,
                         .eps = static_cast<float>(c.rms_norm_eps)});
  };

  ops.embed(stream, {.table = m.embedding,
                     .dtype = m.dtype,
                     .token = rows.token.device,
                     .out = m.x,
                     .n_rows = n,
                     .n = c.hidden_size});
  ops.rope_table(stream, {.position = rows.position,
                          .inv_freq = m.inv_freq,
                          .cos_sin = m.cos_sin,
                          .n_rows = n,
                          .head_dim = c.head_dim});

  // `delta` of the previous block joins the residual stream in the next norm.
  const float* pending = nullptr;
  for (int32_t i = 0; i < c.n_layers; ++i) {
    const Layer& layer = m.layers[size(i)];
    const kernels::KvLayer& cache = kv.layers()[size(i)];
    norm(pending, layer.attention_norm);
    m.tap(static_cast<uint32_t>(i), m.x, rows);
    matmul(m.h, layer.qkv, m.qkv, n, 1);
    ops.rope_append(stream, {.qkv = m.qkv,
                             .cos_sin = m.cos_sin,
                             .slot = rows.slot,
                             .kv = cache,
                             .n_rows = n,
                             .n_heads = c.n_heads});
    ops.attention(stream, {.qkv = m.qkv,
                           .out = m.heads,
                           .kv = cache,
                           .position = rows.position,
                           .span = rows.span,
                           .table = rows.table,
                           .pages = rows.pages,
                           .tail_begin = rows.tail_begin,
                           .tail = rows.tail,
                           .n_rows = n,
                           .n_heads = c.n_heads,
                           .scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim))});
    matmul(m.heads, layer.o, m.delta, n, kRowParallelSegments);
    norm(m.delta, layer.mlp_norm);
    matmul(m.h, layer.gate_up, m.gate_up, n, 1);
    ops.silu_mul(stream,
                 {.gate_up = m.gate_up, .out = m.act, .n_rows = n, .n = c.intermediate_size});
    matmul(m.act, layer.down, m.delta, n, kRowParallelSegments);
    pending = m.delta;
  }
  norm(pending, m.final_norm);
  m.tap(static_cast<uint32_t>(c.n_layers), m.x, rows);
  m.tap(static_cast<uint32_t>(c.n_layers) + 1, m.h, rows);
  if (n_logits > 0) {
    ops.gather_rows(stream, {.x = m.h,
                             .row = rows.logits_rows,
                             .out = m.picked,
                             .n_rows = n_logits,
                             .n = c.hidden_size});
    matmul(m.picked, m.lm_head, m.logits, n_logits, 1);
  }
}

const float* Transformer::logits() const { return impl_->logits; }
size_t Transformer::n_taps() const { return impl_->taps.size(); }
const float* Transformer::tap(size_t index) const { return impl_->taps[index].rows.as<float>(); }
const ModelConfig& Transformer::config() const { return impl_->config; }
kernels::DType Transformer::weights_dtype() const { return impl_->dtype; }
uint64_t Transformer::parameters() const { return impl_->parameters; }
uint64_t Transformer::weight_bytes() const { return impl_->held_bytes; }
uint64_t Transformer::activation_bytes() const { return impl_->activation_bytes; }
const std::vector<Transformer::Weights>& Transformer::streamed() const { return impl_->streamed; }

}  // namespace specd
