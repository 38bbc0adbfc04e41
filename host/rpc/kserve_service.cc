#include "host/rpc/kserve_service.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <iterator>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/mutex.h"
#include "host/base/out_of_memory.h"
#include "host/base/random_bytes.h"
#include "host/rpc/calls.h"
#include "host/rpc/kserve_wire.h"
#include "host/rpc/wire.h"
#include "host/triton/infer_call.h"
#include "host/triton/infer_request.h"
#include "host/triton/statistics.h"
#include "host/version.h"

namespace specd::host {
namespace {

using inference::ModelInferRequest;
using inference::ModelInferResponse;
using inference::ModelStreamInferResponse;

constexpr size_t kUnsentMax = 256;  // responses of a stream; then no request is read

// The client's deadline, where it is earlier than the request's own.
void limit_time(const grpc::CallbackServerContext& context, InferRequest& request) {
  const auto deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) return;
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
      deadline - std::chrono::system_clock::now());
  request.time_left = std::min(left, request.time_left.value_or(left));
}

// One ModelInfer call. Deletes itself in OnDone(), which comes after the last of InferSink.
class UnaryInfer final : public grpc::ServerUnaryReactor {
 public:
  // What a call hears of goes to `response`, which is gRPC's until OnDone().
  class Sink final : public InferSink {
   public:
    Sink(UnaryInfer& reactor, const TritonModel& model, const KserveRequest& asked,
         ModelInferResponse& response)
        : reactor_(reactor),
          model_(model),
          id_(asked.request.id),
          outputs_(asked.outputs),
          response_(response) {}
    void respond(const InferOutputs& outputs, bool, std::function<void(bool)> done) override {
      response_.Clear();
      head_to_kserve(response_, model_, id_);
      outputs_to_kserve(response_, outputs, outputs_);
      reactor_.finish(grpc::Status::OK, std::move(done));
    }
    void fail(const Status& status, std::function<void(bool)> done) override {
      reactor_.finish(status_to_wire(status), std::move(done));
    }

   private:
    UnaryInfer& reactor_;
    const TritonModel& model_;
    const std::string id_;
    const std::vector<std::string> outputs_;
    ModelInferResponse& response_;
  };

  explicit UnaryInfer(Caller::Place place) : place_(std::move(place)) {}
  // gRPC has not seen this call yet, so neither OnCancel nor OnDone can run.
  void own(std::shared_ptr<InferCall> call) { call_ = std::move(call); }

  void OnCancel() override { call_->disconnect(); }
  void OnDone() override {
    if (done_) done_(true);
    delete this;
  }

 private:
  void finish(const grpc::Status& status, std::function<void(bool)> done) {
    done_ = std::move(done);
    place_ = {};  // a client that has seen the end may call again at once
    Finish(status);
  }

  Caller::Place place_;
  std::function<void(bool)> done_;
  std::shared_ptr<InferCall> call_;
};

// One ModelStreamInfer call. Requests are read while few responses wait for the client to read them. Deletes
// itself in OnDone(), when every InferCall has ended.
class StreamInfer final
    : public grpc::ServerBidiReactor<ModelInferRequest, ModelStreamInferResponse> {
 public:
  StreamInfer(Engine& engine, InferCalls& calls, const TritonModel& model, Caller& caller,
              grpc::CallbackServerContext& context)
      : engine_(engine), all_calls_(calls), model_(model), caller_(caller), context_(context) {
    StartRead(&request_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      const MutexLock lock(mutex_);
      has_read_all_ = true;
      return finish_if_done();
    }
    const Status begun = within_memory([this] { return begin(); });
    const MutexLock lock(mutex_);
    if (!begun.ok()) {
      // There is no memory even for an error response.
      has_read_all_ = has_no_memory_ = true;
      return finish_if_done();
    }
    ModelInferRequest().Swap(&request_);  // Clear() would keep its memory
    is_reading_ = false;
    read_on();
  }

  void OnWriteDone(bool ok) override {
    std::function<void(bool)> done;
    {
      const MutexLock lock(mutex_);
      done = std::move(unsent_.front().done);
      unsent_.pop_front();
      is_writing_ = false;
      if (!ok) is_gone_ = true;
    }
    if (done) done(ok);
    if (!ok) leave();
    const MutexLock lock(mutex_);
    write_on();
    read_on();
    finish_if_done();
  }

  void OnCancel() override {
    leave();
    const MutexLock lock(mutex_);
    if (!is_reading_) has_read_all_ = true;  // else OnReadDone() comes
    finish_if_done();
  }

  void OnDone() override {
    { const MutexLock lock(mutex_); }  // the thread that called Finish() may still hold it
    delete this;
  }

 private:
  struct Unsent {
    ModelStreamInferResponse message;
    std::function<void(bool)> done;
  };

  class Sink final : public InferSink {
   public:
    Sink(StreamInfer& stream, uint64_t number, const std::string& id,
         std::vector<std::string> outputs, Caller::Place place)
        : stream_(stream),
          number_(number),
          id_(id),
          outputs_(std::move(outputs)),
          place_(std::move(place)) {}
    void respond(const InferOutputs& outputs, bool is_last,
                 std::function<void(bool)> done) override {
      Unsent one{.message = {}, .done = std::move(done)};
      ModelInferResponse& response = *one.message.mutable_infer_response();
      stream_.fill_one(response, id_, is_last);
      outputs_to_kserve(response, outputs, outputs_);
      if (!is_last) place_.stop_waiting();
      stream_.send(std::move(one), is_last ? number_ : 0);
    }
    void fail(const Status& status, std::function<void(bool)> done) override {
      stream_.send(stream_.error(status, id_, std::move(done)), number_);
    }

   private:
    StreamInfer& stream_;
    const uint64_t number_;  // of the call
    const std::string id_;
    const std::vector<std::string> outputs_;
    Caller::Place place_;
  };

  void fill_one(ModelInferResponse& response, const std::string& id, bool is_last) const {
    head_to_kserve(response, model_, id);
    (*response.mutable_parameters())["triton_final_response"].set_bool_param(is_last);
  }
  Unsent error(const Status& status, const std::string& id, std::function<void(bool)> done) const {
    Unsent one{.message = {}, .done = std::move(done)};
    one.message.set_error_message(status_to_wire(status).error_message());
    fill_one(*one.message.mutable_infer_response(), id, true);
    return one;
  }

  // Starts what request_ asks for, or says why not.
  Status begin() {
    // Do not echo an id that is refused: it may have megabytes.
    const std::string id = check_infer_id(request_.id()).ok() ? request_.id() : "";
    Result<Caller::Place> place = caller_.take_place(request_.ByteSizeLong());
    Result<KserveRequest> asked = place.ok()
                                      ? request_from_kserve(request_, model_, random_number())
                                      : Result<KserveRequest>(place.status());
    if (!asked.ok()) {
      Unsent one = error(asked.status(), id, {});
      engine_.count_refused();  // no session does
      send(std::move(one), 0);
      return Status();
    }
    InferRequest& request = asked.value().request;
    limit_time(context_, request);
    uint64_t number = 0;
    {
      const MutexLock lock(mutex_);
      number = ++last_number_;
      calls_[number];  // counts as running from here on
    }
    std::shared_ptr<InferCall> call;
    try {
      auto sink = std::make_shared<Sink>(*this, number, id, std::move(asked.value().outputs),
                                         std::move(place).value());
      call = all_calls_.start(std::move(request), caller_.number(), std::move(sink));
    } catch (const std::bad_alloc&) {
      const MutexLock lock(mutex_);
      calls_.erase(number);
      throw;
    }
    bool is_gone = false;
    {
      const MutexLock lock(mutex_);
      is_gone = is_gone_;
      // It may have ended already.
      if (const auto found = calls_.find(number); found != calls_.end()) found->second = call;
    }
    if (is_gone) call->disconnect();
    return Status();
  }

  // `ended`: the number of the call whose last response this is; 0 = of none.
  void send(Unsent one, uint64_t ended) {
    std::function<void(bool)> dropped;
    std::shared_ptr<InferCall> last;  // let go after the lock
    {
      const MutexLock lock(mutex_);
      if (is_gone_) {
        dropped = std::move(one.done);
      } else {
        unsent_.push_back(std::move(one));
      }
    }
    if (dropped) dropped(false);
    const MutexLock lock(mutex_);
    if (const auto found = calls_.find(ended); found != calls_.end()) {
      last = std::move(found->second);
      calls_.erase(found);
    }
    write_on();
    finish_if_done();
  }

  // The client is gone: nothing more is written, and every call ends. Needs no memory.
  void leave() {
    std::list<Unsent> dropped;
    {
      const MutexLock lock(mutex_);
      is_gone_ = true;
      // gRPC has the first one until OnWriteDone().
      const auto first = is_writing_ ? std::next(unsent_.begin()) : unsent_.begin();
      dropped.splice(dropped.end(), unsent_, first, unsent_.end());
    }
    for (const Unsent& each : dropped) {
      if (each.done) each.done(false);
    }
    uint64_t last = 0;
    while (const auto call = call_after(last)) call->disconnect();
  }
  // The first call behind this number, which it becomes; null when there is none.
  std::shared_ptr<InferCall> call_after(uint64_t& number) {
    const MutexLock lock(mutex_);
    auto found = calls_.upper_bound(number);
    while (found != calls_.end() && found->second == nullptr) ++found;
    if (found == calls_.end()) return nullptr;
    number = found->first;
    return found->second;
  }

  void write_on() SPECD_REQUIRES(mutex_) {
    if (is_writing_ || unsent_.empty() || has_finished_) return;
    is_writing_ = true;
    StartWrite(&unsent_.front().message);
  }
  void read_on() SPECD_REQUIRES(mutex_) {
    if (is_reading_ || has_read_all_ || has_finished_ || unsent_.size() >= kUnsentMax) return;
    is_reading_ = true;
    StartRead(&request_);
  }
  void finish_if_done() SPECD_REQUIRES(mutex_) {
    if (has_finished_ || !has_read_all_ || !calls_.empty() || !unsent_.empty()) return;
    has_finished_ = true;
    Finish(has_no_memory_ ? grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "no memory")
                          : grpc::Status::OK);
  }

  Engine& engine_;
  InferCalls& all_calls_;
  const TritonModel& model_;
  Caller& caller_;
  grpc::CallbackServerContext& context_;
  ModelInferRequest request_;  // borrowed by gRPC while is_reading_
  Mutex mutex_;
  std::list<Unsent> unsent_ SPECD_GUARDED_BY(mutex_);  // gRPC borrows the first while is_writing_
  std::map<uint64_t, std::shared_ptr<InferCall>> calls_ SPECD_GUARDED_BY(mutex_);  // that run
  uint64_t last_number_ SPECD_GUARDED_BY(mutex_) = 0;
  bool is_reading_ SPECD_GUARDED_BY(mutex_) = true, is_writing_ SPECD_GUARDED_BY(mutex_) = false;
  bool has_read_all_ SPECD_GUARDED_BY(mutex_) = false, is_gone_ SPECD_GUARDED_BY(mutex_) = false;
  bool has_finished_ SPECD_GUARDED_BY(mutex_) = false, has_no_memory_
                                                       SPECD_GUARDED_BY(mutex_) = false;
};

void set_duration(inference::StatisticDuration& to, const InferStatistics::Duration& from) {
  to.set_count(from.count);
  to.set_ns(from.ns);
}

inference::DataType config_type(Datatype type) {
  switch (type) {
    case Datatype::kBool:
      return inference::TYPE_BOOL;
    case Datatype::kInt32:
      return inference::TYPE_INT32;
    case Datatype::kUint64:
      return inference::TYPE_UINT64;
    case Datatype::kFp32:
      return inference::TYPE_FP32;
    case Datatype::kBytes:
      return inference::TYPE_STRING;
  }
  return inference::TYPE_INVALID;
}

}  // namespace

bool KserveService::is_ready() const { return engine_.status().state == EngineState::kReady; }

grpc::ServerUnaryReactor* KserveService::ServerLive(Caller&, grpc::CallbackServerContext* context,
                                                    const inference::ServerLiveRequest*,
                                                    inference::ServerLiveResponse* response) {
  response->set_live(true);
  return finished(context, Status());
}

grpc::ServerUnaryReactor* KserveService::ServerReady(Caller&, grpc::CallbackServerContext* context,
                                                     const inference::ServerReadyRequest*,
                                                     inference::ServerReadyResponse* response) {
  response->set_ready(is_ready());
  return finished(context, Status());
}

grpc::ServerUnaryReactor* KserveService::ModelReady(Caller&, grpc::CallbackServerContext* context,
                                                    const inference::ModelReadyRequest* request,
                                                    inference::ModelReadyResponse* response) {
  response->set_ready(model_.check(request->name(), request->version()).ok() && is_ready());
  return finished(context, Status());
}

grpc::ServerUnaryReactor* KserveService::ServerMetadata(
    Caller&, grpc::CallbackServerContext* context, const inference::ServerMetadataRequest*,
    inference::ServerMetadataResponse* response) {
  response->set_name("specd");
  response->set_version(kVersion);
  for (const char* const each : triton_extensions()) response->add_extensions(each);
  return finished(context, Status());
}

grpc::ServerUnaryReactor* KserveService::ModelMetadata(
    Caller&, grpc::CallbackServerContext* context, const inference::ModelMetadataRequest* request,
    inference::ModelMetadataResponse* response) {
  const Status known = model_.check(request->name(), request->version());
  if (!known.ok()) return finished(context, known);
  response->set_name(model_.name);
  response->add_versions(model_.version);
  response->set_platform(kTritonBackend);
  const auto fill_tensor = [](auto& tensor, const char* name, Datatype type, int64_t dim) {
    tensor.set_name(name);
    tensor.set_datatype(datatype_name(type));
    tensor.add_shape(dim);
  };
  for (const TensorSpec& each : infer_inputs())
    fill_tensor(*response->add_inputs(), each.name, each.type, each.dim());
  for (const char* const each : infer_outputs())
    fill_tensor(*response->add_outputs(), each, Datatype::kBytes, 1);
  return finished(context, Status());
}

grpc::ServerUnaryReactor* KserveService::ModelConfig(Caller&, grpc::CallbackServerContext* context,
                                                     const inference::ModelConfigRequest* request,
                                                     inference::ModelConfigResponse* response) {
  const Status known = model_.check(request->name(), request->version());
  if (!known.ok()) return finished(context, known);
  inference::ModelConfig& config = *response->mutable_config();
  config.set_name(model_.name);
  config.set_backend(kTritonBackend);
  for (const TensorSpec& each : infer_inputs()) {
    auto& input = *config.add_input();
    input.set_name(each.name);
    input.set_data_type(config_type(each.type));
    input.add_dims(each.dim());
    input.set_optional(std::string_view(each.name) != kTextInput);
  }
  for (const char* const each : infer_outputs()) {
    auto& output = *config.add_output();
    output.set_name(each);
    output.set_data_type(config_type(Datatype::kBytes));
    output.add_dims(1);
  }
  config.mutable_model_transaction_policy()->set_decoupled(false);
  return finished(context, Status());
}

grpc::ServerUnaryReactor* KserveService::ModelStatistics(
    Caller&, grpc::CallbackServerContext* context, const inference::ModelStatisticsRequest* request,
    inference::ModelStatisticsResponse* response) {
  if (!request->name().empty()) {
    const Status known = model_.check(request->name(), request->version());
    if (!known.ok()) return finished(context, known);
  }
  const InferStatistics all = infer_statistics(engine_.metrics());
  inference::ModelStatistics& model = *response->add_model_stats();
  model.set_name(model_.name);
  model.set_version(model_.version);
  model.set_inference_count(all.inference_count);
  model.set_execution_count(all.execution_count);
  inference::InferStatistics& stats = *model.mutable_inference_stats();
  set_duration(*stats.mutable_success(), all.success);
  set_duration(*stats.mutable_fail(), all.fail);
  set_duration(*stats.mutable_queue(), all.queue);
  set_duration(*stats.mutable_compute_input(), all.compute_input);
  set_duration(*stats.mutable_compute_infer(), all.compute_infer);
  set_duration(*stats.mutable_compute_output(), all.compute_output);
  set_duration(*stats.mutable_cache_hit(), {});
  set_duration(*stats.mutable_cache_miss(), {});
  return finished(context, Status());
}

grpc::ServerUnaryReactor* KserveService::RepositoryIndex(
    Caller&, grpc::CallbackServerContext* context, const inference::RepositoryIndexRequest* request,
    inference::RepositoryIndexResponse* response) {
  const bool ready = is_ready();
  if (ready || !request->ready()) {
    auto& model = *response->add_models();
    model.set_name(model_.name);
    model.set_version(model_.version);
    model.set_state(ready ? "READY" : "UNAVAILABLE");
    if (!ready) model.set_reason("draining");
  }
  return finished(context, Status());
}

grpc::ServerUnaryReactor* KserveService::ModelInfer(Caller& caller,
                                                    grpc::CallbackServerContext* context,
                                                    const ModelInferRequest* wire,
                                                    ModelInferResponse* response) {
  Result<Caller::Place> place = caller.take_place(wire->ByteSizeLong());
  Result<KserveRequest> asked =
      place.ok()
          ? within_memory([&] { return request_from_kserve(*wire, model_, random_number()); })
          : Result<KserveRequest>(place.status());
  // gRPC keeps the message until the call ends. Its text may have megabytes, and is not read again.
  // Clear() would keep its memory.
  ModelInferRequest().Swap(const_cast<ModelInferRequest*>(wire));
  if (asked.ok() && asked.value().request.is_stream.value_or(false))
    asked = Status(Code::kInvalidArgument, "stream",
                   "ModelInfer has one response; use ModelStreamInfer");
  if (!asked.ok()) {
    engine_.count_refused();  // no session does
    return finished(context, asked.status());
  }
  limit_time(*context, asked.value().request);
  auto reactor = std::make_unique<UnaryInfer>(std::move(place).value());
  auto sink = std::make_shared<UnaryInfer::Sink>(*reactor, model_, asked.value(), *response);
  reactor->own(calls_.start(std::move(asked.value().request), caller.number(), std::move(sink)));
  return reactor.release();
}

grpc::ServerBidiReactor<ModelInferRequest, ModelStreamInferResponse>*
KserveService::ModelStreamInfer(Caller& caller, grpc::CallbackServerContext* context) {
  return new StreamInfer(engine_, calls_, model_, caller, *context);
}

}  // namespace specd::host
