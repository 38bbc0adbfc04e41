#include <charconv>
#include <unordered_set>

#include "core/base/to_size.h"
#include "core/base/utf8.h"
#include "core/chat/chat_template.h"
#include "core/engine/impl.h"
#include "core/engine/options.h"
#include "core/request/choices.h"

namespace specd {

namespace {
// The shortest text that reads back as the same float: "0.8", "1e+30", "nan".
std::string shown(float value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof(text), value).ptr;
  return std::string(text, end);
}

Status check_sampling(const SamplingParams& sampling) {
  const auto check = [](const char* field, float value, bool good, const char* expected) -> Status {
    return good ? Status() : out_of_range(field, expected, shown(value));
  };
  const float t = sampling.temperature, r = sampling.repetition_penalty;
  const auto within = [](float value, float low, float high) {  // false for NaN
    return value >= low && value <= high;
  };
  SPECD_OK_OR_RETURN(check("sampling.temperature", t, t == 0 || within(t, 0.01f, 100),
                           "0 (greedy) or 0.01 to 100"));
  SPECD_OK_OR_RETURN(check("sampling.top_p", sampling.top_p,
                           sampling.top_p > 0 && sampling.top_p <= 1,
                           "more than 0, at most 1 (1 = off)"));
  if (sampling.top_k < 0)
    return out_of_range("sampling.top_k", "0 (off) or more", std::to_string(sampling.top_k));
  SPECD_OK_OR_RETURN(
      check("sampling.min_p", sampling.min_p, within(sampling.min_p, 0, 1), "0 (off) to 1"));
  SPECD_OK_OR_RETURN(check("sampling.typical_p", sampling.typical_p,
                           sampling.typical_p > 0 && sampling.typical_p <= 1,
                           "more than 0, at most 1 (1 = off)"));
  SPECD_OK_OR_RETURN(
      check("sampling.repetition_penalty", r, within(r, 0.01f, 100), "0.01 to 100 (1 = off)"));
  SPECD_OK_OR_RETURN(check("sampling.frequency_penalty", sampling.frequency_penalty,
                           within(sampling.frequency_penalty, -2, 2), "-2 to 2 (0 = off)"));
  return check("sampling.presence_penalty", sampling.presence_penalty,
               within(sampling.presence_penalty, -2, 2), "-2 to 2 (0 = off)");
}

Status check_logit_bias(const std::vector<kernels::TokenBias>& bias, int32_t vocab_size) {
  if (bias.size() > EngineLimits::kLogitBiases) {
    return out_of_range("logit_bias",
                        "at most " + std::to_string(EngineLimits::kLogitBiases) + " tokens",
                        std::to_string(bias.size()));
  }
  std::unordered_set<int32_t> named;
  for (const kernels::TokenBias& each : bias) {
    const std::string field = "logit_bias[" + std::to_string(each.token) + "]";
    if (each.token < 0 || each.token >= vocab_size) {
      return out_of_range(field, "a token id from 0 to " + std::to_string(vocab_size - 1),
                          std::to_string(each.token));
    }
    if (!(each.add >= -100 && each.add <= 100)) {
      return out_of_range(field, "-100 to 100", shown(each.add));
    }
    if (!named.insert(each.token).second) {
      return Status(Code::kInvalidArgument, field, "expected once, found twice");
    }
  }
  return Status();
}

// `eos`: the model's. `max_tokens`: the most that the text may have.
Status check_min_tokens(const Request& request, const std::vector<int32_t>& eos, int32_t vocab_size,
                        int32_t max_tokens) {
  SPECD_OK_OR_RETURN(check_range("min_tokens", request.min_tokens, 0, max_tokens));
  if (request.min_tokens == 0) return Status();
  std::unordered_set<int32_t> stops(request.stop_tokens.begin(), request.stop_tokens.end());
  if (!request.ignore_eos) stops.insert(eos.begin(), eos.end());
  if (stops.size() < to_size(vocab_size)) return Status();
  return Status(Code::kInvalidArgument, "min_tokens",
                "every token ends the text, so none may be drawn; name fewer stop tokens");
}
}  // namespace

Status check_name(const std::string& field, const std::string& name) {
  constexpr size_t kNameBytesMax = 128;
  if (name.size() > kNameBytesMax)
    return out_of_range(field, "at most " + std::to_string(kNameBytesMax) + " bytes",
                        std::to_string(name.size()));
  for (size_t i = 0; i < name.size(); ++i)
    if (name[i] <= ' ' || name[i] > '~')
      return out_of_range(field, "printable ASCII without spaces",
                          "something else at byte " + std::to_string(i));
  return Status();
}

Status Engine::Impl::check(const Request& request) const {
  const ModelConfig& config = target.config;
  SPECD_OK_OR_RETURN(check_sampling(request.sampling.over(target.sampling_defaults)));
  const int32_t max_tokens = request.fills_context ? config.max_positions : request.max_tokens;
  if (max_tokens < 1 || max_tokens > config.max_positions) {
    return out_of_range("max_tokens", "1 to " + std::to_string(config.max_positions),
                        std::to_string(max_tokens));
  }
  if (request.stop.size() > EngineLimits::kStops) {
    return out_of_range("stop", "at most " + std::to_string(EngineLimits::kStops) + " strings",
                        std::to_string(request.stop.size()));
  }
  for (size_t i = 0; i < request.stop.size(); ++i) {
    const std::string& stop = request.stop[i];
    const std::string field = "stop[" + std::to_string(i) + "]";
    if (stop.empty() || stop.size() > EngineLimits::kStopBytes) {
      return out_of_range(field, "1 to " + std::to_string(EngineLimits::kStopBytes) + " bytes",
                          std::to_string(stop.size()));
    }
    if (const size_t at = utf8_error_offset(stop); at != std::string_view::npos) {
      return out_of_range(field, "UTF-8", "an ill-formed character at byte " + std::to_string(at));
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
  if (request.stop_tokens.size() > EngineLimits::kStopTokens) {
    return out_of_range("stop_tokens",
                        "at most " + std::to_string(EngineLimits::kStopTokens) + " ids",
                        std::to_string(request.stop_tokens.size()));
  }
  SPECD_OK_OR_RETURN(check_ids("stop_tokens", request.stop_tokens));
  SPECD_OK_OR_RETURN(check_min_tokens(request, config.eos_tokens, config.vocab_size, max_tokens));
  SPECD_OK_OR_RETURN(check_logit_bias(request.logit_bias, config.vocab_size));
  SPECD_OK_OR_RETURN(check_name("request_id", request.id));
  SPECD_OK_OR_RETURN(check_name("route", request.route));
  SPECD_OK_OR_RETURN(
      check_range("priority", request.priority, -EngineLimits::kPriority, EngineLimits::kPriority));
  SPECD_OK_OR_RETURN(check_range("deadline_ms", request.deadline_ms, 0, EngineLimits::kDeadlineMs));
  SPECD_OK_OR_RETURN(check_range("draft_nodes_max", request.draft_nodes_max.value_or(0), 0,
                                 EngineLimits::kDraftNodes));
  SPECD_OK_OR_RETURN(check_range("n", request.n, 1, EngineLimits::kChoices));
  if (request.best_of != 0) {
    SPECD_OK_OR_RETURN(check_range("best_of", request.best_of, request.n, EngineLimits::kChoices));
  }
  for (const auto& [field, n] : {std::pair("logprobs", request.logprobs),
                                 std::pair("prompt_logprobs", request.prompt_logprobs)}) {
    SPECD_OK_OR_RETURN(
        check_range(field, n.value_or(0), 0, std::min(EngineLimits::kLogprobs, config.vocab_size)));
  }
  if (request.best_of > request.n) {
    // All are kept until the last has ended, and then sent at once.
    const uint64_t token_bytes = 16 + 8 * static_cast<uint64_t>(request.logprobs.value_or(0));
    const uint64_t bytes =
        static_cast<uint64_t>(request.best_of) * static_cast<uint64_t>(max_tokens) * token_bytes;
    if (bytes > EngineLimits::kBestOfBytes) {
      return out_of_range("best_of",
                          "best_of times max_tokens of " + std::to_string(token_bytes) +
                              " bytes (16, and 8 for each of logprobs) to be at most " +
                              std::to_string(EngineLimits::kBestOfBytes),
                          std::to_string(bytes));
    }
  }
  if (request.n_choices() > options.queue_max) {
    return out_of_range(request.best_of > request.n ? "best_of" : "n",
                        "at most engine.queue_max, " + std::to_string(options.queue_max),
                        std::to_string(request.n_choices()));
  }
  if (request.cache_salt.size() > EngineLimits::kCacheSaltBytes) {
    return out_of_range("cache_salt",
                        "at most " + std::to_string(EngineLimits::kCacheSaltBytes) + " bytes",
                        std::to_string(request.cache_salt.size()));
  }
  SPECD_OK_OR_RETURN(check_one_prompt(request));
  SPECD_OK_OR_RETURN(target.check_fits(request.prompt.size()).in_field("prompt"));
  if (request.prompt_tokens.has_value()) return check_ids("prompt_tokens", *request.prompt_tokens);
  return request.chat.has_value() ? check_chat(*request.chat) : Status();
}

Result<Ticket> Engine::Impl::admit(const Request& request, Sink sink) {
  SPECD_OK_OR_RETURN(check(request));
  const ModelConfig& config = target.config;
  const uint64_t arrived_ns = request.arrived_ns != 0 ? request.arrived_ns : now_ns();
  const SamplingParams sampling = request.sampling.over(target.sampling_defaults);

  const uint64_t deadline_ns =
      request.deadline_ms == 0
          ? 0
          : arrived_ns + static_cast<uint64_t>(request.deadline_ms) * 1'000'000;
  if (deadline_ns != 0 && now_ns() >= deadline_ns) {
    return Status(
        Code::kDeadlineExceeded, "deadline_ms",
        std::to_string(request.deadline_ms) + " ms have passed; the request was not started");
  }
  // Before rendering and encoding the prompt, which takes time. put() checks again.
  SPECD_OK_OR_RETURN(intake.may_admit(request.n_choices()));
  const uint64_t number = intake.new_numbers(request.n_choices());
  SPECD_OK_OR_RETURN(as_status(routes.lease(request.route, number)));

  std::vector<int32_t> prompt;
  std::string echo;
  if (request.prompt_tokens.has_value()) {
    prompt = *request.prompt_tokens;
  } else {
    SPECD_TRY(RenderedPrompt made, target.make_prompt(request));
    prompt = std::move(made.tokens);
    if (request.echo) echo = std::move(made.text);
  }
  const auto n_prompt = static_cast<int64_t>(prompt.size());
  if (n_prompt < 1)
    return Status(Code::kInvalidArgument, "prompt", "expected at least one token, found none");
  const char* const prompt_field = request.prompt_tokens.has_value() ? "prompt_tokens"
                                   : request.chat.has_value()        ? "chat"
                                                                     : "prompt";
  if (n_prompt >= config.max_positions) {
    return Status(Code::kInvalidArgument, prompt_field,
                  std::to_string(n_prompt) +
                      " tokens leave no room for a new one in the context of " +
                      std::to_string(config.max_positions) + "; shorten the prompt");
  }
  Request kept = request;
  kept.drop_prompt();
  if (request.fills_context) {
    const int64_t n_cache = int64_t{models.pages->n_pages()} * kernels::kPageTokens;
    kept.max_tokens = static_cast<int32_t>(
        std::max<int64_t>(1, std::min<int64_t>(config.max_positions, n_cache) - n_prompt));
    SPECD_OK_OR_RETURN(check_range("min_tokens", kept.min_tokens, 0, kept.max_tokens));
  }
  if (n_prompt + kept.max_tokens > config.max_positions) {
    return Status(Code::kInvalidArgument, "max_tokens",
                  std::to_string(n_prompt) + " prompt tokens and " +
                      std::to_string(kept.max_tokens) + " new ones exceed the context of " +
                      std::to_string(config.max_positions) +
                      "; shorten the prompt or ask for less");
  }
  // A request that runs alone must be able to finish.
  if (const int32_t needed = pages_for(n_prompt + kept.max_tokens);
      needed > models.pages->n_pages()) {
    const bool prompt_alone = pages_for(n_prompt + 1) > models.pages->n_pages();
    return Status(Code::kInvalidArgument, prompt_alone ? prompt_field : "max_tokens",
                  std::to_string(n_prompt) + " prompt tokens and " +
                      std::to_string(kept.max_tokens) + " new ones need " + std::to_string(needed) +
                      " KV pages, the cache has " + std::to_string(models.pages->n_pages()) +
                      "; enlarge model.kv or ask for less");
  }

  if (request.echo && request.prompt_tokens.has_value()) {
    echo = target.tokenizer->decode(prompt, /*skip_special=*/false);
  }
  if (echo.size() > EngineLimits::kEchoBytes) {
    return out_of_range(
        "echo", "a prompt of at most " + std::to_string(EngineLimits::kEchoBytes) + " bytes",
        std::to_string(echo.size()));
  }

  Ticket ticket{.id = {},
                .number = number,
                .sampling = sampling,
                .prompt_tokens = prompt,
                .prompt_text = std::move(echo)};
  // Constructed before put() takes the lock that every step needs: a prompt may be long.
  std::vector<ActiveSequence> choices;
  const auto add = [&](Sink to, RouteLease lease, std::vector<int32_t> tokens) {
    const auto index = static_cast<int32_t>(choices.size());
    SamplingParams own = sampling;
    own.seed += static_cast<uint64_t>(index);
    ActiveSequence& next = choices.emplace_back();
    next.route = std::move(lease);
    next.sequence =
        std::make_unique<Sequence>(number + static_cast<uint64_t>(index), kept, std::move(tokens),
                                   own, config.eos_tokens, target.tokenizer, std::move(to), index);
    Sequence& made = *next.sequence;
    made.arrived_ns = arrived_ns;
    made.metrics = &request_metrics;
    made.deadline_ns = deadline_ns;
    made.rank = {static_cast<int64_t>(arrived_ns) +
                     int64_t{request.priority} * options.priority_aging_ms * 1'000'000,
                 made.number()};
  };
  std::vector<Sink> sinks = choice_sinks(request, std::move(sink));
  // As late as can be: a change of routes may reach the requests that wait or run, but not this one.
  SPECD_TRY(RouteLease route, routes.lease(request.route, number));
  for (size_t i = 0; i + 1 < sinks.size(); ++i) add(std::move(sinks[i]), route.another(), prompt);
  add(std::move(sinks.back()), std::move(route), std::move(prompt));
  SPECD_TRY(ticket.id, intake.put(std::move(choices), request.id));
  return ticket;
}

}  // namespace specd
