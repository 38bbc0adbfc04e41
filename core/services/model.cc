#include "core/services/model.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <span>
#include <utility>

#include "core/base/mutex.h"
#include "core/base/bad_alloc.h"
#include "core/services/arguments.h"
#include "core/services/model_arguments.h"
#include "core/services/tables.h"
#include "specd/plugin_api/drafter.h"

namespace specd {
namespace {

static_assert(kDraftTailMax == SPECD_MAX_TREE_NODES);

constexpr size_t kNameBytesMax = 256;

}  // namespace

void ModelService::add(std::unique_ptr<DraftModel> model) {
  if (model->transformer != nullptr) {
    if (model->device != nullptr) {
      elsewhere_[model.get()] = std::make_unique<Elsewhere>(*model->device, sessions_);
    }
    const Status made = forward_of(*model).make_room(*model);
    if (!made.ok()) model->status = made;
  }
  models_.push_back(std::move(model));
}

// ---- handles ---------------------------------------------------------------------------------

specd_status ModelService::open(specd_owner* owner, const char* name, specd_model** out) {
  if (out == nullptr) return refuse(nullptr, SPECD_E_INVALID, "model.open: out is null");
  *out = nullptr;
  if (owner == nullptr || name == nullptr) {
    return refuse(nullptr, SPECD_E_INVALID, "model.open: owner or name is null");
  }
  const std::string wanted(name, strnlen(name, kNameBytesMax));
  std::string known;
  for (const std::unique_ptr<DraftModel>& model : models_) {
    if (model->name != wanted) {
      known += (known.empty() ? "" : ", ") + model->name;
      continue;
    }
    if (!model->status.ok()) {
      return refuse(nullptr, SPECD_E_PRECONDITION,
                    "draft model '" + wanted + "' cannot be used: " + model->status.to_string());
    }
    auto handle = std::make_shared<specd_model>();
    handle->model = model.get();
    handle->kv = &model->kv;
    sessions_.open(handle);
    const MutexLock lock(owner->mutex);
    owner->models.emplace(handle.get(), handle);
    *out = handle.get();
    return SPECD_OK;
  }
  return refuse(nullptr, SPECD_E_PRECONDITION,
                "no draft model is called '" + wanted + "'; draft_models has " +
                    (known.empty() ? "none" : known));
}

specd_status ModelService::info(specd_owner* owner, const specd_model* model,
                                specd_target_info* out) {
  if (owner == nullptr || out == nullptr || out->struct_size != sizeof(specd_target_info)) {
    return refuse(nullptr, SPECD_E_INVALID,
                  "model.info: expected an owner, and an out of struct_size " +
                      std::to_string(sizeof(specd_target_info)));
  }
  const MutexLock lock(owner->mutex);
  const auto found = owner->models.find(model);
  if (found == owner->models.end()) {
    return refuse(nullptr, SPECD_E_INVALID, "model.info: not a model that this instance has open");
  }
  *out = found->second->model->facts.info;
  return SPECD_OK;
}

void ModelService::close(specd_owner* owner, const specd_model* model) {
  if (owner == nullptr) return;
  const MutexLock lock(owner->mutex);
  owner->models.erase(model);  // the step thread returns its pages
}

// The open handle behind `model`, or null with *status set and the reason reported.
std::shared_ptr<specd_model> ModelService::find(specd_call* call, const specd_model* model,
                                                const char* function, specd_status* status) {
  const std::string name = std::string("model.") + function + ": ";
  if (call == nullptr || call->batch == nullptr || call->owner == nullptr) {
    *status = refuse(call, SPECD_E_PRECONDITION, name + "allowed only inside begin() to verify()");
    return nullptr;
  }
  kv_feed_.enter(call->serial);
  sessions_.collect_closed();
  const MutexLock lock(call->owner->mutex);
  const auto found = call->owner->models.find(model);
  if (found == call->owner->models.end()) {
    *status = refuse(call, SPECD_E_INVALID, name + "not a model that this instance has open");
    return nullptr;
  }
  if (found->second->model->transformer == nullptr) {
    *status = refuse(call, SPECD_E_PRECONDITION, name + "the model was checked but not loaded");
    return nullptr;
  }
  *status = SPECD_OK;
  return found->second;
}

// ---- calls of a step -------------------------------------------------------------------------

DraftBatch ModelService::batch_of(const specd_call& call) {
  of_.assign(call.batch->n_seqs, Status());
  return draft_batch(call, draws_);
}

void ModelService::start_over(const specd_call& call, const specd_model* model) {
  recorder_.note_unrepeatable();
  std::shared_ptr<specd_model> handle;
  {
    const MutexLock lock(call.owner->mutex);
    const auto found = call.owner->models.find(model);
    if (found == call.owner->models.end()) return;
    handle = found->second;
  }
  feed_of(*handle->model).start_over(*handle, {call.batch->seq_id, call.batch->n_seqs});
}

specd_status ModelService::length(specd_call* call, const specd_model* model, uint32_t* out) {
  specd_status status = SPECD_OK;
  const std::shared_ptr<specd_model> handle = find(call, model, "length", &status);
  if (handle == nullptr) return status;
  if (out == nullptr) return refuse(call, SPECD_E_INVALID, "model.length: out is null");
  if (recorder_.is_capturing()) return refuse_capture(call, "model.length");
  recorder_.note_unrepeatable();
  for (uint32_t s = 0; s < call->batch->n_seqs; ++s) {
    out[s] = static_cast<uint32_t>(DraftSessions::length(*handle, call->batch->seq_id[s]));
  }
  return SPECD_OK;
}

specd_status ModelService::keep(specd_call* call, const specd_model* model, const uint32_t* kept,
                                const uint32_t* row_offsets, const uint32_t* rows) {
  specd_status status = SPECD_OK;
  const std::shared_ptr<specd_model> handle = find(call, model, "keep", &status);
  if (handle == nullptr) return status;
  if (recorder_.is_capturing()) return refuse_capture(call, "model.keep");
  recorder_.note_unrepeatable();
  const specd_batch& batch = *call->batch;
  const std::string fault = keep_fault(*call, *handle, kept, row_offsets, rows);
  if (!fault.empty()) return refuse(call, SPECD_E_INVALID, "model.keep: " + fault);
  KvMoves moves;
  for (uint32_t s = 0; s < batch.n_seqs; ++s) {
    DraftSessions::keep(*handle, batch.seq_id[s], kept[s], kept_path(row_offsets, rows, s), moves);
  }
  DraftForward& forward = forward_of(*handle->model);
  forward.move(*handle->model, moves);
  const Status failed = forward.take_failure();
  if (!failed.ok()) feed_of(*handle->model).start_over(*handle, {batch.seq_id, batch.n_seqs});
  return finish_rows(call, "model", failed, {}, nullptr);
}

specd_status ModelService::forward(specd_call* call, const specd_model* model,
                                   const specd_forward_args* args) {
  specd_status status = SPECD_OK;
  const std::shared_ptr<specd_model> handle = find(call, model, "forward", &status);
  if (handle == nullptr) return status;
  const std::string fault = forward_fault(*call, args, *handle->model, forward_.device());
  if (!fault.empty()) return refuse(call, SPECD_E_INVALID, "model.forward: " + fault);
  const DraftRequest request = forward_request(*args, call->batch->n_seqs);
  if (elsewhere(*handle->model) != nullptr) return call_elsewhere(call, handle, *args, request);
  if (recorder_.is_capturing() && !DraftRecorder::fits_graph(request)) {
    return refuse_capture(call, "model.forward", " with these arguments");
  }
  const DraftBatch batch = batch_of(*call);
  return finish_rows(call, "model", recorder_.forward(handle, batch, request, of_), of_,
                     args->seq_status);
}

specd_status ModelService::follow(specd_call* call, const specd_model* model,
                                  const specd_forward_args* args) {
  specd_status status = SPECD_OK;
  const std::shared_ptr<specd_model> handle = find(call, model, "follow", &status);
  if (handle == nullptr) return status;
  if (call->committed == nullptr) {
    return refuse(call, SPECD_E_PRECONDITION, "model.follow: allowed only inside propose()");
  }
  const std::string fault = follow_fault(*call, args, *handle->model, forward_.device());
  if (!fault.empty()) return refuse(call, SPECD_E_INVALID, "model.follow: " + fault);
  const DraftRequest request = follow_request(*args);
  if (elsewhere(*handle->model) != nullptr) return call_elsewhere(call, handle, *args, request);
  if (recorder_.is_capturing() && !DraftRecorder::fits_graph(request)) {
    return refuse_capture(call, "model.follow", " with these arguments");
  }
  const DraftBatch batch = batch_of(*call);
  return finish_rows(call, "model", recorder_.follow(handle, batch, request, of_), of_,
                     args->seq_status);
}

namespace {

// An output of a drafter that is in memory of the target's device: computed in host memory.
template <typename T>
class BroughtOutput {
 public:
  static uint64_t bytes(const Strided<T>& output, size_t n, int64_t width) {
    return output.data == nullptr ? 0 : n * to_size(width) * sizeof(T);
  }
  // `n`: elements up to the last one that is wanted; `width` numbers each, which are `otherwise` where nothing
  // is computed. Takes its bytes from `memory`.
  BroughtOutput(Strided<T>& output, size_t n, int64_t width, T otherwise, char*& memory)
      : device_(output), width_(to_size(width)) {
    if (device_.data == nullptr) return;
    host_ = reinterpret_cast<T*>(memory);
    std::fill_n(host_, n * width_, otherwise);
    memory += bytes(output, n, width);
    output = {host_, width};
  }
  void bring(Device& device, size_t place) const {
    if (device_.data == nullptr) return;
    device.copy_in(device_.element(static_cast<int64_t>(place)), host_ + place * width_,
                   width_ * sizeof(T));
  }

 private:
  const Strided<T> device_;
  const size_t width_;
  T* host_ = nullptr;
};

}  // namespace

specd_status ModelService::call_elsewhere(specd_call* call,
                                          const std::shared_ptr<specd_model>& handle,
                                          const specd_forward_args& args, DraftRequest request) {
  const bool is_follow = args.row_offsets == nullptr;
  const char* const function = is_follow ? "model.follow" : "model.forward";
  Elsewhere& other = *elsewhere(*handle->model);
  if (recorder_.is_capturing()) {
    return refuse_capture(call, function, " of a model on another device");
  }
  recorder_.note_unrepeatable();
  DraftOutputs& outputs = request.outputs;
  if (!other.forward.device().is_host() && to_size(outputs.top_k) > kDraftTopKMax) {
    return refuse(call, SPECD_E_INVALID,
                  std::string(function) + ": out_topk_token has " + std::to_string(outputs.top_k) +
                      " columns, expected at most " + std::to_string(kDraftTopKMax) +
                      " of a model on " + other.forward.device().name());
  }
  const DraftBatch batch = batch_of(*call);
  const auto compute = [&] {
    return is_follow ? other.feed.follow(handle, batch, request, of_, nullptr)
                     : other.feed.forward(handle, batch, request, of_);
  };
  if (!outputs.on_device) return finish_rows(call, "model", compute(), of_, args.seq_status);

  // What the drafter has submitted before, and the copies of the last call.
  Status status = device_.synchronize();
  const auto place = [&](size_t i) {
    return request.output_at == nullptr ? i : request.output_at[i];
  };
  size_t n = 0;
  for (size_t i = 0; i < request.output_rows.size(); ++i) n = std::max(n, place(i) + 1);
  const uint64_t bytes = BroughtOutput<int32_t>::bytes(outputs.token, n, 1) +
                         BroughtOutput<float>::bytes(outputs.logprob, n, 1) +
                         BroughtOutput<int32_t>::bytes(outputs.top_token, n, outputs.top_k) +
                         BroughtOutput<float>::bytes(outputs.top_logprob, n, outputs.top_k);
  if (status.ok() && bytes > other.brought.bytes()) {
    Result<Buffer> larger = device_.allocate_pinned(2 * bytes, "outputs of a draft model");
    status = larger.status();
    if (status.ok()) other.brought = std::move(larger).value();
  }
  if (!status.ok()) return finish_rows(call, "model", status, {}, nullptr);
  std::vector<int32_t> tokens;
  if (request.token.data != nullptr && args.token->shape[0] > 0) {
    tokens.resize(to_size((args.token->shape[0] - 1) * request.token.stride) + 1);
    device_.copy_out(tokens.data(), request.token.data, tokens.size() * sizeof(int32_t));
    request.token.data = tokens.data();
  }
  outputs.on_device = false;
  auto* memory = other.brought.as<char>();
  const BroughtOutput<int32_t> token(outputs.token, n, 1, -1, memory);
  const BroughtOutput<float> logprob(outputs.logprob, n, 1, 0, memory);
  const BroughtOutput<int32_t> top_token(outputs.top_token, n, outputs.top_k, -1, memory);
  const BroughtOutput<float> top_logprob(outputs.top_logprob, n, outputs.top_k, 0, memory);
  status = compute();
  for (size_t i = 0; i < request.output_rows.size() && status.ok(); ++i) {
    token.bring(device_, place(i));
    logprob.bring(device_, place(i));
    top_token.bring(device_, place(i));
    top_logprob.bring(device_, place(i));
  }
  return finish_rows(call, "model", status, of_, args.seq_status);
}

// ---- the table -------------------------------------------------------------------------------

namespace {

specd_status model_absent(specd_call* call) {
  return refuse(call, SPECD_E_PRECONDITION, "model/1: this host has no models");
}

specd_status model_open(const specd_host* host, specd_owner* owner, const char* name,
                        specd_model** out) {
  ModelService* models = ServiceState::models_of(host);
  return models == nullptr ? model_absent(nullptr) : models->open(owner, name, out);
}

specd_status model_info(const specd_host* host, specd_owner* owner, specd_model* model,
                        specd_target_info* out) {
  ModelService* models = ServiceState::models_of(host);
  return models == nullptr ? model_absent(nullptr) : models->info(owner, model, out);
}

void model_close(const specd_host* host, specd_owner* owner, specd_model* model) noexcept {
  if (ModelService* models = ServiceState::models_of(host); models != nullptr)
    models->close(owner, model);
}

// Runs `body`, a call on `model`, except for a pool task: a forward needs the pool itself.
template <typename Body>
specd_status on_models(const specd_host* host, specd_call* call, const specd_model* model,
                       Body&& body) {
  ServiceState* state = ServiceState::of(host);
  if (state == nullptr || state->models == nullptr) return model_absent(call);
  if (call != nullptr && call->lane != nullptr) {
    return refuse(call, SPECD_E_PRECONDITION, "model/1: not for a drafter beside the step");
  }
  const PoolTurn turn(state->step);
  if (!turn.is_mine()) {
    return refuse(call, SPECD_E_PRECONDITION, "model/1: called from a pool task");
  }
  try {
    return body(*state->models.load());
  } catch (const std::bad_alloc&) {
    // Also when the call was only refused, which the header allows.
    if (call != nullptr && call->batch != nullptr && call->owner != nullptr)
      state->models.load()->start_over(*call, model);
    or_drop([&] { report_text(call, -1, "no memory left"); });
    throw;
  }
}

specd_status model_length(const specd_host* host, specd_call* call, specd_model* model,
                          uint32_t* out) {
  return on_models(host, call, model,
                   [&](ModelService& models) { return models.length(call, model, out); });
}

specd_status model_forward(const specd_host* host, specd_call* call, specd_model* model,
                           const specd_forward_args* args) {
  return on_models(host, call, model,
                   [&](ModelService& models) { return models.forward(call, model, args); });
}

specd_status model_follow(const specd_host* host, specd_call* call, specd_model* model,
                          const specd_forward_args* args) {
  return on_models(host, call, model,
                   [&](ModelService& models) { return models.follow(call, model, args); });
}

specd_status model_keep(const specd_host* host, specd_call* call, specd_model* model,
                        const uint32_t* kept, const uint32_t* row_offsets, const uint32_t* rows) {
  return on_models(host, call, model, [&](ModelService& models) {
    return models.keep(call, model, kept, row_offsets, rows);
  });
}

}  // namespace

const specd_models kModelService = {sizeof(specd_models),
                                    0,
                                    or_exhausted<model_open>,
                                    or_exhausted<model_info>,
                                    model_close,
                                    or_exhausted<model_length>,
                                    or_exhausted<model_forward>,
                                    or_exhausted<model_follow>,
                                    or_exhausted<model_keep>};

}  // namespace specd
