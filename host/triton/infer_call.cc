#include "host/triton/infer_call.h"

#include <map>
#include <new>
#include <numeric>
#include <variant>

#include "core/base/clock.h"
#include "core/base/json.h"
#include "core/base/sha256.h"
#include "host/base/random_bytes.h"

namespace specd::host {
namespace {

// As Python writes it, in whose words the LLM API backend answers.
std::string number_text(double value) { return Json(value).dump(); }

}  // namespace

// The engine's ids of the calls that run, by client and the client's own id.
class InferIds {
 public:
  void add(uint64_t client, const std::string& id, const std::string& engine_id) {
    const MutexLock lock(mutex_);
    by_client_.emplace(std::pair(client, id), engine_id);
  }
  std::vector<std::string> of(uint64_t client, const std::string& id) {
    const MutexLock lock(mutex_);
    std::vector<std::string> found;
    const auto [begin, end] = by_client_.equal_range(std::pair(client, id));
    for (auto each = begin; each != end; ++each) found.push_back(each->second);
    return found;
  }
  void remove(uint64_t client, const std::string& id, const std::string& engine_id) {
    const MutexLock lock(mutex_);
    auto [each, end] = by_client_.equal_range(std::pair(client, id));
    while (each != end && each->second != engine_id) ++each;
    if (each != end) by_client_.erase(each);
  }

 private:
  Mutex mutex_;
  std::multimap<std::pair<uint64_t, std::string>, std::string> by_client_ SPECD_GUARDED_BY(mutex_);
};

InferCalls::InferCalls(Engine& engine, Sessions& sessions)
    : engine_(engine), sessions_(sessions), ids_(std::make_shared<InferIds>()) {}
InferCalls::~InferCalls() = default;

std::shared_ptr<InferCall> InferCalls::start(InferRequest request, uint64_t client,
                                             std::shared_ptr<InferSink> sink) const {
  Request asked = std::exchange(request.request, Request());
  request.request.stop = asked.stop;
  asked.id =
      (request.id.empty() ? "infer" : request.id) + "-" + to_hex(random_bytes<sizeof(uint64_t)>());
  request.request.id = asked.id;
  const SessionOptions options{
      .client = client, .return_prompt_tokens = false, .time_left = request.time_left};
  auto call = std::make_shared<InferCall>(engine_.model().page_tokens, client, std::move(request),
                                          std::move(sink), ids_);
  const InferRequest& kept = call->asked_;
  if (kept.cancels) {
    for (const std::string& each : ids_->of(client, kept.id)) sessions_.cancel(each, client);
    call->sink_->respond({}, true, [](bool) {});
    return call;
  }
  if (!kept.id.empty()) ids_->add(client, kept.id, asked.id);
  {
    const MutexLock lock(call->mutex_);  // an open session may end at any time
    call->session_ = sessions_.open(*call);
    call->self_ = call;
  }
  call->session()->start(std::move(asked), options);
  return call;
}

InferCall::InferCall(int32_t page_tokens, uint64_t client, InferRequest asked,
                     std::shared_ptr<InferSink> sink, std::shared_ptr<InferIds> ids)
    : page_tokens_(page_tokens),
      client_(client),
      asked_(std::move(asked)),
      arrived_ns_(now_ns()),
      sink_(std::move(sink)),
      ids_(std::move(ids)) {}

InferCall::~InferCall() {
  if (!asked_.id.empty()) ids_->remove(client_, asked_.id, asked_.request.id);
}

std::shared_ptr<Session> InferCall::session() {
  const MutexLock lock(mutex_);
  return session_;
}

void InferCall::disconnect() {
  if (const auto session = this->session(); session != nullptr) session->disconnect();
}

void InferCall::write(SessionOutput output) {
  const std::shared_ptr<Session> session = this->session();
  const auto sent = [session](bool is_sent) {
    if (!is_sent) session->disconnect();
    session->written();
  };
  if (const auto* const start = std::get_if<SessionStart>(&output)) {
    n_prompt_tokens_ = start->n_prompt_tokens;
    if (!asked_.excludes_input) text_ = asked_.text_input;
  } else if (auto* const piece = std::get_if<SessionText>(&output)) {
    // The last piece waits for the figures that go with it.
    const bool is_last = piece->finish != FinishReason::kNone;
    const bool is_sent = asked_.is_stream.value_or(false) && !is_last && !piece->text.empty();
    const size_t n_before = text_.size();
    text_ += piece->text;
    if (is_sent) {
      try {
        sink_->respond({{"text_output", text_}}, false, sent);
      } catch (const std::bad_alloc&) {
        text_.resize(n_before);  // this piece comes again
        throw;
      }
      text_.clear();
    }
    logprob_ = std::accumulate(piece->logprobs.token.begin(), piece->logprobs.token.end(), logprob_,
                               [](double sum, float each) { return sum + double{each}; });
    last_.finish = piece->finish;
    last_.stop = piece->stop;
    if (is_sent) return;
  } else if (auto* const finish = std::get_if<SessionFinish>(&output)) {
    usage_ = std::move(finish->usage);
  }
  session->written();
}

InferOutputs InferCall::last_outputs() const {
  InferOutputs all{{"text_output", text_}};
  const auto add = [&all](const char* name, std::string value) {
    all.emplace_back(name, std::move(value));
  };
  if (asked_.returns_finish_reason) add("finish_reason", finish_reason_name(last_.finish));
  if (asked_.returns_stop_reason)
    add("stop_reason",
        last_.stop < 0 ? "None" : asked_.request.stop[static_cast<size_t>(last_.stop)]);
  if (asked_.returns_logprob) add("cumulative_logprob", number_text(logprob_));
  if (!asked_.returns_metrics) return all;
  const int64_t drafted = usage_.draft_tokens, accepted = usage_.accepted_tokens;
  add("acceptance_rate",
      number_text(drafted == 0 ? 0 : static_cast<double>(accepted) / static_cast<double>(drafted)));
  add("total_accepted_draft_tokens", std::to_string(accepted));
  add("total_draft_tokens", std::to_string(drafted));
  const int32_t reused = usage_.cached_prompt_tokens / page_tokens_;
  const int32_t pages = (n_prompt_tokens_ + page_tokens_ - 1) / page_tokens_;
  add("kv_cache_reused_block", std::to_string(reused));
  add("kv_cache_missed_block", std::to_string(pages - reused));
  add("kv_cache_hit_rate", number_text(pages == 0 ? 0 : static_cast<double>(reused) / pages));
  uint64_t at = arrived_ns_;
  add("arrival_time_ns", std::to_string(at));
  add("first_scheduled_time_ns", std::to_string(at += usage_.queue_ns));
  add("first_token_time_ns", std::to_string(at += usage_.prefill_ns));
  add("last_token_time_ns", std::to_string(at + usage_.decode_ns));
  return all;
}

// May throw std::bad_alloc, and is then called again.
void InferCall::end(const Status& status) {
  const auto close = [self = shared_from_this()](bool) { self->close(); };
  if (status.ok()) {
    sink_->respond(last_outputs(), true, close);
  } else {
    sink_->fail(in_words_of_infer(status), close);
  }
}

void InferCall::close() {
  std::shared_ptr<InferCall> last;  // let go after the lock
  const MutexLock lock(mutex_);
  session_->close();
  last = std::move(self_);
}

}  // namespace specd::host
