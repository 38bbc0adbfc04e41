#include "host/openai/generation_request.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <string_view>
#include <utility>

#include "host/base/fields.h"

namespace specd::host {
namespace {

constexpr int32_t kInt32Max = std::numeric_limits<int32_t>::max();
constexpr int64_t kCompletionTokens = 16;  // OpenAI's max_tokens where there is none

constexpr size_t kNameBytesMax = 128;  // what the engine takes

constexpr char kNotBuilt[] = "specd does not support this field; leave it out";

int32_t narrow(int64_t value) { return static_cast<int32_t>(value); }

// ---- prompts ----

// Ids from 0 on; the engine knows the vocabulary.
std::optional<std::vector<int32_t>> read_ids(Fields& fields, const Json& list,
                                             const std::string& path) {
  std::vector<int32_t> ids;
  ids.reserve(list.size());
  for (const Json& each : list) {
    const Result<int64_t> id = integer_of(each, 0, kInt32Max);
    if (!id.ok()) {
      fields.fail(path + "[" + std::to_string(ids.size()) + "]", id.status().message());
      return std::nullopt;
    }
    ids.push_back(narrow(id.value()));
  }
  if (ids.empty()) {
    fields.fail(path, "expected at least one token id, found none");
    return std::nullopt;
  }
  return ids;
}

// A text, texts, ids, or lists of ids: one request for each prompt, of which there may be so many.
std::vector<Request> read_prompts(Fields& fields, int64_t n_max) {
  std::vector<Request> requests;
  const Json* const prompt = fields.value("prompt");
  const auto add_text = [&](const Json& text, const std::string& path) {
    if (text.get_ref<const std::string&>().empty())
      return fields.fail(path, "expected a prompt, found an empty one");
    requests.emplace_back().prompt = text.get<std::string>();
  };
  const auto add_ids = [&](const Json& list, const std::string& path) {
    if (auto ids = read_ids(fields, list, path))
      requests.emplace_back().prompt_tokens = std::move(ids);
  };
  if (prompt == nullptr) {
    fields.fail("prompt", "expected a prompt, found none");
  } else if (prompt->is_string()) {
    add_text(*prompt, "prompt");
  } else if (!prompt->is_array() || prompt->empty()) {
    fields.fail("prompt",
                "expected a text, a list of texts, of token ids or of lists of token ids, found " +
                    (prompt->is_array() ? "an empty list" : shown(*prompt)));
  } else if (prompt->front().is_number()) {
    add_ids(*prompt, "prompt");
  } else if (static_cast<int64_t>(prompt->size()) > n_max) {
    fields.fail("prompt", "expected at most " + std::to_string(n_max) +
                              " prompts, which with `n` are the texts that may wait "
                              "(engine.queue_max), found " +
                              std::to_string(prompt->size()));
  } else {
    for (size_t i = 0; i < prompt->size() && fields.status().ok(); ++i) {
      const Json& each = (*prompt)[i];
      const std::string path = "prompt[" + std::to_string(i) + "]";
      if (each.is_string()) {
        add_text(each, path);
      } else if (each.is_array()) {
        add_ids(each, path);
      } else {
        fields.fail(path, "expected a text or a list of token ids, found " + shown(each));
      }
    }
  }
  return requests;
}

// A text, or the texts of parts of type "text", one on a line each.
std::optional<std::string> text_of(Fields& fields, const Json& content, const std::string& path) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) {
    fields.fail(path, "expected a text or a list of parts, found " + shown(content));
    return std::nullopt;
  }
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    const Json& part = content[i];
    const std::string place = path + "[" + std::to_string(i) + "]";
    const auto type = part.is_object() ? part.find("type") : part.end();
    if (!part.is_object() || type == part.end() || *type != "text") {
      fields.fail(
          place, "expected a part {\"type\": \"text\", \"text\": ...}; this model reads text only");
      return std::nullopt;
    }
    const auto found = part.find("text");
    if (found == part.end() || !found->is_string()) {
      fields.fail(place + ".text", "expected a text");
      return std::nullopt;
    }
    if (i > 0) text += '\n';
    text += found->get_ref<const std::string&>();
  }
  return text;
}

void read_message(Fields& fields, const Json& object, const std::string& path, ChatPrompt& chat) {
  if (!object.is_object()) return fields.fail(path, "expected an object, found " + shown(object));
  const auto role = object.find("role");
  if (role == object.end() || !role->is_string())
    return fields.fail(path + ".role", "expected a text");
  ChatMessage made;
  made.role = role->get<std::string>();
  Json extra = object;
  extra.erase("role");
  if (const auto content = object.find("content"); content != object.end() && !content->is_null()) {
    auto text = text_of(fields, *content, path + ".content");
    if (!text.has_value()) return;
    made.content = std::move(*text);
    extra.erase("content");
  }
  if (!extra.empty()) made.extra_json = extra.dump();
  chat.messages.push_back(std::move(made));
}

// ---- sampling ----

std::optional<float> narrowed(std::optional<double> value) {
  return value.has_value() ? std::optional(static_cast<float>(*value)) : std::nullopt;
}

// As vLLM has it: almost 0 is greedy, and what lies between that and the least temperature is raised to it.
float temperature_of(double value) {
  constexpr double kGreedy = 1e-5, kLeast = 0.01;
  if (value >= 0 && value < kGreedy) return 0;
  return static_cast<float>(value > 0 && value < kLeast ? kLeast : value);
}

void read_sampling(Fields& fields, const GenerationDefaults& defaults, Request& request) {
  SamplingRequest& sampling = request.sampling;
  const std::optional<double> temperature = fields.number("temperature");
  sampling.temperature =
      temperature.has_value() ? temperature_of(*temperature) : defaults.temperature;
  sampling.top_p = narrowed(fields.number("top_p"));
  if (const auto top_k = fields.integer("top_k", -1, kInt32Max))
    sampling.top_k = narrow(std::max<int64_t>(*top_k, 0));
  sampling.min_p = narrowed(fields.number("min_p"));
  sampling.typical_p = narrowed(fields.number("typical_p"));
  sampling.repetition_penalty = narrowed(fields.number("repetition_penalty"));
  sampling.frequency_penalty = narrowed(fields.number("frequency_penalty"));
  sampling.presence_penalty = narrowed(fields.number("presence_penalty"));
  sampling.seed = defaults.seed;
  if (const Json* const seed = fields.value("seed");
      seed != nullptr && seed->is_number_unsigned()) {
    sampling.seed = seed->get<uint64_t>();
  } else if (const auto number = fields.integer("seed", INT64_MIN, INT64_MAX)) {
    sampling.seed = static_cast<uint64_t>(*number);
  }
}

void read_logit_bias(Fields& fields, Request& request) {
  const Json* const bias = fields.value("logit_bias");
  if (bias == nullptr) return;
  if (!bias->is_object())
    return fields.fail("logit_bias",
                       "expected an object of numbers by token id, found " + shown(*bias));
  if (bias->size() > EngineLimits::kLogitBiases)
    return fields.fail("logit_bias", "expected at most " +
                                         std::to_string(EngineLimits::kLogitBiases) +
                                         " tokens, found " + std::to_string(bias->size()));
  for (const auto& [name, value] : bias->items()) {
    int32_t token = -1;
    const char* const end = name.data() + name.size();
    const auto [read, error] = std::from_chars(name.data(), end, token);
    if (error != std::errc() || read != end)
      return fields.fail("logit_bias", "expected token ids as names, found " + shown(Json(name)));
    if (!value.is_number())
      return fields.fail("logit_bias[" + name + "]", "expected a number, found " + shown(value));
    request.logit_bias.push_back({.token = token, .add = value.get<float>()});
  }
}

void read_stops(Fields& fields, Request& request) {
  if (const Json* const stop = fields.value("stop"); stop != nullptr) {
    if (stop->is_string()) {
      request.stop = {stop->get<std::string>()};
    } else if (stop->is_array()) {
      if (stop->size() > EngineLimits::kStops)
        return fields.fail("stop", "expected at most " + std::to_string(EngineLimits::kStops) +
                                       " texts, found " + std::to_string(stop->size()));
      for (const Json& each : *stop) {
        if (!each.is_string())
          return fields.fail("stop[" + std::to_string(request.stop.size()) + "]",
                             "expected a text, found " + shown(each));
        request.stop.push_back(each.get<std::string>());
      }
    } else {
      return fields.fail("stop", "expected a text or a list of texts, found " + shown(*stop));
    }
  }
  for (size_t i = 0; i < request.stop.size(); ++i) {
    if (request.stop[i].size() > EngineLimits::kStopBytes)
      return fields.fail("stop[" + std::to_string(i) + "]",
                         "expected at most " + std::to_string(EngineLimits::kStopBytes) +
                             " bytes, found " + std::to_string(request.stop[i].size()));
  }
  const Json* const ids = fields.value("stop_token_ids");
  if (ids == nullptr || (ids->is_array() && ids->empty())) return;
  if (!ids->is_array())
    return fields.fail("stop_token_ids", "expected a list of token ids, found " + shown(*ids));
  if (ids->size() > EngineLimits::kStopTokens)
    return fields.fail("stop_token_ids", "expected at most " +
                                             std::to_string(EngineLimits::kStopTokens) +
                                             " ids, found " + std::to_string(ids->size()));
  if (auto read = read_ids(fields, *ids, "stop_token_ids")) request.stop_tokens = std::move(*read);
}

// ---- the rest ----

void read_length(Fields& fields, GenerationRequest& out, Request& request) {
  const auto most = fields.integer("max_tokens", 0, kInt32Max);
  if (out.kind == GenerationKind::kCompletion) {
    request.max_tokens = narrow(most.value_or(kCompletionTokens));
    out.is_prompt_only = out.echo && request.max_tokens == 0;
    if (out.is_prompt_only) request.max_tokens = 1;
  } else {
    const auto newer = fields.integer("max_completion_tokens", 0, kInt32Max);
    const auto wanted = newer.has_value() ? newer : most;
    request.fills_context = !wanted.has_value();
    request.max_tokens = narrow(wanted.value_or(0));
  }
  request.min_tokens = narrow(fields.integer("min_tokens", 0, kInt32Max).value_or(0));
  request.ignore_eos = fields.boolean("ignore_eos").value_or(false);
}

void read_logprobs(Fields& fields, GenerationRequest& out, Request& request) {
  constexpr int64_t kMost = EngineLimits::kLogprobs;
  if (out.kind == GenerationKind::kCompletion) {
    if (const auto n = fields.integer("logprobs", 0, kMost)) out.logprobs = narrow(*n);
  } else {
    const bool wanted = fields.boolean("logprobs").value_or(false);
    const auto n = fields.integer("top_logprobs", 0, kMost);
    if (wanted) out.logprobs = narrow(n.value_or(0));
    if (!wanted && n.value_or(0) > 0) fields.fail("top_logprobs", "needs `logprobs: true`");
  }
  if (const auto n = fields.integer("prompt_logprobs", 0, kMost)) {
    out.prompt_logprobs = narrow(*n);
    if (out.is_stream)
      fields.fail("prompt_logprobs",
                  "does not go with `stream: true`; `echo` with `logprobs` does");
  }
  request.logprobs = out.logprobs;
  if (out.echo || out.prompt_logprobs.has_value()) {
    request.prompt_logprobs = out.prompt_logprobs;
    if (out.echo && out.logprobs.has_value())
      request.prompt_logprobs = std::max(*out.logprobs, out.prompt_logprobs.value_or(0));
  }
}

void read_stream(Fields& fields, GenerationRequest& out) {
  out.is_stream = fields.boolean("stream").value_or(false);
  const Json* const options = fields.value("stream_options");
  if (options == nullptr) return;
  if (!out.is_stream) return fields.fail("stream_options", "needs `stream: true`");
  if (!options->is_object())
    return fields.fail("stream_options", "expected an object, found " + shown(*options));
  Fields inner(*options, "stream_options");
  out.includes_usage = inner.boolean("include_usage").value_or(false);
  out.has_continuous_usage =
      inner.boolean("continuous_usage_stats").value_or(false) && out.includes_usage;
  if (!inner.status().ok()) fields.fail(inner.status().field(), inner.status().message());
  for (std::string& each : inner.unknown()) out.unknown_fields.push_back(std::move(each));
}

void read_speculation(Fields& fields, GenerationRequest& out, Request& request) {
  const std::string metrics = fields.text("metrics").value_or("none");
  if (metrics == "summary") {
    out.metrics = RequestMetrics::kSummary;
  } else if (metrics == "detailed") {
    out.metrics = RequestMetrics::kDetailed;
  } else if (metrics != "none") {
    fields.fail("metrics", "expected none, summary or detailed, found " + shown(Json(metrics)));
  }
  request.records_drafts = out.metrics != RequestMetrics::kNone;
  const Json* const speculative = fields.value("speculative");
  if (speculative == nullptr) return;
  if (!speculative->is_object())
    return fields.fail("speculative", "expected an object, found " + shown(*speculative));
  Fields inner(*speculative, "speculative");
  request.route = inner.text("route").value_or("");
  if (request.route.size() > kNameBytesMax)
    inner.fail("route", "expected at most " + std::to_string(kNameBytesMax) + " bytes, found " +
                            std::to_string(request.route.size()));
  if (const auto most = inner.integer("draft_nodes_max", 0, EngineLimits::kDraftNodes))
    request.draft_nodes_max = narrow(*most);
  if (!inner.status().ok()) fields.fail(inner.status().field(), inner.status().message());
  for (std::string& each : inner.unknown()) out.unknown_fields.push_back(std::move(each));
}

void refuse_what_is_not_built(Fields& fields, GenerationKind kind) {
  fields.refuse({"structured_outputs", "guided_json", "guided_regex", "guided_choice",
                 "guided_grammar", "use_beam_search", "truncate_prompt_tokens", "allowed_token_ids",
                 "bad_words", "include_stop_str_in_output", "logprob_token_ids"},
                kNotBuilt);
  if (!fields.boolean("skip_special_tokens").value_or(true))
    fields.fail("skip_special_tokens", "specd never shows special tokens; leave it out");
  if (const Json* const format = fields.value("response_format"); format != nullptr) {
    const bool is_text =
        format->is_object() && format->contains("type") && (*format)["type"] == "text";
    if (!is_text)
      fields.fail("response_format",
                  "expected {\"type\": \"text\"}, the only one that specd supports");
  }
  if (kind == GenerationKind::kCompletion) {
    fields.refuse({"suffix", "prompt_embeds"}, kNotBuilt);
  } else {
    fields.refuse({"tools", "functions", "chat_template", "audio"}, kNotBuilt);
  }
  fields.ignore({"user", "metadata", "store", "service_tier", "safety_identifier",
                 "prompt_cache_key", "session_id", "spaces_between_special_tokens", "tool_choice",
                 "function_call", "parallel_tool_calls"});
}

}  // namespace

ChatPrompt read_chat(Fields& fields) {
  ChatPrompt chat;
  const Json* const messages = fields.value("messages");
  if (messages == nullptr || !messages->is_array() || messages->empty()) {
    fields.fail("messages", "expected a list of at least one message, found " +
                                (messages == nullptr    ? "none"
                                 : messages->is_array() ? "an empty list"
                                                        : shown(*messages)));
    return chat;
  }
  for (size_t i = 0; i < messages->size() && fields.status().ok(); ++i)
    read_message(fields, (*messages)[i], "messages[" + std::to_string(i) + "]", chat);
  chat.continue_final_message = fields.boolean("continue_final_message").value_or(false);
  chat.add_generation_prompt =
      fields.boolean("add_generation_prompt").value_or(!chat.continue_final_message);
  if (const Json* const arguments = fields.value("chat_template_kwargs"); arguments != nullptr) {
    if (arguments->is_object()) {
      chat.template_arguments_json = arguments->dump();
    } else {
      fields.fail("chat_template_kwargs", "expected an object, found " + shown(*arguments));
    }
  }
  return chat;
}

Result<GenerationRequest> read_generation(const Json& body, GenerationKind kind,
                                          const GenerationDefaults& defaults) {
  if (!body.is_object())
    return Status(Code::kInvalidArgument, "expected a JSON object, found " + shown(body));
  Fields fields(body);
  GenerationRequest out;
  out.kind = kind;
  out.model = fields.text("model").value_or("");
  out.request_id = fields.text("request_id").value_or("");
  read_stream(fields, out);
  Request common;  // all but the prompt
  if (kind == GenerationKind::kCompletion) {
    out.echo = fields.boolean("echo").value_or(false);
    common.add_bos = fields.boolean("add_special_tokens").value_or(true);
    common.n = narrow(fields.integer("n", 1, EngineLimits::kChoices).value_or(1));
    common.best_of = narrow(fields.integer("best_of", 0, EngineLimits::kChoices).value_or(0));
  } else {
    common.n = narrow(fields.integer("n", 1, EngineLimits::kChoices).value_or(1));
  }
  read_sampling(fields, defaults, common);
  read_logit_bias(fields, common);
  read_stops(fields, common);
  read_length(fields, out, common);
  read_logprobs(fields, out, common);
  read_speculation(fields, out, common);
  common.priority = narrow(
      fields.integer("priority", -EngineLimits::kPriority, EngineLimits::kPriority).value_or(0));
  common.cache_salt = fields.text("cache_salt").value_or("");
  if (common.cache_salt.size() > EngineLimits::kCacheSaltBytes)
    fields.fail("cache_salt", "expected at most " + std::to_string(EngineLimits::kCacheSaltBytes) +
                                  " bytes, found " + std::to_string(common.cache_salt.size()));
  common.echo = out.echo;
  out.returns_token_ids = fields.boolean("return_token_ids").value_or(false);
  out.names_tokens_by_id = fields.boolean("return_tokens_as_token_ids").value_or(false);
  refuse_what_is_not_built(fields, kind);
  if (common.n_choices() > defaults.choices_max)
    fields.fail("n", "expected at most " + std::to_string(defaults.choices_max) +
                         " texts (engine.queue_max), found " + std::to_string(common.n_choices()));
  if (kind == GenerationKind::kCompletion) {
    out.requests = read_prompts(fields, defaults.choices_max / common.n_choices());
  } else {
    out.requests.emplace_back().chat = read_chat(fields);
  }
  SPECD_OK_OR_RETURN(fields.status());
  for (Request& each : out.requests) {
    Request made = common;
    made.prompt = std::move(each.prompt);
    made.prompt_tokens = std::move(each.prompt_tokens);
    made.chat = std::move(each.chat);
    each = std::move(made);
  }
  for (std::string& each : fields.unknown()) out.unknown_fields.push_back(std::move(each));
  return out;
}

Status in_words_of_body(const Status& status, const GenerationRequest& request) {
  const std::string& field = status.field();
  const size_t end = std::min(field.find_first_of(".["), field.size());
  const std::string_view name = std::string_view(field).substr(0, end),
                         rest = std::string_view(field).substr(end);
  const auto renamed = [&](std::string_view to) {
    return Status(status.code(), std::string(to) + std::string(rest), status.message());
  };
  if (name == "sampling") return Status(status.code(), field.substr(end + 1), status.message());
  if (name == "prompt_tokens") return renamed("prompt");
  if (name == "chat") {
    if (rest.empty()) return renamed("messages");
    if (rest == ".template_arguments_json")
      return Status(status.code(), "chat_template_kwargs", status.message());
    return Status(status.code(), std::string(rest.substr(1)), status.message());
  }
  if (name == "stop_tokens") return renamed("stop_token_ids");
  if (name == "route") return renamed("speculative.route");
  if (name == "draft_nodes_max") return renamed("speculative.draft_nodes_max");
  if (name == "prompt_logprobs" && !request.prompt_logprobs.has_value()) return renamed("logprobs");
  return status;
}

}  // namespace specd::host
