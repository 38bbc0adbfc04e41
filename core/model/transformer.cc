#include "core/model/transformer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <exception>

#include "core/base/to_size.h"

namespace specd {

using kernels::PackedMatrix;

void ForwardRows::clear() {
  for (auto* column : {&token, &position, &slot, &span, &table, &tail_begin, &pages, &tail,
                       &logits_rows, &tap_rows}) {
    column->clear();
  }
}

uint64_t ForwardRows::staging_bytes(int64_t rows, int64_t pages, int64_t tail) {
  const auto bytes = [](int64_t n) { return Staging::bytes_of<int32_t>(static_cast<size_t>(n)); };
  const auto rounded = [&](int64_t n) {  // as in stage()
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
  // These columns grow with the text. Rounding their lengths up keeps the addresses of later
  // columns stable for a while.
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

namespace {

// When an op finds no memory, the other ranks must not wait for this one.
class GivesUpWhenThrown {
 public:
  explicit GivesUpWhenThrown(Collective* ranks) : ranks_(ranks) {}
  GivesUpWhenThrown(const GivesUpWhenThrown&) = delete;
  GivesUpWhenThrown& operator=(const GivesUpWhenThrown&) = delete;
  ~GivesUpWhenThrown() {
    if (ranks_ == nullptr || std::uncaught_exceptions() == n_before_) return;
    ranks_->give_up(Status(Code::kExhausted, kOutOfMemory));
  }

 private:
  Collective* const ranks_;
  const int n_before_ = std::uncaught_exceptions();
};

}  // namespace

struct Transformer::Impl {
  Device& device;
  const RankLinks ranks;
  Exchanges *const tensors_all, *const tensors_stage;
  const Split split;
  const ModelConfig config;
  const ModelConfig part;  // of this rank
  Weights weights;
  const int32_t rows_max, logits_rows_max;

  // Activations, float32.
  std::vector<Buffer> buffers;
  float *x = nullptr, *h = nullptr, *qkv = nullptr, *heads = nullptr, *delta = nullptr,
        *gate_up = nullptr, *act = nullptr, *cos_sin = nullptr, *inv_freq = nullptr,
        *picked = nullptr, *logits = nullptr;
  float *scratch = nullptr, *side = nullptr;  // of matmuls; of a part of a linear layer
  // Of several ranks: [segment][row][hidden], of which this rank computes some, or what it exchanges in
  // its place for a matrix of codes, and the x of that; the logits of a part of the vocabulary, on rank 0
  // those of all ranks.
  float *segments = nullptr, *whole_x = nullptr, *logits_part = nullptr, *logits_parts = nullptr;
  std::vector<Memory> held = std::vector<Memory>(1);
  std::vector<Tap> taps;

  Impl(Device& d, const ModelConfig& c, int32_t rows, int32_t logits_rows, const RankLinks& r = {})
      : device(d),
        ranks(r),
        tensors_all(r.tensors_all != nullptr ? r.tensors_all : r.all),
        tensors_stage(r.tensors_stage != nullptr ? r.tensors_stage : r.stage),
        split(r.split),
        config(c),
        part(part_of(c, split)),
        weights(d, c, split),
        rows_max(rows),
        logits_rows_max(logits_rows) {}

  int32_t q_width() const { return part.n_heads * part.head_dim; }
  int32_t qkv_width() const { return q_width() + 2 * part.n_kv_heads * part.head_dim; }
  bool is_shared() const { return split.n_ranks > 1; }  // each layer

  struct Activation {
    float** out;
    int64_t rows, width;

    uint64_t bytes() const { return to_size(rows) * to_size(width) * sizeof(float); }
  };
  std::vector<Activation> activations(const Weights::Work& work) {
    const ModelConfig& c = config;
    std::vector<Activation> all{{&x, rows_max, c.hidden_size},
                                {&h, rows_max, c.hidden_size},
                                {&qkv, rows_max, qkv_width()},
                                {&heads, rows_max, q_width()},
                                {&delta, rows_max, c.hidden_size},
                                {&gate_up, rows_max, 2 * part.intermediate_size},
                                {&act, rows_max, part.intermediate_size},
                                {&cos_sin, rows_max, c.head_dim},
                                {&inv_freq, 1, c.head_dim / 2}};
    if (work.scratch > 0)
      all.push_back({&scratch, 1, static_cast<int64_t>((work.scratch + 3) / sizeof(float))});
    // Of q, k and v or of gate and up, where they are of several kinds.
    if (work.has_parts)
      all.push_back({&side, rows_max, std::max(qkv_width(), 2 * part.intermediate_size)});
    if (split.is_last()) all.push_back({&picked, logits_rows_max, c.hidden_size});
    if (split.world_rank() == 0) all.push_back({&logits, logits_rows_max, c.vocab_size});
    if (is_shared()) {
      const int32_t k_max = std::max(c.n_heads * c.head_dim, c.intermediate_size);
      int64_t width = int64_t{work.segments} * c.hidden_size;
      if (work.has_codes) {
        all.push_back({&whole_x, rows_max, k_max});
        width = std::max<int64_t>(width, k_max);
      }
      all.push_back({&segments, rows_max, width});
    }
    if (is_shared() && split.is_last()) {
      const int64_t width = vocab_part(c, split.n_ranks);
      all.push_back({&logits_part, logits_rows_max, width});
      if (split.rank == 0) all.push_back({&logits_parts, logits_rows_max, split.n_ranks * width});
    }
    return all;
  }
  Status allocate_activations() {
    for (const Activation& each : activations(weights.work(rows_max))) {
      SPECD_TRY(Buffer buffer, device.allocate(each.bytes(), "activations"));
      *each.out = buffer.as<float>();
      buffers.push_back(std::move(buffer));
      held.front().activations += each.bytes();
    }
    device.copy_in(inv_freq, config.rope.inv_freq.data(),
                   config.rope.inv_freq.size() * sizeof(float));
    return device.synchronize();
  }

  static const PackedMatrix* first_of(const Linear* layer) {
    return layer == nullptr ? nullptr : &layer->parts.front().matrix;
  }

  void tap(uint32_t point, const float* source, const ForwardColumns& rows) {
    for (const Tap& each : taps) {
      if (each.point != point) continue;
      gather(source, rows.n_rows, rows.tap_rows, rows.n_taps, each.rows.as<float>());
    }
  }

  // out = in x weights; `next` follows, if known.
  void linear(const float* in, const Linear& layer, float* out, int32_t n_rows,
              const Linear* next) {
    for (size_t i = 0; i < layer.parts.size(); ++i) {
      const Linear::Part& each = layer.parts[i];
      const int32_t width = each.matrix.n_out;
      const bool is_whole = layer.parts.size() == 1;
      device.ops().matmul(
          device.stream(),
          {.x = in,
           .weights = each.matrix,
           .out = is_whole ? out : side,
           .n_rows = n_rows,
           .k_segments = 1,
           .scratch = scratch,
           .next = i + 1 < layer.parts.size() ? &layer.parts[i + 1].matrix : first_of(next)});
      if (is_whole) continue;
      device.ops().copy_rows(device.stream(), {.from = side,
                                               .to = out + each.column,
                                               .n_rows = n_rows,
                                               .n = width,
                                               .from_rows = n_rows,
                                               .to_rows = n_rows,
                                               .from_stride = width,
                                               .to_stride = layer.n_out});
    }
  }

  // Joins columns. Each rank has written its own, [n_rows, width], into its part of `segments`. Of
  // n_columns that are no multiple the last ranks have fewer, or none; `is_tight`: then in narrower rows.
  float* part_of_segments(int32_t n_rows, int32_t width) const {
    return segments + to_size(split.rank) * to_size(n_rows) * to_size(width);
  }
  void join_columns(int32_t n_rows, int32_t width, bool is_tight, float* out, int32_t n_columns) {
    const uint64_t part_size = to_size(n_rows) * to_size(width);
    tensors_stage->all_gather(segments, part_size * sizeof(float));
    for (int32_t rank = 0; rank < split.n_ranks; ++rank) {
      const int32_t begin = std::min(rank * width, n_columns),
                    n = std::min(width, n_columns - begin);
      device.ops().copy_rows(device.stream(), {.from = segments + to_size(rank) * part_size,
                                               .to = out + begin,
                                               .n_rows = n_rows,
                                               .n = n,
                                               .from_rows = n_rows,
                                               .to_rows = n_rows,
                                               .from_stride = is_tight ? n : width,
                                               .to_stride = n_columns});
    }
  }

  // For a matrix of which each rank has some outputs. in: the rank's part of k.
  void output_parallel(const float* in, const PackedMatrix& matrix, float* out, int32_t n_rows,
                       const Linear* next) {
    const kernels::Ops& ops = device.ops();
    const int32_t k_part = matrix.n_in / split.n_ranks;
    ops.copy_rows(device.stream(), {.from = in,
                                    .to = part_of_segments(n_rows, k_part),
                                    .n_rows = n_rows,
                                    .n = k_part,
                                    .from_rows = n_rows,
                                    .to_rows = n_rows,
                                    .from_stride = k_part,
                                    .to_stride = k_part});
    join_columns(n_rows, k_part, false, whole_x, matrix.n_in);
    ops.matmul(device.stream(), {.x = whole_x,
                                 .weights = matrix,
                                 .out = part_of_segments(n_rows, matrix.n_out),
                                 .n_rows = n_rows,
                                 .k_segments = 1,
                                 .scratch = scratch,
                                 .next = first_of(next)});
    join_columns(n_rows, matrix.n_out, false, out, config.hidden_size);
  }

  // out = in x weights, of o_proj or down_proj, of which each rank has a part of k.
  void row_parallel(const float* in, const Linear& layer, float* out, int32_t n_rows,
                    const Linear* next) {
    const PackedMatrix& matrix = layer.parts.front().matrix;
    if (is_shared() && matrix.order != nullptr) {
      return output_parallel(in, matrix, out, n_rows, next);
    }
    const kernels::Ops& ops = device.ops();
    const int32_t n_segments = weights.segments_of(matrix.dtype), mine = n_segments / split.n_ranks;
    const uint64_t part_size = to_size(mine) * to_size(n_rows) * to_size(config.hidden_size);
    ops.matmul(device.stream(),
               {.x = in,
                .weights = matrix,
                .out = is_shared() ? segments + to_size(split.rank) * part_size : out,
                .n_rows = n_rows,
                .k_segments = mine,
                .apart = is_shared(),
                .scratch = scratch,
                .next = first_of(next)});
    if (!is_shared()) return;
    tensors_stage->all_gather(segments, part_size * sizeof(float));
    ops.add_segments(device.stream(), {.parts = segments,
                                       .out = out,
                                       .n_parts = n_segments,
                                       .n_rows = n_rows,
                                       .n = config.hidden_size});
  }

  void embed(const int32_t* token, int32_t n_rows) {
    const kernels::Ops& ops = device.ops();
    const int32_t width = weights.embedding_columns;
    const bool is_whole = width == config.hidden_size;
    // The ranks' columns side by side.
    const int32_t part_width = embedding_part(config, split.n_ranks);
    if (width > 0) {
      ops.embed(device.stream(), {.table = weights.embedding,
                                  .dtype = weights.dtype,
                                  .token = token,
                                  .out = is_whole ? x : part_of_segments(n_rows, part_width),
                                  .n_rows = n_rows,
                                  .n = width,
                                  .vocab = config.vocab_size});
    }
    if (!is_whole) join_columns(n_rows, part_width, true, x, config.hidden_size);
  }

  // The output head for rows that each rank has in `picked`: the parts of the ranks side by side in `out`,
  // on rank 0.
  void head_of_picked(int32_t n_rows, float* out) {
    linear(picked, weights.lm_head, logits_part, n_rows, nullptr);
    const int32_t width = vocab_part(config, split.n_ranks);
    const uint64_t part_size = to_size(n_rows) * to_size(width);
    tensors_stage->gather(logits_part, logits_parts, part_size * sizeof(float), 0);
    if (split.rank != 0) return;
    for (int32_t rank = 0; rank < split.n_ranks; ++rank) {
      const Range tokens = vocab_of(config, {rank, split.n_ranks});
      device.ops().copy_rows(device.stream(), {.from = logits_parts + to_size(rank) * part_size,
                                               .to = out + tokens.begin,
                                               .n_rows = n_rows,
                                               .n = tokens.n,
                                               .from_rows = n_rows,
                                               .to_rows = n_rows,
                                               .from_stride = width,
                                               .to_stride = config.vocab_size});
    }
  }

  // The residual stream, from the rank of the same number in the stage before.
  void receive_x(uint64_t bytes) {
    Split before = split;
    --before.stage;
    tensors_all->receive(x, bytes, before.world_rank());
  }
  void send_x(uint64_t bytes) {
    Split next = split;
    ++next.stage;
    tensors_all->send(x, bytes, next.world_rank());
  }
  // The states of earlier stages, to the lead.
  void bring_taps(int32_t n_rows) {
    if (split.n_stages == 1 || split.rank != 0 || n_rows == 0) return;
    const uint64_t bytes = to_size(n_rows) * to_size(config.hidden_size) * sizeof(float);
    for (const Tap& each : taps) {
      Split owner = split;
      owner.stage = stage_of_tap(config, split.n_stages, each.point);
      if (owner.is_last()) continue;
      float* const state = each.rows.as<float>();
      if (split.is_last()) tensors_all->receive(state, bytes, owner.world_rank());
      if (split == owner) tensors_all->send(state, bytes, 0);
    }
  }

  // out[i] = source[row[i]], rows of the residual stream's width; row null = i
  void gather(const float* source, int32_t source_rows, const int32_t* row, int32_t n_rows,
              float* out) {
    device.ops().copy_rows(device.stream(), {.from = source,
                                             .to = out,
                                             .from_row = row,
                                             .to_row = nullptr,
                                             .n_rows = n_rows,
                                             .n = config.hidden_size,
                                             .from_rows = source_rows,
                                             .to_rows = n_rows,
                                             .from_stride = config.hidden_size,
                                             .to_stride = config.hidden_size});
  }
};

Transformer::Transformer() = default;
Transformer::~Transformer() = default;

Result<std::unique_ptr<Transformer>> Transformer::load(Device& device, const std::string& path,
                                                       const ModelConfig& config, int32_t rows_max,
                                                       int32_t logits_rows_max,
                                                       const std::function<void(double)>& progress,
                                                       const RankLinks& ranks) {
  std::unique_ptr<Transformer> model(new Transformer());
  model->impl_ = std::make_unique<Impl>(device, config, rows_max, logits_rows_max, ranks);
  SPECD_OK_OR_RETURN(model->impl_->weights.load(path, progress));
  SPECD_OK_OR_RETURN(model->impl_->allocate_activations());
  model->impl_->held.front().weights = model->impl_->weights.held_bytes;
  return model;
}

Result<std::unique_ptr<Transformer>> Transformer::random(Device& device, const ModelConfig& config,
                                                         int32_t rows_max, int32_t logits_rows_max,
                                                         uint64_t seed) {
  std::unique_ptr<Transformer> model(new Transformer());
  model->impl_ = std::make_unique<Impl>(device, config, rows_max, logits_rows_max);
  SPECD_OK_OR_RETURN(model->impl_->weights.make_random(seed));
  SPECD_OK_OR_RETURN(model->impl_->allocate_activations());
  model->impl_->held.front().weights = model->impl_->weights.held_bytes;
  return model;
}

Result<Transformer::Memory> Transformer::plan(Device& device, const std::string& path,
                                              const ModelConfig& config, int32_t rows_max,
                                              int32_t logits_rows_max, Split split) {
  Impl planned(device, config, rows_max, logits_rows_max, {.split = split});
  SPECD_TRY(const Weights::Plan weights, Weights::plan(device, path, config, split, rows_max));
  Memory memory{.weights = weights.held};
  for (const Impl::Activation& each : planned.activations(weights.work))
    memory.activations += each.bytes();
  return memory;
}

Result<Transformer::Tap> Transformer::make_tap(uint32_t point) const {
  const Impl& m = *impl_;
  SPECD_CHECK(point <= static_cast<uint32_t>(m.config.n_layers) + 1,
              "tap " + std::to_string(point));
  const size_t bytes = to_size(m.rows_max) * to_size(m.config.hidden_size) * sizeof(float);
  SPECD_TRY(Buffer rows, m.device.allocate(bytes, "rows of tap " + std::to_string(point)));
  return Tap{.point = point, .rows = std::move(rows)};
}

void Transformer::add_tap(Tap tap) { impl_->taps.push_back(std::move(tap)); }

void Transformer::reserve_taps(size_t n_more) { impl_->taps.reserve(impl_->taps.size() + n_more); }

bool Transformer::sends_tap(uint32_t point) const {
  const Split& split = impl_->split;
  return split.rank == 0 && !split.is_last() &&
         stage_of_tap(impl_->config, split.n_stages, point) == split.stage;
}

void Transformer::gather_bytes() {
  Impl& m = *impl_;
  if (m.ranks.all == nullptr) return;
  const Memory mine = m.held.front();
  m.held.assign(to_size(m.ranks.all->n_ranks()), {});
  m.held[to_size(m.ranks.all->rank())] = mine;
  m.ranks.all->all_gather(m.held.data(), sizeof(Memory));
}

void Transformer::forward(const ForwardColumns& rows, KvStore& kv) {
  Impl& m = *impl_;
  const GivesUpWhenThrown guard(m.ranks.all);
  const ModelConfig& c = m.config;
  const ModelConfig& mine = m.part;
  const Weights& w = m.weights;
  const kernels::Ops& ops = m.device.ops();
  kernels::Stream& stream = m.device.stream();
  const int32_t n = rows.n_rows;
  const int32_t n_logits = rows.n_logits;
  SPECD_CHECK(n >= 1 && n <= m.rows_max, std::to_string(n) + " rows");
  SPECD_CHECK(n_logits <= m.logits_rows_max, std::to_string(n_logits) + " rows of logits");

  const auto add_bias = [&](const float* bias, float* out, int32_t width) {
    if (bias != nullptr) ops.map(stream, kernels::add_bias(out, bias, n, width));
  };
  const auto linear = [&](const float* in, const Linear& weights, const float* bias, float* out,
                          const Linear* next) {
    m.linear(in, weights, out, n, next);
    add_bias(bias, out, weights.n_out);
  };
  // A bias that all ranks have is added once, behind the sum.
  const auto row_parallel = [&](const float* in, const Linear& weights, const float* bias,
                                const Linear* next) {
    m.row_parallel(in, weights, m.delta, n, next);
    add_bias(bias, m.delta, c.hidden_size);
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

  // Only the lead knows them: drafts may have been written on its device.
  if (m.ranks.all != nullptr) {
    m.tensors_all->broadcast(rows.token.device, to_size(n) * sizeof(int32_t), 0);
  }
  const uint64_t x_bytes = to_size(n) * to_size(c.hidden_size) * sizeof(float);
  if (m.split.is_first()) {
    m.embed(rows.token.device, n);
  } else {
    m.receive_x(x_bytes);
  }
  ops.rope_table(stream, {.position = rows.position,
                          .inv_freq = m.inv_freq,
                          .cos_sin = m.cos_sin,
                          .n_rows = n,
                          .head_dim = c.head_dim,
                          .scale = c.rope.scale});

  // `delta` of the previous block is added to the residual stream by the next norm.
  const float* pending = nullptr;
  const Range layers = layers_of(c, m.split);
  for (int32_t i = 0; i < layers.n; ++i) {
    if (m.ranks.all != nullptr) m.ranks.all->mark_progress();
    const Weights::Layer& layer = w.layers[to_size(i)];
    kernels::KvLayer cache = kv.layers()[to_size(i)];
    cache.k_scale = layer.kv_scales.k;
    cache.v_scale = layer.kv_scales.v;
    norm(pending, layer.attention_norm);
    m.tap(static_cast<uint32_t>(layers.begin + i), m.x, rows);
    linear(m.h, layer.qkv, layer.qkv_bias, m.qkv, &layer.o);
    if (layer.q_norm != nullptr) {
      ops.head_norm(stream, {.qkv = m.qkv,
                             .q_weight = layer.q_norm,
                             .k_weight = layer.k_norm,
                             .n_rows = n,
                             .n_heads = mine.n_heads,
                             .n_kv_heads = mine.n_kv_heads,
                             .head_dim = c.head_dim,
                             .eps = static_cast<float>(c.rms_norm_eps)});
    }
    ops.rope_append(stream, {.qkv = m.qkv,
                             .cos_sin = m.cos_sin,
                             .slot = rows.slot,
                             .kv = cache,
                             .n_rows = n,
                             .n_heads = mine.n_heads});
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
                           .n_heads = mine.n_heads,
                           .window = mine.window[to_size(i)],
                           .scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim))});
    row_parallel(m.heads, layer.o, layer.o_bias, &layer.gate_up);
    norm(m.delta, layer.mlp_norm);
    linear(m.h, layer.gate_up, layer.gate_up_bias, m.gate_up, &layer.down);
    ops.map(stream, {.op = kernels::MapOp::kSiluMul,
                     .x = m.gate_up,
                     .y = m.gate_up + mine.intermediate_size,
                     .out = m.act,
                     .n_rows = n,
                     .n = mine.intermediate_size,
                     .x_stride = 2 * mine.intermediate_size,
                     .y_stride = 2 * mine.intermediate_size,
                     .out_stride = mine.intermediate_size});
    const Linear* const head = m.split.is_last() && n_logits > 0 ? &w.lm_head : nullptr;
    row_parallel(m.act, layer.down, layer.down_bias,
                 i + 1 < layers.n ? &w.layers[to_size(i) + 1].qkv : head);
    pending = m.delta;
  }
  if (!m.split.is_last()) {
    // What the next norm would add, in the same order of operations.
    ops.map(stream, {.op = kernels::MapOp::kAdd,
                     .x = m.x,
                     .y = pending,
                     .out = m.x,
                     .n_rows = n,
                     .n = c.hidden_size,
                     .x_stride = c.hidden_size,
                     .y_stride = c.hidden_size,
                     .out_stride = c.hidden_size});
    m.send_x(x_bytes);
    return m.bring_taps(rows.n_taps);
  }
  norm(pending, w.final_norm);
  m.tap(static_cast<uint32_t>(c.n_layers), m.x, rows);
  m.tap(static_cast<uint32_t>(c.n_layers) + 1, m.h, rows);
  m.bring_taps(rows.n_taps);
  if (n_logits > 0) {
    m.gather(m.h, n, rows.logits_rows, n_logits, m.picked);
    if (m.is_shared()) {
      m.head_of_picked(n_logits, m.logits);
    } else {
      m.linear(m.picked, w.lm_head, m.logits, n_logits, nullptr);
    }
  }
}

void Transformer::shared_head(const float* x, int32_t n_rows, float* out) {
  Impl& m = *impl_;
  const GivesUpWhenThrown guard(m.ranks.all);
  const int32_t width = m.config.hidden_size;
  SPECD_CHECK(m.is_shared() && n_rows <= m.logits_rows_max, std::to_string(n_rows) + " rows");
  if (m.split.rank == 0) m.gather(x, n_rows, nullptr, n_rows, m.picked);
  m.tensors_stage->broadcast(m.picked, to_size(n_rows) * to_size(width) * sizeof(float), 0);
  m.head_of_picked(n_rows, out);
}

float* Transformer::logits() const { return impl_->logits; }
size_t Transformer::n_taps() const { return impl_->taps.size(); }
const float* Transformer::tap(size_t index) const { return impl_->taps[index].rows.as<float>(); }
const ModelConfig& Transformer::config() const { return impl_->config; }
Split Transformer::split() const { return impl_->split; }
int32_t Transformer::rows_max() const { return impl_->rows_max; }
int32_t Transformer::logits_rows_max() const { return impl_->logits_rows_max; }
const Weights& Transformer::weights() const { return impl_->weights; }
const std::vector<Transformer::Memory>& Transformer::held() const { return impl_->held; }

}  // namespace specd
