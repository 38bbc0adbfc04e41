#include <algorithm>
#include <cmath>

#include "core/engine/impl.h"
#include "core/text/utf8.h"

namespace specd {

namespace {
constexpr size_t kStopsMax = 16;
constexpr size_t kStopBytesMax = 256;
}  // namespace

int32_t Engine::Impl::pages_needed(int32_t n_prompt, int32_t max_tokens,
                                   const LiveRoute* route) const {
  const int32_t nodes = route == nullptr ? 0 : route->draft_nodes_max;
  return pages_for(int64_t{n_prompt} + max_tokens + nodes);
}

Result<std::vector<int32_t>> Engine::Impl::encode(const std::string& prompt) const {
  auto encoded = tokenizer->encode(prompt, true);
  if (!encoded.ok()) return encoded.status().with_context("prompt");
  return encoded;
}

Result<std::string> Engine::Impl::admit(const Request& request, Sink sink) {
  const SamplingParams& sampling = request.sampling;
  if (!std::isfinite(sampling.temperature) || sampling.temperature < 0 ||
      (sampling.temperature > 0 && sampling.temperature < 0.01f) || sampling.temperature > 100) {
    return out_of_range("temperature", "0 (greedy) or 0.01 to 100",
                        std::to_string(sampling.temperature));
  }
  if (!(sampling.top_p > 0 && sampling.top_p <= 1)) {
    return out_of_range("top_p", "more than 0, at most 1", std::to_string(sampling.top_p));
  }
  if (sampling.top_k < 0)
    return out_of_range("top_k", "0 (off) or more", std::to_string(sampling.top_k));
  if (request.max_tokens < 1 || request.max_tokens > config.max_positions) {
    return out_of_range("max_tokens", "1 to " + std::to_string(config.max_positions),
                        std::to_string(request.max_tokens));
  }
  if (request.stop.size() > kStopsMax) {
    return out_of_range("stop", "at most " + std::to_string(kStopsMax) + " strings",
                        std::to_string(request.stop.size()));
  }
  for (const std::string& stop : request.stop) {
    if (stop.empty() || stop.size() > kStopBytesMax) {
      return out_of_range("stop", "strings of 1 to " + std::to_string(kStopBytesMax) + " bytes",
                          std::to_string(stop.size()) + " bytes");
    }
    if (utf8_error_offset(stop) != std::string_view::npos) {
      return Status(Code::kInvalidArgument, "stop: a string is not UTF-8");
    }
  }
  const auto check_ids = [&](const char* field, const std::vector<int32_t>& ids) -> Status {
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] >= 0 && ids[i] < config.vocab_size) continue;
      return out_of_range(std::string(field) + "[" + std::to_string(i) + "]",
                          "a token id from 0 to " + std::to_string(config.vocab_size - 1),
                          std::to_string(ids[i]));
    }
    return Status();
  };
  SPECD_OK_OR_RETURN(check_ids("stop_tokens", request.stop_tokens));
  if (request.stop_tokens.size() > 1024) {
    return out_of_range("stop_tokens", "at most 1024 ids",
                        std::to_string(request.stop_tokens.size()));
  }
  if (request.id.size() > kRequestIdBytesMax) {
    return out_of_range("request_id", "at most " + std::to_string(kRequestIdBytesMax) + " bytes",
                        std::to_string(request.id.size()));
  }

  Waiting next;
  const std::string& name = request.route.empty() ? options.default_route : request.route;
  if (name != "off") {
    const std::shared_ptr<const RouteTable> table = board->read();
    const auto found = table->find(name);
    if (found == table->end()) {
      return Status(Code::kInvalidArgument, "route: " + no_route(*table, name).message());
    }
    if (found->second.live == nullptr) {
      return Status(Code::kInvalidArgument,
                    "route: '" + name + "' cannot be served: " + found->second.refused);
    }
    next.route = RouteLease(found->second.live);
  }

  std::vector<int32_t> prompt;
  if (request.prompt_tokens.has_value()) {
    if (!request.prompt.empty()) {
      return Status(Code::kInvalidArgument, "prompt: give text or token ids, not both");
    }
    SPECD_OK_OR_RETURN(check_ids("prompt_tokens", *request.prompt_tokens));
    prompt = *request.prompt_tokens;
  } else {
    SPECD_TRY(prompt, encode(request.prompt));
  }
  const auto n_prompt = static_cast<int64_t>(prompt.size());
  if (n_prompt < 1)
    return Status(Code::kInvalidArgument, "prompt: expected at least one token, found none");
  if (n_prompt + request.max_tokens > config.max_positions) {
    return Status(Code::kInvalidArgument,
                  "max_tokens: " + std::to_string(n_prompt) + " prompt tokens and " +
                      std::to_string(request.max_tokens) + " new ones exceed the context of " +
                      std::to_string(config.max_positions) +
                      "; shorten the prompt or ask for less");
  }
  next.pages = pages_needed(static_cast<int32_t>(n_prompt), request.max_tokens, next.route.get());
  if (next.pages > pages->n_pages()) {
    return Status(Code::kInvalidArgument,
                  "max_tokens: the request needs " + std::to_string(next.pages) +
                      " KV pages, the cache has " + std::to_string(pages->n_pages()) +
                      "; raise model.kv.bytes_max or ask for less");
  }

  Request named = request;
  std::string id;
  {
    // One critical section: a cancel that comes after the id is known finds the request.
    const std::lock_guard lock(mutex);
    if (draining) return Status(Code::kUnavailable, "the daemon is shutting down");
    if (n_queued >= options.queue_max) {
      return Status(Code::kExhausted, "the queue is full: " + std::to_string(n_queued) +
                                          " requests wait (engine.queue_max)");
    }
    const uint64_t number = next_number++;
    id = named.id;
    // A client may have chosen a name that looks like ours.
    for (uint64_t n = number; id.empty() || (named.id.empty() && live_ids.contains(id)); ++n) {
      id = "req-" + std::to_string(n);
    }
    named.id = id;
    if (!live_ids.insert(id).second) {
      return Status(Code::kInvalidArgument, "request_id: '" + id + "' is running already");
    }
    next.request = std::make_unique<Sequence>(number, std::move(named), std::move(prompt),
                                              config.eos_tokens, tokenizer, std::move(sink));
    next.request->submitted_ns = now_ns();
    next.request->metrics = &request_metrics;
    if (next.route != nullptr) ++next.route->counters.requests;
    ++n_admitted;
    ++n_queued;
    ++n_unfinished;
    inbox.push_back(std::move(next));
  }
  wake.notify_one();
  return id;
}

Result<std::string> Engine::submit(const Request& request, Sink sink) {
  Result<std::string> id = impl_->admit(request, std::move(sink));
  if (!id.ok()) ++impl_->n_refused;
  return id;
}

Result<std::vector<int32_t>> Engine::encode(const std::string& prompt) const {
  return impl_->encode(prompt);
}

void Engine::cancel(const std::string& request_id) {
  {
    const std::lock_guard lock(impl_->mutex);
    if (!impl_->live_ids.contains(request_id)) return;
    impl_->cancels.insert(request_id);
  }
  impl_->wake.notify_one();
}

void Engine::start_drain() {
  const std::lock_guard lock(impl_->mutex);
  impl_->draining = true;
}

bool Engine::wait_idle(uint64_t timeout_ms) {
  std::unique_lock lock(impl_->mutex);
  return impl_->idle.wait_for(lock, std::chrono::milliseconds(timeout_ms),
                              [this] { return impl_->n_unfinished == 0; });
}

}  // namespace specd
