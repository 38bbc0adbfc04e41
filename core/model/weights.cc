#include "core/model/weights.h"

#include <algorithm>
#include <cstring>

#include "core/base/to_size.h"

namespace specd {

using kernels::DType;
using kernels::PackedMatrix;

Result<void*> Weights::allocate(uint64_t bytes, const char* what) {
  SPECD_TRY(Buffer buffer, device_.allocate(bytes, what));
  void* data = buffer.data();
  buffers_.push_back(std::move(buffer));
  return data;
}

Result<PackedMatrix> Weights::matrix(int32_t n_out, int32_t n_in) {
  PackedMatrix packed{.dtype = dtype, .n_out = n_out, .n_in = n_in, .data = nullptr};
  const size_t bytes = device_.ops().packed_bytes(dtype, n_out, n_in);
  SPECD_TRY(packed.data, allocate(bytes, "weights"));
  streamed.push_back({packed.data, bytes});
  held_bytes += bytes;
  return packed;
}

namespace {

constexpr char kEmbedding[] = "model.embed_tokens.weight";

// On the CPU the whole table is read from the mapped file.
int32_t embedding_columns_of(const Device& device, const ModelConfig& config, Split split) {
  if (device.is_host()) return config.hidden_size;
  return split.is_first() ? embedding_of(config, split).n : 0;
}

// Calls fn(matrix, n_out, n_in) for each packed matrix of a rank. `layers` has all of its layers.
template <typename Fn>
Status for_matrices(const ModelConfig& config, Split split, std::vector<Weights::Layer>& layers,
                    PackedMatrix& lm_head, Fn&& fn) {
  const ModelConfig c = part_of(config, split);
  const int32_t q = c.n_heads * c.head_dim, kv = c.n_kv_heads * c.head_dim;
  for (Weights::Layer& layer : layers) {
    SPECD_OK_OR_RETURN(fn(layer.qkv, q + 2 * kv, c.hidden_size));
    SPECD_OK_OR_RETURN(fn(layer.o, c.hidden_size, q));
    SPECD_OK_OR_RETURN(fn(layer.gate_up, 2 * c.intermediate_size, c.hidden_size));
    SPECD_OK_OR_RETURN(fn(layer.down, c.hidden_size, c.intermediate_size));
  }
  if (!split.is_last()) return Status();
  return fn(lm_head, vocab_part(c, split.n_ranks), c.hidden_size);
}

}  // namespace

Status Weights::allocate_matrices() {
  layers.resize(to_size(layers_of(config_, split_).n));
  return for_matrices(config_, split_, layers, lm_head,
                      [&](PackedMatrix& out, int32_t n_out, int32_t n_in) -> Status {
                        SPECD_TRY(out, matrix(n_out, n_in));
                        return Status();
                      });
}

uint64_t Weights::planned_bytes(const Device& device, const ModelConfig& config, Split split,
                                DType dtype) {
  std::vector<Layer> layers(to_size(layers_of(config, split).n));
  PackedMatrix lm_head;
  uint64_t bytes = to_size(config.vocab_size) *
                   to_size(embedding_columns_of(device, config, split)) * dtype_bytes(dtype);
  (void)for_matrices(config, split, layers, lm_head,
                     [&](PackedMatrix&, int32_t n_out, int32_t n_in) {
                       bytes += device.ops().packed_bytes(dtype, n_out, n_in);
                       return Status();
                     });
  return bytes;
}

void Weights::pack(const PackedMatrix& into, const std::vector<Part>& parts) {
  int32_t column = 0;
  for (const Part& part : parts) {
    const TensorView& view = checkpoint_->at(part.name);  // exists: check_tensors() has passed
    const int64_t width = view.shape.back();
    const Range k = part.k.value_or(Range{0, static_cast<int32_t>(width)});
    const int64_t first = part.rows.begin * width + k.begin;
    device_.ops().pack(device_.stream(),
                       {.packed = into,
                        .source = static_cast<const char*>(view.data) +
                                  first * static_cast<int64_t>(dtype_bytes(dtype)),
                        .source_stride = width,
                        .n_rows = part.rows.n,
                        .column_begin = column});
    column += part.rows.n;
  }
}

// Norms and biases as float32: they are small, and every row uses them.
Result<const float*> Weights::vector_of(const std::vector<Part>& parts) {
  int32_t n = 0;
  for (const Part& part : parts) n += part.rows.n;
  SPECD_TRY(void* data, allocate(to_size(n) * sizeof(float), "norms and biases"));
  auto* to = static_cast<float*>(data);
  for (const Part& part : parts) {
    const TensorView& view = checkpoint_->at(part.name);
    SPECD_TRY(const Buffer narrow, device_.allocate(view.bytes, "norms and biases"));
    SPECD_TRY(const Buffer only_row, device_.allocate(sizeof(int32_t), "norms and biases"));  // 0
    device_.copy_in(narrow.data(), view.data, view.bytes);
    const uint64_t first = to_size(part.rows.begin) * tensor_type_bytes(view.type);
    device_.ops().embed(device_.stream(), {.table = narrow.as<char>() + first,
                                           .dtype = kernel_dtype(view.type).value(),
                                           .token = only_row.as<int32_t>(),
                                           .out = to,
                                           .n_rows = 1,
                                           .n = part.rows.n,
                                           .vocab = 1});
    SPECD_OK_OR_RETURN(device_.synchronize());
    to += part.rows.n;
  }
  return static_cast<const float*>(data);
}

const TensorView& Weights::embedding_in_file() const { return checkpoint_->at(kEmbedding); }

Status Weights::load_embedding() {
  const TensorView& table = embedding_in_file();
  embedding_columns = embedding_columns_of(device_, config_, split_);
  const uint64_t row = to_size(config_.hidden_size) * dtype_bytes(dtype),
                 mine = to_size(embedding_columns) * dtype_bytes(dtype);
  held_bytes += to_size(config_.vocab_size) * mine;
  if (device_.is_host()) embedding = table.data;
  if (device_.is_host() || embedding_columns == 0) return Status();
  SPECD_TRY(void* data, allocate(to_size(config_.vocab_size) * mine, "embedding table"));
  embedding = data;
  if (mine == row) {
    device_.copy_in(data, table.data, table.bytes);
    return Status();
  }
  // Columns of some rows at a time.
  constexpr uint64_t kRows = 1024;
  const char* from = static_cast<const char*>(table.data) +
                     to_size(embedding_of(config_, split_).begin) * dtype_bytes(dtype);
  std::vector<char> columns(kRows * mine);
  for (uint64_t first = 0; first < to_size(config_.vocab_size); first += kRows) {
    const uint64_t n = std::min(kRows, to_size(config_.vocab_size) - first);
    for (uint64_t i = 0; i < n; ++i) {
      std::memcpy(columns.data() + i * mine, from + (first + i) * row, mine);
    }
    device_.copy_in(static_cast<char*>(data) + first * mine, columns.data(), n * mine);
  }
  return Status();
}

Status Weights::load_layer(const std::string& prefix, Layer& layer) {
  const ModelConfig& c = config_;
  const auto times_head = [&](Range heads) {
    return Range{heads.begin * c.head_dim, heads.n * c.head_dim};
  };
  const Range q = times_head(heads_of(c, split_)), kv = times_head(kv_heads_of(c, split_)),
              columns = columns_of(c, split_), hidden{0, c.hidden_size}, head{0, c.head_dim};
  const std::string attention = prefix + "self_attn.", mlp = prefix + "mlp.";
  const auto qkv = [&](const char* what) {
    return std::vector<Part>{{attention + "q_proj." + what, q},
                             {attention + "k_proj." + what, kv},
                             {attention + "v_proj." + what, kv}};
  };
  const auto gate_up = [&](const char* what) {
    return std::vector<Part>{{mlp + "gate_proj." + what, columns},
                             {mlp + "up_proj." + what, columns}};
  };
  const auto vector = [&](const float*& out, bool has, const std::vector<Part>& parts) -> Status {
    if (!has) return Status();
    SPECD_TRY(out, vector_of(parts));
    return Status();
  };
  SPECD_OK_OR_RETURN(
      vector(layer.attention_norm, true, {{prefix + "input_layernorm.weight", hidden}}));
  SPECD_OK_OR_RETURN(
      vector(layer.mlp_norm, true, {{prefix + "post_attention_layernorm.weight", hidden}}));
  SPECD_OK_OR_RETURN(vector(layer.qkv_bias, c.qkv_bias, qkv("bias")));
  SPECD_OK_OR_RETURN(vector(layer.o_bias, c.o_bias, {{attention + "o_proj.bias", hidden}}));
  SPECD_OK_OR_RETURN(vector(layer.q_norm, c.head_norm, {{attention + "q_norm.weight", head}}));
  SPECD_OK_OR_RETURN(vector(layer.k_norm, c.head_norm, {{attention + "k_norm.weight", head}}));
  SPECD_OK_OR_RETURN(vector(layer.gate_up_bias, c.mlp_bias, gate_up("bias")));
  SPECD_OK_OR_RETURN(vector(layer.down_bias, c.mlp_bias, {{mlp + "down_proj.bias", hidden}}));
  pack(layer.qkv, qkv("weight"));
  pack(layer.o, {{attention + "o_proj.weight", hidden, q}});
  pack(layer.gate_up, gate_up("weight"));
  pack(layer.down, {{mlp + "down_proj.weight", hidden, columns}});
  return Status();
}

Status Weights::load(const std::string& model_dir, const std::function<void(double)>& progress) {
  const ModelConfig& c = config_;
  SPECD_TRY(checkpoint_, Checkpoint::open(model_dir));
  // Check before allocating: sizes come from config.json and must be confirmed by the files.
  SPECD_OK_OR_RETURN(check_tensors(*checkpoint_, c));
  dtype = kernel_dtype(embedding_in_file().type).value();
  SPECD_OK_OR_RETURN(load_embedding());
  SPECD_OK_OR_RETURN(allocate_matrices());
  const Range own = layers_of(c, split_);
  for (int32_t i = 0; i < own.n; ++i) {
    SPECD_OK_OR_RETURN(
        load_layer("model.layers." + std::to_string(own.begin + i) + ".", layers[to_size(i)]));
    if (progress) progress(static_cast<double>(i + 1) / (own.n + 1));
  }
  const bool tied = c.tie_word_embeddings;
  if (split_.is_last()) {
    SPECD_TRY(final_norm, vector_of({{"model.norm.weight", {0, c.hidden_size}}}));
    pack(lm_head, {{tied ? kEmbedding : "lm_head.weight", vocab_of(c, split_)}});
  }
  for (const auto& [name, entry] : checkpoint_->tensors()) {
    if (is_used(name, c)) parameters += entry.view->bytes / tensor_type_bytes(entry.view->type);
  }
  if (progress) progress(1);
  return Status();
}

Status Weights::make_random(uint64_t seed) {
  const ModelConfig& c = config_;
  SPECD_CHECK(split_ == Split(), "the whole model");
  SPECD_CHECK(!c.qkv_bias && !c.o_bias && !c.mlp_bias && !c.head_norm, "a plain Llama");
  SPECD_OK_OR_RETURN(allocate_matrices());
  uint64_t state = seed | 1;
  const auto next = [&state] {  // xorshift; values need only be finite
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
  };
  // Values for some rows; every matrix starts at a different offset.
  constexpr int32_t kRows = 64;
  std::vector<uint16_t> pool;
  const auto numbers = [&](size_t n, uint64_t exponent) {
    while (pool.size() < n + 4096) {  // bf16 of either sign
      pool.push_back(static_cast<uint16_t>((next() & 0x807F) | (exponent << 7)));
    }
    return pool.data() + next() % 4096;
  };
  const auto fill = [&](const PackedMatrix& into) {
    for (int32_t j = 0; j < into.n_out; j += kRows) {
      const int32_t n = std::min(kRows, into.n_out - j);
      // Magnitude at most 2^-6.
      device_.ops().pack(device_.stream(), {.packed = into,
                                            .source = numbers(to_size(n) * to_size(into.n_in), 121),
                                            .n_rows = n,
                                            .column_begin = j});
    }
    parameters += static_cast<uint64_t>(into.n_out) * static_cast<uint64_t>(into.n_in);
  };
  SPECD_TRY(void* ones, allocate(to_size(c.hidden_size) * sizeof(float), "norms and biases"));
  const std::vector<float> all_ones(to_size(c.hidden_size), 1.0f);
  device_.copy_in(ones, all_ones.data(), all_ones.size() * sizeof(float));
  for (Layer& layer : layers) {
    layer.attention_norm = layer.mlp_norm = static_cast<const float*>(ones);
    for (const PackedMatrix* each : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down})
      fill(*each);
  }
  fill(lm_head);
  final_norm = static_cast<const float*>(ones);
  SPECD_TRY(void* table, allocate(to_size(c.vocab_size) * to_size(c.hidden_size) * sizeof(uint16_t),
                                  "embedding"));
  pool.clear();
  const size_t width = to_size(c.hidden_size);
  for (int32_t i = 0; i < c.vocab_size; i += kRows) {
    const size_t cells = to_size(std::min(kRows, c.vocab_size - i)) * width;
    device_.copy_in(static_cast<uint16_t*>(table) + to_size(i) * width, numbers(cells, 126),
                    cells * sizeof(uint16_t));
  }
  embedding = table;
  embedding_columns = c.hidden_size;
  return device_.synchronize();
}

}  // namespace specd
