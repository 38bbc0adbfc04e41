#include "host/openai/generation_reply.h"

#include <algorithm>
#include <ctime>
#include <span>
#include <utility>

#include "core/base/to_size.h"
#include "host/base/token_text.h"
#include "host/version.h"

namespace specd::host {
namespace {

using Ordered = nlohmann::ordered_json;

constexpr double kLogprobMin = -9999;  // JSON has no infinity

double shown_logprob(float value) { return std::max(static_cast<double>(value), kLogprobMin); }
double ms(uint64_t ns) { return static_cast<double>(ns) / 1e6; }

std::string dumped(const Ordered& json) {
  return json.dump(-1, ' ', false, Ordered::error_handler_t::replace);
}

// The characters that begin in these bytes.
size_t n_characters(std::string_view bytes) {
  return to_size(std::count_if(bytes.begin(), bytes.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

std::string token_name(const Engine& engine, const GenerationRequest& request, int32_t token) {
  return request.names_tokens_by_id ? "token_id:" + std::to_string(token)
                                    : token_text(engine.token_bytes(token));
}

// The tokens of one stretch of text, the prompt's or the answer's, with what the model gives them.
struct Scored {
  std::span<const int32_t> tokens;
  const Logprobs& logprobs;
  bool is_prompt = false;  // its first token has no entry in `logprobs`
};

// Entry i of `logprobs`: at most n_top of the most likely tokens.
struct Entry {
  float token;
  std::span<const int32_t> top_tokens;
  std::span<const float> top;
};
Entry entry_at(const Logprobs& logprobs, size_t i, int32_t n_top) {
  const size_t step = to_size(logprobs.n_top), n = to_size(std::min(n_top, logprobs.n_top));
  return {logprobs.token[i], std::span(logprobs.top_token).subspan(i * step, n),
          std::span(logprobs.top).subspan(i * step, n)};
}

// Of /v1/completions: four arrays. Tokens with the same text share a place in `top_logprobs`; it has the larger value, so
// that the largest of all is that of the most likely token.
class CompletionLogprobs {
 public:
  CompletionLogprobs(const Engine& engine, const GenerationRequest& request, size_t offset)
      : engine_(engine), request_(request), offset_(offset) {}

  void add(const Scored& scored) {
    for (size_t i = 0; i < scored.tokens.size(); ++i) {
      const int32_t token = scored.tokens[i];
      const std::string name = token_name(engine_, request_, token);
      offsets_.push_back(offset_);
      offset_ += n_characters(engine_.token_bytes(token));
      names_.push_back(name);
      const size_t skipped = scored.is_prompt ? 1 : 0;
      if (i < skipped || i - skipped >= scored.logprobs.token.size()) {
        values_.push_back(nullptr);
        tops_.push_back(nullptr);
        continue;
      }
      const Entry entry = entry_at(scored.logprobs, i - skipped, *request_.logprobs);
      values_.push_back(shown_logprob(entry.token));
      Ordered top = Ordered::object();
      const auto put = [&top](const std::string& text, float value) {
        const auto [place, is_new] = top.emplace(text, shown_logprob(value));
        if (!is_new && place->template get<double>() < shown_logprob(value))
          *place = shown_logprob(value);
      };
      put(name, entry.token);
      for (size_t k = 0; k < entry.top.size(); ++k)
        put(token_name(engine_, request_, entry.top_tokens[k]), entry.top[k]);
      tops_.push_back(std::move(top));
    }
  }
  Ordered json() && {
    Ordered out;
    out["text_offset"] = std::move(offsets_);
    out["token_logprobs"] = std::move(values_);
    out["tokens"] = std::move(names_);
    out["top_logprobs"] = std::move(tops_);
    return out;
  }

 private:
  const Engine& engine_;
  const GenerationRequest& request_;
  size_t offset_;
  Ordered offsets_ = Ordered::array(), values_ = Ordered::array(), names_ = Ordered::array(),
          tops_ = Ordered::array();
};

// Of what `choice` has now, behind what was sent of it.
Ordered completion_logprobs(const Engine& engine, const GenerationRequest& request,
                            const PromptTexts& prompt, const ChoiceText& choice, bool has_prompt) {
  CompletionLogprobs logprobs(engine, request, choice.n_characters);
  if (has_prompt) logprobs.add({prompt.start.prompt_tokens, prompt.prompt_logprobs, true});
  logprobs.add({choice.tokens, choice.logprobs});
  return std::move(logprobs).json();
}

Ordered chat_token(const Engine& engine, const GenerationRequest& request, int32_t token,
                   float logprob) {
  Ordered out;
  out["token"] = token_name(engine, request, token);
  out["logprob"] = shown_logprob(logprob);
  Ordered bytes = Ordered::array();
  for (const char c : engine.token_bytes(token)) bytes.push_back(static_cast<unsigned char>(c));
  out["bytes"] = std::move(bytes);
  return out;
}

Ordered chat_logprobs(const Engine& engine, const GenerationRequest& request,
                      const ChoiceText& choice) {
  Ordered content = Ordered::array();
  for (size_t i = 0; i < choice.tokens.size() && i < choice.logprobs.token.size(); ++i) {
    const Entry entry = entry_at(choice.logprobs, i, *request.logprobs);
    Ordered token = chat_token(engine, request, choice.tokens[i], entry.token);
    Ordered top = Ordered::array();
    for (size_t k = 0; k < entry.top.size(); ++k)
      top.push_back(chat_token(engine, request, entry.top_tokens[k], entry.top[k]));
    token["top_logprobs"] = std::move(top);
    content.push_back(std::move(token));
  }
  Ordered out;
  out["content"] = std::move(content);
  return out;
}

// One object of tokens by id for each token of the prompt; null for the first.
Ordered prompt_logprobs(const Engine& engine, const GenerationRequest& request,
                        const PromptTexts& prompt) {
  Ordered list = Ordered::array();
  list.push_back(nullptr);
  const Logprobs& all = prompt.prompt_logprobs;
  for (size_t i = 0; i < all.token.size(); ++i) {
    const Entry entry = entry_at(all, i, *request.prompt_logprobs);
    Ordered tokens = Ordered::object();
    const auto put = [&](int32_t token, float value, const Ordered& rank) {
      Ordered one;
      one["logprob"] = shown_logprob(value);
      one["rank"] = rank;
      one["decoded_token"] = token_text(engine.token_bytes(token));
      tokens[std::to_string(token)] = std::move(one);
    };
    put(prompt.start.prompt_tokens[i + 1], entry.token, nullptr);
    for (size_t k = 0; k < entry.top.size(); ++k) put(entry.top_tokens[k], entry.top[k], k + 1);
    list.push_back(std::move(tokens));
  }
  return list;
}

Ordered finish_of(FinishReason finish) {
  return finish == FinishReason::kNone ? Ordered(nullptr) : Ordered(finish_reason_name(finish));
}

// The stop string that ended the text, or the id of the request's own stop token that did.
Ordered stop_of(const GenerationRequest& request, const ChoiceText& choice) {
  if (choice.finish != FinishReason::kStop) return nullptr;
  const Request& asked = request.requests.front();
  if (choice.stop >= 0) return asked.stop[to_size(choice.stop)];
  if (choice.tokens.empty()) return nullptr;
  const auto& ids = asked.stop_tokens;
  const bool is_own = std::find(ids.begin(), ids.end(), choice.tokens.back()) != ids.end();
  return is_own ? Ordered(choice.tokens.back()) : Ordered(nullptr);
}

Ordered usage_of(int64_t prompt_tokens, int64_t completion_tokens) {
  Ordered out;
  out["prompt_tokens"] = prompt_tokens;
  out["total_tokens"] = prompt_tokens + completion_tokens;
  out["completion_tokens"] = completion_tokens;
  return out;
}

Ordered usage_of(const std::vector<PromptTexts>& prompts, const GenerationRequest& request) {
  int64_t n_prompt = 0, n_text = 0, n_cached = 0;
  for (const PromptTexts& each : prompts) {
    n_prompt += each.usage.prompt_tokens;
    n_text += request.is_prompt_only ? 0 : each.usage.completion_tokens;
    n_cached += each.usage.cached_prompt_tokens;
  }
  Ordered out = usage_of(n_prompt, n_text);
  out["prompt_tokens_details"]["cached_tokens"] = n_cached;
  return out;
}

Ordered speculation_of(const Usage& usage, bool is_detailed, int32_t drafts_max) {
  int32_t deepest = drafts_max;
  for (const StepDrafts& each : usage.drafts) deepest = std::max(deepest, each.accepted);
  std::vector<int64_t> histogram(to_size(deepest) + 1);
  int64_t drafted = 0, accepted = 0;
  Ordered each_accepted = Ordered::array(), each_drafted = Ordered::array();
  for (const StepDrafts& each : usage.drafts) {
    ++histogram[to_size(each.accepted)];
    drafted += each.drafted;
    accepted += each.accepted;
    each_accepted.push_back(each.accepted);
    each_drafted.push_back(each.drafted);
  }
  const auto n_steps = static_cast<int64_t>(usage.drafts.size());
  const auto ratio = [](int64_t part, int64_t whole) {
    return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0.0;
  };
  Ordered out;
  out["mean_acceptance_length"] = 1 + ratio(accepted, n_steps);
  out["draft_acceptance_rate"] = ratio(accepted, drafted);
  out["acceptance_histogram"] = histogram;
  out["num_spec_steps"] = n_steps;
  out["num_accepted_draft_tokens"] = accepted;
  out["num_draft_tokens"] = drafted;
  out["num_spec_tokens"] = drafts_max;
  out["per_step_accepted"] = is_detailed ? std::move(each_accepted) : Ordered(nullptr);
  out["per_step_drafted"] = is_detailed ? std::move(each_drafted) : Ordered(nullptr);
  return out;
}

// Null unless there is one text only: the times of several overlap.
Ordered metrics_of(const std::vector<PromptTexts>& prompts, const GenerationRequest& request,
                   int32_t drafts_max) {
  if (request.metrics == RequestMetrics::kNone || prompts.size() != 1 ||
      prompts.front().choices.size() != 1 || request.requests.front().n_choices() != 1)
    return nullptr;
  const Usage& usage = prompts.front().usage;
  const int32_t n = usage.completion_tokens;
  const double work_ms = ms(usage.prefill_ns + usage.decode_ns);
  Ordered out;
  out["time_to_first_token_ms"] = ms(usage.prefill_ns);
  out["generation_time_ms"] = ms(usage.decode_ns);
  out["queue_time_ms"] = ms(usage.queue_ns);
  out["mean_itl_ms"] = n > 1 ? Ordered(ms(usage.decode_ns) / (n - 1)) : Ordered(nullptr);
  out["tokens_per_second"] = work_ms > 0 ? Ordered(n * 1e3 / work_ms) : Ordered(nullptr);
  out["route"] = prompts.front().start.route;
  const bool is_detailed = request.metrics == RequestMetrics::kDetailed;
  out["speculative_decoding"] =
      drafts_max > 0 ? speculation_of(usage, is_detailed, drafts_max) : Ordered(nullptr);
  return out;
}

// How every body and event begins.
Ordered head_of(const std::string& id, const char* object, int64_t created,
                const std::string& model) {
  Ordered out;
  out["id"] = id;
  out["object"] = object;
  out["created"] = created;
  out["model"] = model;
  return out;
}

std::string sse(const Ordered& json) { return "data: " + dumped(json) + "\n\n"; }

}  // namespace

GenerationReply::GenerationReply(const Engine& engine, const GenerationRequest& request,
                                 std::string id, std::string model)
    : engine_(engine),
      request_(request),
      id_(std::move(id)),
      model_(std::move(model)),
      created_(static_cast<int64_t>(std::time(nullptr))) {}

std::string GenerationReply::body(const std::vector<PromptTexts>& prompts,
                                  int32_t drafts_max) const {
  const bool is_chat = request_.kind == GenerationKind::kChat;
  Ordered choices = Ordered::array();
  for (const PromptTexts& prompt : prompts) {
    for (const ChoiceText& choice : prompt.choices) {
      Ordered one;
      one["index"] = choices.size();
      if (is_chat) {
        one["message"]["role"] = "assistant";
        one["message"]["content"] = choice.text;
        one["message"]["refusal"] = nullptr;
        one["logprobs"] = request_.logprobs.has_value() ? chat_logprobs(engine_, request_, choice)
                                                        : Ordered(nullptr);
      } else {
        one["text"] = (request_.echo ? prompt.start.prompt_text : "") + choice.text;
        one["logprobs"] = nullptr;
        if (request_.logprobs.has_value()) {
          one["logprobs"] = completion_logprobs(engine_, request_, prompt, choice, request_.echo);
        }
      }
      one["finish_reason"] = finish_of(choice.finish);
      one["stop_reason"] = stop_of(request_, choice);
      if (request_.returns_token_ids) one["token_ids"] = choice.tokens;
      if (!is_chat) {
        if (request_.prompt_logprobs.has_value())
          one["prompt_logprobs"] = prompt_logprobs(engine_, request_, prompt);
        if (request_.returns_token_ids) one["prompt_token_ids"] = prompt.start.prompt_tokens;
      }
      choices.push_back(std::move(one));
    }
  }
  Ordered out = head_of(id_, is_chat ? "chat.completion" : "text_completion", created_, model_);
  out["choices"] = std::move(choices);
  out["system_fingerprint"] = std::string("specd-") + kVersion;
  out["usage"] = usage_of(prompts, request_);
  if (is_chat) {
    if (request_.prompt_logprobs.has_value())
      out["prompt_logprobs"] = prompt_logprobs(engine_, request_, prompts.front());
    if (request_.returns_token_ids) out["prompt_token_ids"] = prompts.front().start.prompt_tokens;
  }
  out["metrics"] = metrics_of(prompts, request_, drafts_max);
  return dumped(out);
}

std::string GenerationReply::event(const PromptTexts& prompt, const ChoiceText& choice,
                                   int32_t index) const {
  const bool is_chat = request_.kind == GenerationKind::kChat;
  const bool has_prompt = request_.echo && !choice.has_begun;
  Ordered one;
  one["index"] = index;
  if (is_chat) {
    if (!choice.has_begun) one["delta"]["role"] = "assistant";
    one["delta"]["content"] = choice.text;
    one["logprobs"] =
        request_.logprobs.has_value() ? chat_logprobs(engine_, request_, choice) : Ordered(nullptr);
  } else {
    one["text"] = (has_prompt ? prompt.start.prompt_text : "") + choice.text;
    one["logprobs"] = nullptr;
    if (request_.logprobs.has_value()) {
      one["logprobs"] = completion_logprobs(engine_, request_, prompt, choice, has_prompt);
    }
  }
  one["finish_reason"] = finish_of(choice.finish);
  if (!is_chat || choice.finish != FinishReason::kNone)
    one["stop_reason"] = stop_of(request_, choice);
  if (request_.returns_token_ids) {
    one["token_ids"] = choice.tokens;
    if (!is_chat && !choice.has_begun) one["prompt_token_ids"] = prompt.start.prompt_tokens;
  }
  Ordered out =
      head_of(id_, is_chat ? "chat.completion.chunk" : "text_completion", created_, model_);
  out["choices"] = Ordered::array({std::move(one)});
  if (is_chat && request_.returns_token_ids && !choice.has_begun)
    out["prompt_token_ids"] = prompt.start.prompt_tokens;
  if (request_.has_continuous_usage)
    out["usage"] = usage_of(prompt.start.n_prompt_tokens, choice.n_tokens);
  return sse(out);
}

void GenerationReply::sent(const PromptTexts& prompt, ChoiceText& choice) const {
  if (request_.echo && !choice.has_begun) {
    for (const int32_t token : prompt.start.prompt_tokens)
      choice.n_characters += n_characters(engine_.token_bytes(token));
  }
  for (const int32_t token : choice.tokens)
    choice.n_characters += n_characters(engine_.token_bytes(token));
  choice.has_begun = true;
  choice.text.clear();
  choice.tokens.clear();
  choice.logprobs = {};
}

bool GenerationReply::has_last_event() const {
  return request_.includes_usage || request_.metrics != RequestMetrics::kNone;
}

std::string GenerationReply::last_event(const std::vector<PromptTexts>& prompts,
                                        int32_t drafts_max) const {
  const bool is_chat = request_.kind == GenerationKind::kChat;
  Ordered out =
      head_of(id_, is_chat ? "chat.completion.chunk" : "text_completion", created_, model_);
  out["choices"] = Ordered::array();
  if (request_.includes_usage) out["usage"] = usage_of(prompts, request_);
  out["system_fingerprint"] = std::string("specd-") + kVersion;
  if (request_.metrics != RequestMetrics::kNone)
    out["metrics"] = metrics_of(prompts, request_, drafts_max);
  return sse(out);
}

}  // namespace specd::host
