#include "host/rpc/inference_service.h"

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "host/base/out_of_memory.h"
#include "host/rpc/calls.h"
#include "host/rpc/wire.h"

namespace specd::host {
namespace {

// Whose request it is, for Sessions. An operator may cancel all.
uint64_t owner_of(const Caller& caller) {
  return caller.may(Right::kOperate) ? Sessions::kEveryClient : caller.number();
}

// One Generate call. Deletes itself in OnDone(), which comes after end().
class GenerateCall final : public grpc::ServerWriteReactor<v1::GenerateResponse>, SessionReader {
 public:
  // Not in the constructor: an open session may be ended by any thread, which calls end().
  void start(Sessions& sessions, Request request, const SessionOptions& options,
             Caller::Place place) {
    place_ = std::move(place);
    session_ = sessions.open(*this);
    session_->start(std::move(request), options);
  }

  void OnWriteDone(bool ok) override {
    if (!ok) session_->disconnect();
    session_->written();
  }
  void OnCancel() override { session_->disconnect(); }
  void OnDone() override {
    session_->close();
    delete this;
  }

 private:
  void write(SessionOutput output) override {
    message_.Clear();
    std::visit([this](auto& each) { fill(each); }, output);
    StartWrite(&message_);
  }
  void end(const Status& status) override {
    const grpc::Status last = status_to_wire(with_wire_field(status));
    place_ = {};  // a client that has seen the end may call again at once
    Finish(last);
  }

  void fill(SessionStart& start) {
    request_id_ = start.request_id;
    v1::Started& started = *message_.mutable_started();
    started.set_request_id(start.request_id);
    started.set_route(start.route);
    *started.mutable_sampling() = sampling_to_wire(start.sampling);
    started.mutable_prompt_token_ids()->Add(start.prompt_tokens.begin(), start.prompt_tokens.end());
    started.set_prompt_text(std::move(start.prompt_text));
  }
  void fill(const SessionPrompt& prompt) {
    place_.stop_waiting();
    *message_.mutable_prompt_logprobs() = logprobs_to_wire(prompt.logprobs);
  }
  void fill(const SessionText& text) {
    place_.stop_waiting();
    v1::Chunk& chunk = *message_.mutable_chunk();
    chunk.set_index(text.index);
    chunk.set_finish_reason(finish_reason_to_wire(text.finish));
    chunk.mutable_token_ids()->Add(text.tokens.begin(), text.tokens.end());
    chunk.set_text(text.text);
    if (!text.logprobs.token.empty()) *chunk.mutable_logprobs() = logprobs_to_wire(text.logprobs);
  }
  void fill(const SessionFinish& finish) {
    *message_.mutable_finished() = finished_to_wire(request_id_, finish.reason, finish.usage);
  }

  std::shared_ptr<Session> session_;  // set before gRPC knows this call
  Caller::Place place_;
  // Thread of Sessions only.
  std::string request_id_;
  v1::GenerateResponse message_;  // borrowed by gRPC until OnWriteDone
};

// One RenderChat call. Deletes itself in OnDone().
class RenderCall final : public grpc::ServerUnaryReactor {
 public:
  RenderCall(Sessions& sessions, Caller::Place place)
      : sessions_(sessions), place_(std::move(place)) {}
  // gRPC has not seen this call yet, so neither OnCancel nor OnDone can run before the end of it.
  // `render` may.
  void start(const Request& request, std::function<grpc::Status()> render) {
    const Result<uint64_t> number = sessions_.queue(request, [this, render = std::move(render)] {
      const grpc::Status last = render();
      place_ = {};
      Finish(last);
    });
    if (number.ok()) {
      number_ = number.value();
    } else {
      Finish(status_to_wire(number.status()));
    }
  }
  // Once the prompt waits no more, its rendering finishes the call.
  void OnCancel() override {
    if (sessions_.forget_prompt(number_)) Finish(grpc::Status::CANCELLED);
  }
  void OnDone() override { delete this; }

 private:
  Sessions& sessions_;
  Caller::Place place_;
  uint64_t number_ = 0;  // in the prompt queue; 0 = never there
};

}  // namespace

grpc::ServerWriteReactor<v1::GenerateResponse>* InferenceService::Generate(
    Caller& caller, grpc::CallbackServerContext* context, const v1::GenerateRequest* wire) {
  Result<Caller::Place> place = caller.take_place(wire->ByteSizeLong());
  Result<Request> request = place.ok() ? within_memory([&] { return request_from_wire(*wire); })
                                       : Result<Request>(place.status());
  // gRPC keeps the message until the call ends. Its text may have megabytes, and is not read again.
  const bool wants_prompt = wire->return_prompt_token_ids();
  const_cast<v1::GenerateRequest*>(wire)->Clear();
  if (!request.ok()) {
    engine_.count_refused();  // no session does
    return new RefusedStream<v1::GenerateResponse>(status_to_wire(request.status()));
  }
  SessionOptions options{
      .client = owner_of(caller), .return_prompt_tokens = wants_prompt, .time_left = {}};
  const auto now = std::chrono::system_clock::now();
  if (const auto deadline = context->deadline();
      deadline != std::chrono::system_clock::time_point::max())
    options.time_left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - now);
  auto* call = new GenerateCall;
  call->start(sessions_, std::move(request).value(), options, std::move(place).value());
  return call;  // gRPC has not seen it yet, so OnDone cannot have run
}

grpc::ServerUnaryReactor* InferenceService::Cancel(Caller& caller,
                                                   grpc::CallbackServerContext* context,
                                                   const v1::CancelRequest* request,
                                                   v1::CancelResponse* response) {
  response->set_found(sessions_.cancel(request->request_id(), owner_of(caller)));
  return finished(context, Status());
}

grpc::ServerUnaryReactor* InferenceService::RenderChat(Caller& caller,
                                                       grpc::CallbackServerContext* context,
                                                       const v1::GenerateRequest* wire,
                                                       v1::RenderChatResponse* response) {
  Result<Caller::Place> place = caller.take_place(wire->ByteSizeLong());
  if (!place.ok()) return finished(context, place.status());
  Result<Request> request = within_memory([&] { return request_from_wire(*wire); });
  if (!request.ok()) return finished(context, request.status());
  request.value().priority = 0;  // ignored, as specd.proto says
  const auto asked = std::make_shared<const Request>(std::move(request).value());
  auto render = [this, asked, response]() -> Status {
    SPECD_TRY(RenderedPrompt made, engine_.render(*asked));
    response->mutable_token_ids()->Add(made.tokens.begin(), made.tokens.end());
    response->set_text(std::move(made.text));
    const size_t bytes = response->ByteSizeLong();
    if (bytes <= kMessageBytesMax) return Status();
    response->Clear();
    return Status(Code::kExhausted, "the rendered prompt and its ids take " +
                                        std::to_string(bytes) + " bytes, a reply at most " +
                                        std::to_string(kMessageBytesMax));
  };
  auto call = std::make_unique<RenderCall>(sessions_, std::move(place).value());
  call->start(*asked, [context, render = std::move(render)] {
    return context->IsCancelled() ? grpc::Status::CANCELLED
                                  : status_to_wire(with_wire_field(within_memory(render)));
  });
  return call.release();
}

}  // namespace specd::host
