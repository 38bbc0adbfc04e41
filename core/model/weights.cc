#include "core/model/weights.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <utility>

#include "core/base/to_size.h"
#include "core/model/layer_matrices.h"

namespace specd {

using kernels::DType;
using kernels::PackedMatrix;

Result<void*> Weights::allocate(uint64_t bytes, const char* what) {
  SPECD_TRY(Buffer buffer, device_.allocate(bytes, what));
  void* data = buffer.data();
  buffers_.push_back(std::move(buffer));
  return data;
}

namespace {

constexpr char kEmbedding[] = "model.embed_tokens.weight";

// On the CPU the whole table is read from the mapped file.
int32_t embedding_columns_of(const Device& device, const ModelConfig& config, Split split) {
  if (device.is_host()) return config.hidden_size;
  return split.is_first() ? embedding_of(config, split).n : 0;
}

}  // namespace

// The matrices of this rank, in the order of a forward. Sizes `layers`.
std::vector<Weights::Spec> Weights::specs() {
  const ModelConfig& c = config_;
  const auto times_head = [&](Range heads) {
    return Range{heads.begin * c.head_dim, heads.n * c.head_dim};
  };
  const Range q = times_head(heads_of(c, split_)), kv = times_head(kv_heads_of(c, split_)),
              columns = columns_of(c, split_), hidden{0, c.hidden_size};
  const Range own = layers_of(c, split_);
  layers.resize(to_size(own.n));
  std::vector<Spec> all;
  for (int32_t i = 0; i < own.n; ++i) {
    Layer& layer = layers[to_size(i)];
    const auto matrices = layer_matrices(c, own.begin + i);
    const auto part = [&](LayerMatrixKind kind, Range rows, Range k) {
      const LayerMatrix& whole = matrices[kind];
      return Source{whole.module, whole.n_out, whole.n_in, rows, k};
    };
    all.push_back({&layer.qkv,
                   {part(kQProj, q, hidden), part(kKProj, kv, hidden), part(kVProj, kv, hidden)}});
    all.push_back({&layer.o, {part(kOProj, hidden, q)}, true});
    all.push_back(
        {&layer.gate_up, {part(kGateProj, columns, hidden), part(kUpProj, columns, hidden)}});
    all.push_back({&layer.down, {part(kDownProj, hidden, columns)}, true});
  }
  if (split_.is_last()) {
    all.push_back(
        {&lm_head, {{"lm_head", c.vocab_size, c.hidden_size, vocab_of(c, split_), hidden}}});
  }
  return all;
}

int32_t Weights::segments_of(DType of) const {
  if (split_.n_ranks == 1) return kRowParallelSegments;
  const int32_t kept = device_.ops().split_rule(of).segments;
  return kept == 0 ? split_.n_ranks : kept;
}

Result<std::vector<Weights::Group>> Weights::groups_of(const Spec& spec) {
  std::vector<Group> groups;
  for (Source source : spec.sources) {
    std::optional<QuantizedMatrix> quantized;
    std::shared_ptr<PlacedOrder> order;
    const TensorView* tensor = nullptr;
    DType type = DType::kBF16;
    if (checkpoint_ && is_quantized(*checkpoint_, config_, source.module)) {
      SPECD_TRY(quantized, QuantizedMatrix::open(
                               *checkpoint_, source.module, source.n_out, source.n_in,
                               *config_.quantization.of(source.module), [](const std::string&) {}));
      CodeKind kind = quantized->kind();
      if (spec.shares_k) {
        source.rows = embedding_of(config_, split_);
        source.k = {0, source.n_in};
      }
      std::shared_ptr<PlacedOrder>& shared = orders_[kind];
      if (shared == nullptr) {
        shared = std::make_shared<PlacedOrder>(kind);
        SPECD_OK_OR_RETURN(shared->place_on(device_, device_));
        if (!device_.is_host()) held_bytes += shared->bytes();
      }
      order = shared;
    } else if (checkpoint_) {
      const bool is_tied = source.module == "lm_head" && config_.tie_word_embeddings;
      // Exists: check_tensors() has passed.
      tensor = &checkpoint_->at(is_tied ? kEmbedding : source.module + ".weight");
      type = kernel_dtype(tensor->type).value();
    }
    if (groups.empty() || groups.back().order != order || groups.back().dtype != type) {
      groups.emplace_back();
      groups.back().dtype = type;
      groups.back().order = order;
      groups.back().n_in = source.k.n;
    }
    Group& group = groups.back();
    group.sources.push_back(source);
    if (tensor != nullptr) group.tensors.push_back(tensor);
    if (quantized) group.quantized.push_back(std::move(*quantized));
    group.n_out += source.rows.n;
  }
  // Ranks gather equal parts, of which the last one may have less.
  Group& first = groups.front();
  if (spec.into == &lm_head) first.n_out = vocab_part(config_, split_.n_ranks);
  if (spec.shares_k && first.order != nullptr)
    first.n_out = embedding_part(config_, split_.n_ranks);
  return groups;
}

uint64_t Weights::packed_bytes(const Group& group) const {
  return group.order == nullptr
             ? device_.ops().packed_bytes(group.dtype, group.n_out, group.n_in)
             : device_.ops().packed_code_bytes(group.order->order(), group.n_out);
}

Result<PackedMatrix> Weights::matrix(const Group& group) {
  PackedMatrix packed{.dtype = group.dtype, .n_out = group.n_out, .n_in = group.n_in};
  if (group.order != nullptr) packed.order = &group.order->order();
  const uint64_t bytes = packed_bytes(group);
  SPECD_TRY(packed.data, allocate(bytes, "weights"));
  streamed.push_back({packed.data, bytes});
  held_bytes += bytes;
  return packed;
}

Result<Weights::Plan> Weights::plan(Device& device, const std::string& model_dir,
                                    const ModelConfig& config, Split split, int32_t rows_max) {
  Weights planned(device, config, split);
  SPECD_OK_OR_RETURN(planned.open(model_dir));
  Plan plan{.held = to_size(config.vocab_size) *
                    to_size(embedding_columns_of(device, config, split)) *
                    dtype_bytes(planned.dtype),
            .work = {.segments = split.n_ranks}};
  for (const Spec& spec : planned.specs()) {
    SPECD_TRY(const std::vector<Group> groups, planned.groups_of(spec));
    for (const Group& group : groups) {
      plan.held += planned.packed_bytes(group);
      plan.work.has_codes |= group.order != nullptr;
      if (spec.shares_k && group.order == nullptr)
        plan.work.segments = std::max(plan.work.segments, planned.segments_of(group.dtype));
      if (device.is_host() && group.order != nullptr) {
        plan.work.scratch = std::max<uint64_t>(
            plan.work.scratch, kernels::RoundedRows::bytes(group.order->order(), rows_max));
      }
    }
    plan.work.has_parts |= groups.size() > 1;
  }
  plan.held += planned.held_bytes;  // of orders
  return plan;
}

Weights::Work Weights::work(int32_t n_rows) const {
  Work work{.segments = split_.n_ranks};
  const auto look_at = [&](const Linear& each) {
    for (const Linear::Part& part : each.parts) {
      work.has_codes |= part.matrix.order != nullptr;
      if (device_.is_host())
        work.scratch = std::max<uint64_t>(work.scratch, matmul_scratch_bytes(part.matrix, n_rows));
    }
    work.has_parts |= each.parts.size() > 1;
  };
  look_at(lm_head);
  for (const Layer& layer : layers) {
    for (const Linear* each : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down}) look_at(*each);
    for (const Linear* each : {&layer.o, &layer.down}) {
      const PackedMatrix& matrix = each->parts.front().matrix;
      if (matrix.order == nullptr)
        work.segments = std::max(work.segments, segments_of(matrix.dtype));
    }
  }
  return work;
}

void Weights::pack(const PackedMatrix& into, int32_t column, const Source& source,
                   const TensorView& tensor) {
  const int64_t first = int64_t{source.rows.begin} * source.n_in + source.k.begin,
                bytes = static_cast<int64_t>(dtype_bytes(into.dtype));
  device_.ops().pack(device_.stream(),
                     {.packed = into,
                      .source = static_cast<const char*>(tensor.data) + first * bytes,
                      .source_stride = source.n_in,
                      .n_rows = source.rows.n,
                      .column_begin = column});
}

Status Weights::load_linear(const Spec& spec) {
  SPECD_TRY(const std::vector<Group> groups, groups_of(spec));
  int32_t column = 0;
  for (const Group& group : groups) {
    SPECD_TRY(const PackedMatrix packed, matrix(group));
    spec.into->parts.push_back({.matrix = packed, .column = column});
    int32_t within = 0;
    for (size_t i = 0; i < group.sources.size(); ++i) {
      const Source& source = group.sources[i];
      if (group.order == nullptr) {
        pack(packed, within, source, *group.tensors[i]);
      } else {
        SPECD_OK_OR_RETURN(group.quantized[i].pack(device_, source.rows.begin, source.rows.n,
                                                   source.k.begin, packed, within));
      }
      within += source.rows.n;
    }
    column += group.n_out;
  }
  spec.into->n_out = column;
  return Status();
}

// Norms and biases as float32: they are small, and every row uses them.
Result<const float*> Weights::vector_of(const std::vector<Part>& parts) {
  int32_t n = 0;
  for (const Part& part : parts) n += part.rows.n;
  SPECD_TRY(void* data, allocate(to_size(n) * sizeof(float), "norms and biases"));
  auto* to = static_cast<float*>(data);
  for (const Part& part : parts) {
    if (part.may_lack && !checkpoint_->tensors().contains(part.name)) {
      to += part.rows.n;  // allocate() gives zeros
      continue;
    }
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

Status Weights::load_vectors(int32_t number, Layer& layer) {
  const ModelConfig& c = config_;
  const auto times_head = [&](Range heads) {
    return Range{heads.begin * c.head_dim, heads.n * c.head_dim};
  };
  const Range q = times_head(heads_of(c, split_)), kv = times_head(kv_heads_of(c, split_)),
              columns = columns_of(c, split_), hidden{0, c.hidden_size}, head{0, c.head_dim};
  const std::string prefix = "model.layers." + std::to_string(number) + ".",
                    attention = prefix + "self_attn.";
  const auto matrices = layer_matrices(c, number);
  const auto vector = [&](const float*& out, bool has, const std::vector<Part>& parts) -> Status {
    if (!has) return Status();
    SPECD_TRY(out, vector_of(parts));
    return Status();
  };
  // Quantizers write biases for layers that had none.
  const auto bias = [&](const float*& out,
                        std::initializer_list<std::pair<LayerMatrixKind, Range>> joined) -> Status {
    std::vector<Part> parts;
    for (const auto& [kind, rows] : joined)
      parts.push_back({matrices[kind].module + ".bias", rows, !matrices[kind].has_bias});
    const bool has = std::ranges::any_of(parts, [&](const Part& part) {
      return !part.may_lack || checkpoint_->tensors().contains(part.name);
    });
    return vector(out, has, parts);
  };
  SPECD_OK_OR_RETURN(
      vector(layer.attention_norm, true, {{prefix + "input_layernorm.weight", hidden}}));
  SPECD_OK_OR_RETURN(
      vector(layer.mlp_norm, true, {{prefix + "post_attention_layernorm.weight", hidden}}));
  SPECD_OK_OR_RETURN(bias(layer.qkv_bias, {{kQProj, q}, {kKProj, kv}, {kVProj, kv}}));
  SPECD_OK_OR_RETURN(bias(layer.o_bias, {{kOProj, hidden}}));
  SPECD_OK_OR_RETURN(vector(layer.q_norm, c.head_norm, {{attention + "q_norm.weight", head}}));
  SPECD_OK_OR_RETURN(vector(layer.k_norm, c.head_norm, {{attention + "k_norm.weight", head}}));
  SPECD_OK_OR_RETURN(bias(layer.gate_up_bias, {{kGateProj, columns}, {kUpProj, columns}}));
  if (!c.quantization.is_empty()) {
    SPECD_TRY(layer.kv_scales, kv_scales(*checkpoint_, prefix, [](const std::string&) {}));
  }
  SPECD_OK_OR_RETURN(bias(layer.down_bias, {{kDownProj, hidden}}));
  return Status();
}

// Sizes come from config.json and must be confirmed by the files before anything is allocated.
Status Weights::open(const std::string& model_dir) {
  SPECD_TRY(checkpoint_, Checkpoint::open(model_dir));
  SPECD_OK_OR_RETURN(check_tensors(*checkpoint_, config_));
  dtype = kernel_dtype(embedding_in_file().type).value();
  return Status();
}

Status Weights::load(const std::string& model_dir, const std::function<void(double)>& progress) {
  const ModelConfig& c = config_;
  SPECD_OK_OR_RETURN(open(model_dir));
  SPECD_OK_OR_RETURN(load_embedding());
  const std::vector<Spec> all = specs();
  double done = 0;
  for (const Spec& spec : all) {
    SPECD_OK_OR_RETURN(load_linear(spec));
    if (progress) progress(++done / static_cast<double>(all.size() + 1));
  }
  const Range own = layers_of(c, split_);
  for (int32_t i = 0; i < own.n; ++i) {
    SPECD_OK_OR_RETURN(load_vectors(own.begin + i, layers[to_size(i)]));
  }
  if (split_.is_last()) {
    SPECD_TRY(final_norm, vector_of({{"model.norm.weight", {0, c.hidden_size}}}));
  }
  parameters = parameters_of(*checkpoint_, c);
  summary = summary_of(*checkpoint_, c);
  if (progress) progress(1);
  return Status();
}

Status Weights::make_random(uint64_t seed) {
  const ModelConfig& c = config_;
  SPECD_CHECK(split_ == Split(), "the whole model");
  SPECD_CHECK(!c.qkv_bias && !c.o_bias && !c.mlp_bias && !c.head_norm, "a plain Llama");
  for (const Spec& spec : specs()) {
    SPECD_TRY(const std::vector<Group> groups, groups_of(spec));
    SPECD_TRY(const PackedMatrix packed, matrix(groups.front()));
    *spec.into = {.parts = {{.matrix = packed}}, .n_out = packed.n_out};
  }
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
    for (const Linear* each : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down})
      fill(each->parts.front().matrix);
  }
  fill(lm_head.parts.front().matrix);
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
  summary = {.format = "bf16", .bits = 16};
  return device_.synchronize();
}

}  // namespace specd
