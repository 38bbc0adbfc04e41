#include "core/services/kv.h"

#include <algorithm>
#include <cmath>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "core/base/bad_alloc.h"
#include "core/base/log.h"
#include "core/base/to_size.h"
#include "core/services/arguments.h"
#include "core/services/model_arguments.h"
#include "core/services/op_call.h"

namespace specd {
namespace {

constexpr uint32_t kLayersMax = 256, kKvHeadsMax = 1024, kHeadDimMax = 256, kHeadsMax = 4096;

std::string open_fault(const specd_kv_open_args& a) {
  const auto range = [](const char* name, uint32_t value, uint32_t most) {
    if (value >= 1 && value <= most) return std::string();
    return std::string(name) + " is " + std::to_string(value) + ", expected 1.." +
           std::to_string(most);
  };
  std::string fault = range("n_layers", a.n_layers, kLayersMax);
  if (fault.empty()) fault = range("n_kv_heads", a.n_kv_heads, kKvHeadsMax);
  if (fault.empty()) fault = range("rows_max", a.rows_max, static_cast<uint32_t>(kOpRowsMax));
  if (fault.empty()) fault = range("positions_max", a.positions_max, kPositionsMax);
  if (!fault.empty()) return fault;
  if (a.head_dim == 0 || a.head_dim % 16 != 0 || a.head_dim > kHeadDimMax) {
    return "head_dim is " + std::to_string(a.head_dim) + ", expected a multiple of 16, at most " +
           std::to_string(kHeadDimMax);
  }
  for (uint32_t i = 0; a.inv_freq != nullptr && i < a.head_dim / 2; ++i) {
    if (!std::isfinite(a.inv_freq[i])) return "inv_freq[" + std::to_string(i) + "] is not finite";
  }
  if (!std::isfinite(a.rope_scale)) return "rope_scale is not finite";
  return std::string();
}

std::string rows_fault(const specd_kv_rows_args* args, uint32_t n_seqs, int32_t rows_max) {
  if (args == nullptr || args->struct_size != sizeof(specd_kv_rows_args)) {
    return "args of struct_size " + std::to_string(sizeof(specd_kv_rows_args)) + " expected";
  }
  if (args->row_offsets == nullptr || args->seq_status == nullptr) {
    return "row_offsets or seq_status is null";
  }
  if (args->n_rows > static_cast<uint32_t>(rows_max)) {
    return std::to_string(args->n_rows) + " rows, open() was for at most " +
           std::to_string(rows_max);
  }
  std::string fault = offsets_fault(args->row_offsets, n_seqs, args->n_rows);
  if (!fault.empty()) return fault;
  if ((args->flags & ~uint32_t{SPECD_KV_BLOCK}) != 0) {
    return "flags are " + std::to_string(args->flags) + ", expected SPECD_KV_*";
  }
  if ((args->flags & SPECD_KV_BLOCK) != 0 && args->parent != nullptr) {
    return "SPECD_KV_BLOCK is for rows without parents";
  }
  if (args->n_queries > 0 && args->query_rows == nullptr) return "query_rows is null";
  for (uint32_t i = 0; i < args->n_queries; ++i) {
    const uint32_t row = args->query_rows[i];
    if (row >= args->n_rows || (i > 0 && row <= args->query_rows[i - 1])) {
      return "query_rows[" + std::to_string(i) + "] is " + std::to_string(row) +
             ", expected increasing numbers below " + std::to_string(args->n_rows);
    }
  }
  return std::string();
}

Status copy_beside(Device& device, void* to, const void* from, uint64_t bytes) {
  SPECD_TRY(const std::unique_ptr<Device> by, device.open_beside());
  by->copy_in(to, from, bytes);
  return by->synchronize();
}

}  // namespace

// ---- handles ---------------------------------------------------------------------------------

specd_status KvService::open(specd_owner* owner, const specd_kv_open_args* args, specd_kv** out) {
  if (out == nullptr) return refuse(nullptr, SPECD_E_INVALID, "kv.open: out is null");
  *out = nullptr;
  const specd_status good =
      check_target(owner, pages_.store != nullptr || pages_.is_planned, device_, "kv.open");
  if (good != SPECD_OK) return good;
  if (args == nullptr || args->struct_size != sizeof(specd_kv_open_args)) {
    return refuse(
        nullptr, SPECD_E_INVALID,
        "kv.open: args of struct_size " + std::to_string(sizeof(specd_kv_open_args)) + " expected");
  }
  const std::string fault = open_fault(*args);
  if (!fault.empty()) return refuse(nullptr, SPECD_E_INVALID, "kv.open: " + fault);
  ModelConfig shape;
  shape.n_layers = static_cast<int32_t>(args->n_layers);
  shape.n_kv_heads = static_cast<int32_t>(args->n_kv_heads);
  shape.head_dim = static_cast<int32_t>(args->head_dim);
  std::optional<KvStore> store;
  std::unique_ptr<PagePool> own_pages;
  if (pages_.store != nullptr) {
    const kernels::KvDType dtype = pages_.store->layers().front().dtype;
    Result<KvStore> made = KvStore::inside(*pages_.store, shape, dtype);
    // What fits into a whole page may be too large for this rank's part of it.
    if (!made.ok() && KvStore::page_bytes(shape, dtype) <= pages_.page_bytes) {
      made = KvStore::create(device_, shape, dtype, pages_.store->n_pages());
      own_pages = std::make_unique<PagePool>(pages_.store->n_pages());
      if (made.ok())
        log(LogLevel::kInfo, owner->name + " has KV in pages of its own, " +
                                 std::to_string(made.value().bytes()) + " bytes");
    }
    if (!made.ok()) {
      return refuse(
          nullptr,
          made.status().code() == Code::kExhausted ? SPECD_E_EXHAUSTED : SPECD_E_UNSUPPORTED,
          "kv.open: " + made.status().message());
    }
    store = std::move(made).value();
  }
  const uint64_t table_bytes = uint64_t{args->rows_max} * args->head_dim * sizeof(float);
  const size_t n_freq = args->head_dim / 2;
  Charge charge(*owner, table_bytes, "kv.open");
  if (!charge.is_paid()) return refuse(nullptr, SPECD_E_EXHAUSTED, charge.why());
  auto kv = std::make_shared<specd_kv>();
  Result<Buffer> table = device_.allocate(table_bytes, "a rotary table"),
                 frequencies = device_.allocate(n_freq * sizeof(float), "rotary frequencies");
  if (!table.ok() || !frequencies.ok()) {
    return refuse(nullptr, SPECD_E_EXHAUSTED,
                  "kv.open: " + (table.ok() ? frequencies : table).status().message());
  }
  // Without a rotation every angle is 0, as in new memory. The copy is not for the stream of the
  // models: a step may be running or being captured on it.
  if (args->inv_freq != nullptr) {
    const Status copied =
        copy_beside(device_, frequencies.value().data(), args->inv_freq, n_freq * sizeof(float));
    if (!copied.ok()) {
      return refuse(nullptr, SPECD_E_EXHAUSTED, "kv.open: " + copied.message());
    }
  }
  kv->kv = &kv->own;
  kv->own.owner = "the layers of " + owner->name;
  kv->own.store = std::move(store);
  kv->own.own_pages = std::move(own_pages);
  kv->own.positions_max = std::min(static_cast<int32_t>(args->positions_max), pages_.positions_max);
  kv->rows_max = static_cast<int32_t>(args->rows_max);
  kv->rope_scale = args->inv_freq == nullptr ? 1.0f : static_cast<float>(args->rope_scale);
  kv->cos_sin = std::move(table).value();
  kv->inv_freq = std::move(frequencies).value();
  kv->charged_bytes = table_bytes;
  feed_.open(kv);
  const MutexLock lock(owner->mutex);
  owner->kvs.emplace(kv.get(), kv);
  charge.keep();
  *out = kv.get();
  return SPECD_OK;
}

void KvService::close(specd_owner* owner, const specd_kv* kv) {
  if (owner == nullptr) return;
  const MutexLock lock(owner->mutex);
  const auto found = owner->kvs.find(kv);
  if (found == owner->kvs.end()) return;
  owner->used_bytes -= found->second->charged_bytes;
  owner->kvs.erase(found);  // the step thread returns its pages
}

// The open handle behind `kv`, or null with *status set and the reason reported.
std::shared_ptr<specd_kv> KvService::find(specd_call* call, const specd_kv* kv,
                                          const char* function, specd_status* status) {
  const std::string name = std::string(function) + ": ";
  if (call == nullptr || call->batch == nullptr || call->owner == nullptr) {
    *status = refuse(call, SPECD_E_PRECONDITION, name + "allowed only inside begin() to verify()");
    return nullptr;
  }
  feed_.enter(call->serial);
  sessions_.collect_closed();
  const MutexLock lock(call->owner->mutex);
  const auto found = call->owner->kvs.find(kv);
  if (found == call->owner->kvs.end()) {
    *status = refuse(call, SPECD_E_INVALID, name + "not KV that this instance has open");
    return nullptr;
  }
  *status = SPECD_OK;
  return found->second;
}

void KvService::start_over(const specd_call& call, const specd_kv* kv) {
  recorder_.note_unrepeatable();
  std::shared_ptr<specd_kv> handle;
  {
    const MutexLock lock(call.owner->mutex);
    const auto found = call.owner->kvs.find(kv);
    if (found == call.owner->kvs.end()) return;
    handle = found->second;
  }
  handle->serial = 0;
  sessions_.forward_is_over(*handle);
  for (uint32_t s = 0; s < call.batch->n_seqs; ++s) {
    sessions_.release(*handle, call.batch->seq_id[s]);
  }
}

// ---- calls of a step -------------------------------------------------------------------------

specd_status KvService::length(specd_call* call, const specd_kv* kv, uint32_t* out) {
  specd_status status = SPECD_OK;
  const std::shared_ptr<specd_kv> handle = find(call, kv, "kv.length", &status);
  if (handle == nullptr) return status;
  if (out == nullptr) return refuse(call, SPECD_E_INVALID, "kv.length: out is null");
  if (recorder_.is_capturing()) return refuse_capture(call, "kv.length");
  recorder_.note_unrepeatable();
  // What the plugin reads here holds until it has ended its call.
  feed_.hold(handle, {call->batch->seq_id, call->batch->n_seqs});
  for (uint32_t s = 0; s < call->batch->n_seqs; ++s) {
    out[s] = static_cast<uint32_t>(DraftSessions::length(*handle, call->batch->seq_id[s]));
  }
  return SPECD_OK;
}

specd_status KvService::rows(specd_call* call, const specd_kv* kv, const specd_kv_rows_args* args) {
  specd_status status = SPECD_OK;
  const std::shared_ptr<specd_kv> handle = find(call, kv, "kv.rows", &status);
  if (handle == nullptr) return status;
  const std::string fault = rows_fault(args, call->batch->n_seqs, handle->rows_max);
  if (!fault.empty()) return refuse(call, SPECD_E_INVALID, "kv.rows: " + fault);
  KvRequest request{.row_offsets = {args->row_offsets, size_t{call->batch->n_seqs} + 1},
                    .parent = args->parent,
                    .query_rows = {},
                    .is_block = (args->flags & SPECD_KV_BLOCK) != 0};
  if (args->n_queries > 0) request.query_rows = {args->query_rows, args->n_queries};
  of_.assign(call->batch->n_seqs, Status());
  const DraftBatch batch = draft_batch(*call, draws_);
  return finish_rows(call, "kv", recorder_.rows(handle, batch, request, of_), of_,
                     args->seq_status);
}

specd_status KvService::keep(specd_call* call, const specd_kv* kv, const uint32_t* kept,
                             const uint32_t* row_offsets, const uint32_t* rows) {
  specd_status status = SPECD_OK;
  const std::shared_ptr<specd_kv> handle = find(call, kv, "kv.keep", &status);
  if (handle == nullptr) return status;
  if (recorder_.is_capturing()) return refuse_capture(call, "kv.keep");
  recorder_.note_unrepeatable();
  const specd_batch& batch = *call->batch;
  const std::string fault = keep_fault(*call, *handle, kept, row_offsets, rows);
  if (!fault.empty()) return refuse(call, SPECD_E_INVALID, "kv.keep: " + fault);
  KvMoves moves;
  for (uint32_t s = 0; s < batch.n_seqs; ++s) {
    DraftSessions::keep(*handle, batch.seq_id[s], kept[s], kept_path(row_offsets, rows, s), moves);
  }
  handle->serial = 0;  // the rows that the columns are of are no round any more
  const Status moved = feed_.move(*handle, moves);
  if (!moved.ok()) start_over(*call, kv);
  return finish_rows(call, "kv", moved, {}, nullptr);
}

// ---- ops on the rows -------------------------------------------------------------------------

// The handle, when the call has rows in it and the layer is there.
std::shared_ptr<specd_kv> KvService::find_rows(OpCall& op, const specd_kv* kv, uint32_t layer) {
  if (!op.ok()) return nullptr;
  specd_status status = SPECD_OK;
  std::shared_ptr<specd_kv> handle = find(op.call(), kv, op.name(), &status);
  if (handle == nullptr) {
    op.stop(status);
    return nullptr;
  }
  if (handle->serial != op.call()->serial) {
    op.fail(SPECD_E_PRECONDITION, "rows() comes first, in the same call to the plugin");
  }
  const size_t n_layers = handle->own.store->layers().size();
  op.expect(layer < n_layers, [&] {
    return "layer " + std::to_string(layer) + ", expected 0.." + std::to_string(n_layers - 1);
  });
  op.expect(op.on_host() == device_.is_host(),
            [&] { return "the tensors are not on " + device_.name(); });
  return op.ok() ? handle : nullptr;
}

specd_status KvService::append(OpCall& op, const specd_kv* kv, const specd_kv_append_args& args) {
  const std::shared_ptr<specd_kv> handle = find_rows(op, kv, args.layer);
  if (handle == nullptr) return op.status();
  const kernels::KvLayer& layer = handle->own.store->layers()[args.layer];
  op.expect(args.n_heads <= kHeadsMax, [&] {
    return "n_heads is " + std::to_string(args.n_heads) + ", expected at most " +
           std::to_string(kHeadsMax);
  });
  op.expect((args.q_norm == nullptr) == (args.k_norm == nullptr),
            [&] { return std::string("q_norm and k_norm go together"); });
  op.expect(args.norm_eps >= 0 && args.norm_eps <= 1,
            [&] { return "norm_eps is " + std::to_string(args.norm_eps) + ", expected 0 to 1"; });
  const auto n_heads = static_cast<int32_t>(args.n_heads);
  const KvColumns& columns = handle->columns;
  float* const qkv = op.floats("qkv", args.qkv, columns.n_rows,
                               (n_heads + 2 * layer.n_kv_heads) * int64_t{layer.head_dim});
  const auto norm = [&](const char* name, const specd_tensor* weight) {
    return weight == nullptr ? nullptr : op.floats(name, weight, layer.head_dim, 0);
  };
  const float *q_norm = norm("q_norm", args.q_norm), *k_norm = norm("k_norm", args.k_norm);
  return op.run([&](const kernels::Ops& ops, kernels::Stream& stream) {
    if (q_norm != nullptr) {
      ops.head_norm(stream, {.qkv = qkv,
                             .q_weight = q_norm,
                             .k_weight = k_norm,
                             .n_rows = columns.n_rows,
                             .n_heads = n_heads,
                             .n_kv_heads = layer.n_kv_heads,
                             .head_dim = layer.head_dim,
                             .eps = static_cast<float>(args.norm_eps)});
    }
    ops.rope_append(stream, {.qkv = qkv,
                             .cos_sin = handle->cos_sin.as<float>(),
                             .slot = columns.slot,
                             .kv = layer,
                             .n_rows = columns.n_rows,
                             .n_heads = n_heads});
  });
}

specd_status KvService::attend(OpCall& op, const specd_kv* kv, const specd_kv_attend_args& args) {
  const std::shared_ptr<specd_kv> handle = find_rows(op, kv, args.layer);
  if (handle == nullptr) return op.status();
  const kernels::KvLayer& layer = handle->own.store->layers()[args.layer];
  const auto n_heads = static_cast<int32_t>(std::min(args.n_heads, kHeadsMax + 1));
  op.expect(args.n_heads >= 1 && args.n_heads <= kHeadsMax && n_heads % layer.n_kv_heads == 0, [&] {
    return "n_heads is " + std::to_string(args.n_heads) + ", expected a multiple of " +
           std::to_string(layer.n_kv_heads) + ", at most " + std::to_string(kHeadsMax);
  });
  op.expect(args.queries <= SPECD_ATTEND_QUERIES, [&] {
    return "queries is " + std::to_string(args.queries) + ", expected SPECD_ATTEND_*";
  });
  op.expect(args.window <= kPositionsMax,
            [&] { return "a window of " + std::to_string(args.window); });
  op.expect(std::isfinite(args.scale), [&] { return std::string("scale is not finite"); });
  const KvColumns& columns = handle->columns;
  const bool is_all = args.queries == SPECD_ATTEND_ALL;
  const int32_t n = is_all ? columns.n_rows : columns.n_queries;
  const KvColumns::Seen& seen = is_all ? columns.rows : columns.queries;
  const int64_t dim = layer.head_dim;
  const float* const qkv = op.floats("qkv", args.qkv, n, (n_heads + 2 * layer.n_kv_heads) * dim);
  float* const out = op.floats("out", args.out, n, n_heads * dim);
  op.apart(args.qkv, args.out, "qkv and out");
  return op.run([&](const kernels::Ops& ops, kernels::Stream& stream) {
    ops.attention(stream, {.qkv = qkv,
                           .out = out,
                           .kv = layer,
                           .position = seen.position,
                           .span = seen.span,
                           .table = seen.table,
                           .pages = columns.pages,
                           .tail_begin = seen.tail_begin,
                           .tail = columns.tail,
                           .n_rows = n,
                           .n_heads = n_heads,
                           .window = static_cast<int32_t>(args.window),
                           .scale = static_cast<float>(args.scale)});
  });
}

specd_status KvService::view(specd_call* call, const specd_kv* kv, uint32_t layer,
                             specd_kv_view* out) {
  specd_status status = SPECD_OK;
  const std::shared_ptr<specd_kv> handle = find(call, kv, "kv.view", &status);
  if (handle == nullptr) return status;
  const size_t n_layers = handle->own.store->layers().size();
  if (out == nullptr || out->struct_size != sizeof(specd_kv_view) || layer >= n_layers) {
    return refuse(call, SPECD_E_INVALID,
                  "kv.view: expected an out of struct_size " +
                      std::to_string(sizeof(specd_kv_view)) + " and a layer in 0.." +
                      std::to_string(n_layers - 1));
  }
  if (handle->serial != call->serial) {
    return refuse(call, SPECD_E_PRECONDITION,
                  "kv.view: rows() comes first, in the same call to the plugin");
  }
  const kernels::KvLayer& cache = handle->own.store->layers()[layer];
  const KvColumns& columns = handle->columns;
  if (kernels::kv_dtype_bytes(cache.dtype) == 1) {
    return refuse(call, SPECD_E_UNSUPPORTED,
                  "kv.view: the target's cache has 8 bits a number, codes and scales; use append() "
                  "and attend(), or another model.kv.dtype");
  }
  const bool is_bfloat = cache.dtype == kernels::KvDType::kBF16;
  *out = {.struct_size = sizeof(specd_kv_view),
          .page_tokens = kernels::kPageTokens,
          .dtype_code = static_cast<uint8_t>(is_bfloat ? SPECD_DT_BFLOAT : SPECD_DT_FLOAT),
          .dtype_bits = static_cast<uint8_t>(8 * kernels::kv_dtype_bytes(cache.dtype)),
          .reserved0 = 0,
          .n_rows = static_cast<uint32_t>(columns.n_rows),
          .page_stride = cache.page_stride,
          .k = cache.k,
          .v = cache.v,
          .position = columns.position,
          .slot = columns.slot,
          .last = columns.rows.position,
          .span = columns.rows.span,
          .table = columns.rows.table,
          .pages = columns.pages,
          .tail_begin = columns.rows.tail_begin,
          .tail = columns.tail};
  return SPECD_OK;
}

Result<const kernels::DrawRow*> KvService::draws(const specd_call& call) {
  feed_.enter(call.serial);
  return recorder_.draws(draft_batch(call, draws_));
}

Result<void*> KvService::upload(const specd_call& call, const void* data, uint64_t bytes) {
  feed_.enter(call.serial);
  return feed_.upload(data, bytes);
}

// ---- the table -------------------------------------------------------------------------------

namespace {

specd_status kv_absent(specd_call* call) {
  return refuse(call, SPECD_E_PRECONDITION, "kv/1: this host has no models");
}

specd_status kv_open(const specd_host* host, specd_owner* owner, const specd_kv_open_args* args,
                     specd_kv** out) {
  ModelService* models = ServiceState::models_of(host);
  return models == nullptr ? kv_absent(nullptr) : models->kv().open(owner, args, out);
}

void kv_close(const specd_host* host, specd_owner* owner, specd_kv* kv) noexcept {
  if (ModelService* models = ServiceState::models_of(host); models != nullptr) {
    models->kv().close(owner, kv);
  }
}

// Runs `body`, a call on `kv`, except for a pool task.
template <typename Body>
specd_status on_kv(const specd_host* host, specd_call* call, const specd_kv* kv, Body&& body) {
  ServiceState* state = ServiceState::of(host);
  if (state == nullptr || state->models == nullptr) return kv_absent(call);
  if (call != nullptr && call->lane != nullptr) {
    return refuse(call, SPECD_E_PRECONDITION, "kv/1: not for a drafter beside the step");
  }
  const PoolTurn turn(state->step);
  if (!turn.is_mine()) return refuse(call, SPECD_E_PRECONDITION, "kv/1: called from a pool task");
  try {
    return body(state->models.load()->kv());
  } catch (const std::bad_alloc&) {
    if (call != nullptr && call->batch != nullptr && call->owner != nullptr) {
      state->models.load()->kv().start_over(*call, kv);
    }
    or_drop([&] { report_text(call, -1, "no memory left"); });
    throw;
  }
}

specd_status kv_length(const specd_host* host, specd_call* call, specd_kv* kv, uint32_t* out) {
  return on_kv(host, call, kv, [&](KvService& all) { return all.length(call, kv, out); });
}

specd_status kv_rows(const specd_host* host, specd_call* call, specd_kv* kv,
                     const specd_kv_rows_args* args) {
  return on_kv(host, call, kv, [&](KvService& all) { return all.rows(call, kv, args); });
}

specd_status kv_keep(const specd_host* host, specd_call* call, specd_kv* kv, const uint32_t* kept,
                     const uint32_t* row_offsets, const uint32_t* rows) {
  return on_kv(host, call, kv,
               [&](KvService& all) { return all.keep(call, kv, kept, row_offsets, rows); });
}

specd_status kv_view(const specd_host* host, specd_call* call, specd_kv* kv, uint32_t layer,
                     specd_kv_view* out) {
  return on_kv(host, call, kv, [&](KvService& all) { return all.view(call, kv, layer, out); });
}

template <typename Args, typename Body>
specd_status op_on_kv(const specd_host* host, specd_call* call, const char* name, const Args* args,
                      Body&& body) {
  if (args == nullptr || args->struct_size != sizeof(Args)) {
    return refuse(
        call, SPECD_E_INVALID,
        std::string(name) + ": args of struct_size " + std::to_string(sizeof(Args)) + " expected");
  }
  OpCall op(host, call, name, args->qkv);
  if (op.ok() && op.state().models == nullptr) return kv_absent(call);
  op.take_turn();
  return op.ok() ? body(op, op.state().models.load()->kv()) : op.status();
}

specd_status kv_append(const specd_host* host, specd_call* call, specd_kv* kv,
                       const specd_kv_append_args* args) {
  return op_on_kv(host, call, "kv.append", args,
                  [&](OpCall& op, KvService& all) { return all.append(op, kv, *args); });
}

specd_status kv_attend(const specd_host* host, specd_call* call, specd_kv* kv,
                       const specd_kv_attend_args* args) {
  return op_on_kv(host, call, "kv.attend", args,
                  [&](OpCall& op, KvService& all) { return all.attend(op, kv, *args); });
}

}  // namespace

const specd_kv_api kKvService = {sizeof(specd_kv_api),    0,
                                 or_exhausted<kv_open>,   kv_close,
                                 or_exhausted<kv_length>, or_exhausted<kv_rows>,
                                 or_exhausted<kv_append>, or_exhausted<kv_attend>,
                                 or_exhausted<kv_keep>,   or_exhausted<kv_view>};

}  // namespace specd
