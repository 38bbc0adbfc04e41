#include "host/triton/infer_request.h"

#include <algorithm>
#include <array>
#include <map>
#include <string_view>
#include <utility>

#include "core/base/quote.h"
#include "host/base/fields.h"
#include "host/openai/generation_request.h"
#include "host/triton/contract.h"

namespace specd::host {
namespace {

constexpr std::string_view kPrefix = "sampling_param_";
constexpr int64_t kMaxTokens = 32;
constexpr size_t kIdBytesMax = 96;  // the engine takes 128, and its ids are longer
constexpr int64_t kTimeoutMicrosecondsMax = int64_t{1} << 53;

// Values that /v1/completions has by the same name.
constexpr std::array<std::string_view, 15> kGeneration = {"max_tokens",
                                                          "temperature",
                                                          "top_p",
                                                          "top_k",
                                                          "min_p",
                                                          "typical_p",
                                                          "seed",
                                                          "repetition_penalty",
                                                          "frequency_penalty",
                                                          "best_of",
                                                          "presence_penalty",
                                                          "min_tokens",
                                                          "ignore_eos",
                                                          "cache_salt",
                                                          "priority"};

// Ours, by theirs.
const std::map<std::string_view, const char*>& aliases() {
  static const std::map<std::string_view, const char*> kAliases{
      {"streaming", "stream"},
      {"exclude_input_in_output", "exclude_input_from_output"},
      {"min_length", "min_tokens"},
      {"stop_words", "stop_texts"},
      {"sampling_param_stop", "stop_texts"}};
  return kAliases;
}

std::string our_name(const std::string& theirs) {
  if (const auto found = aliases().find(theirs); found != aliases().end()) return found->second;
  return theirs.starts_with(kPrefix) ? theirs.substr(kPrefix.size()) : theirs;
}

// /v1/completions has in a section what is a value of its own here.
Status without_section(const Status& status) {
  constexpr std::string_view kSection = "speculative.";
  if (status.field() == "prompt") return {status.code(), kTextInput, status.message()};
  if (!status.field().starts_with(kSection)) return status;
  return {status.code(), status.field().substr(kSection.size()), status.message()};
}

// The client's values under our names, and its name of each.
struct Named {
  Json values = Json::object();
  std::map<std::string, std::string> theirs;

  Status in_their_words(const Status& error) const {
    const Status status = without_section(error);
    const std::string& field = status.field();
    const size_t end = std::min(field.find_first_of(".["), field.size());
    const std::string name = field.substr(0, end);
    const auto found = theirs.find(name == "stop" ? "stop_texts" : name);
    const std::string& shown = found == theirs.end() ? name : found->second;
    return {status.code(), shown + field.substr(end), status.message()};
  }
};

Result<Named> name_values(const Json& values) {
  Named named;
  for (const auto& [name, given] : values.items()) {
    const TensorSpec* const input = find_input(name);
    const bool is_one = given.is_array() && given.size() == 1 && !(input && input->is_list);
    const Json& value = is_one ? given.front() : given;
    std::string ours = our_name(name);
    // `stop` ends other requests, or it is what ends the text.
    if (name == "stop" && !value.is_boolean()) ours = "stop_texts";
    const auto [place, is_new] = named.theirs.emplace(ours, name);
    if (!is_new)
      return Status(Code::kInvalidArgument, name,
                    "expected only one of " + quote(place->second) + " and " + quote(name));
    named.values[ours] = value;
  }
  return named;
}

// The same as a body of /v1/completions.
Json body_of(Fields& fields) {
  Json body = Json::object();
  for (const std::string_view each : kGeneration) {
    const std::string name(each);
    if (const Json* const value = fields.value(name.c_str()); value != nullptr) body[name] = *value;
  }
  if (const Json* const stop = fields.value("stop_texts"); stop != nullptr) body["stop"] = *stop;
  if (!body.contains("max_tokens")) body["max_tokens"] = kMaxTokens;
  const bool is_greedy =
      !body.contains("temperature") && !body.contains("top_k") && !body.contains("top_p");
  if (is_greedy) body["temperature"] = 0;
  Json speculative = Json::object();
  for (const char* const name : {"route", "draft_nodes_max"}) {
    if (const Json* const value = fields.value(name); value != nullptr) speculative[name] = *value;
  }
  if (!speculative.empty()) body["speculative"] = std::move(speculative);
  return body;
}

}  // namespace

Status check_infer_id(const std::string& id) {
  if (id.size() > kIdBytesMax)
    return {Code::kInvalidArgument, "id",
            "expected at most " + std::to_string(kIdBytesMax) + " bytes, found " +
                std::to_string(id.size())};
  if (std::any_of(id.begin(), id.end(), [](char c) { return c <= ' ' || c > '~'; }))
    return {Code::kInvalidArgument, "id", "expected printable ASCII without spaces"};
  return Status();
}

Result<InferRequest> read_infer(const Json& values, const std::string& id, uint64_t seed) {
  SPECD_OK_OR_RETURN(check_infer_id(id));
  SPECD_TRY(const Named named, name_values(values));
  Fields fields(named.values);
  InferRequest out;
  out.id = id;
  out.is_stream = fields.boolean("stream");
  out.cancels = fields.boolean("stop").value_or(false);
  if (out.cancels && id.empty()) fields.fail("stop", "needs the id of the requests to cancel");
  out.excludes_input = fields.boolean("exclude_input_from_output").value_or(false);
  out.returns_metrics = fields.boolean("return_perf_metrics").value_or(false);
  out.returns_finish_reason = fields.boolean("return_finish_reason").value_or(false);
  out.returns_stop_reason = fields.boolean("return_stop_reason").value_or(false);
  out.returns_logprob = fields.boolean("return_cumulative_logprob").value_or(false);
  if (const auto us = fields.integer("timeout", 0, kTimeoutMicrosecondsMax); us.value_or(0) > 0)
    out.time_left = std::chrono::milliseconds((*us + 999) / 1000);
  fields.refuse({"lora_id", "lora_name", "lora_path", "lora_ckpt_source", "image_url", "bad_words",
                 "logits_post_processor_name"},
                "specd does not support this input; leave it out");
  const Json* const text = fields.value(kTextInput);
  if (text != nullptr && text->is_string()) {
    out.text_input = text->get<std::string>();
  } else if (text == nullptr ? !out.cancels : true) {
    fields.fail(kTextInput, text == nullptr    ? "expected a text, found none"
                            : text->is_array() ? "expected one text, found a list of " +
                                                     std::to_string(text->size())
                                               : "expected a text, found " + shown(*text));
  }
  Json body = body_of(fields);
  if (!fields.status().ok()) return named.in_their_words(fields.status());
  // Names that nothing here reads are ignored, as by Triton.
  for (const std::string& each : fields.unknown()) {
    // Every client of Triton may send these.
    if (each.starts_with("triton_") || each.starts_with("sequence_") || each == "headers" ||
        each == "binary_data_output")
      continue;
    out.ignored.push_back(named.theirs.at(each));
  }
  if (out.cancels) return out;
  body["prompt"] = out.text_input;
  Result<GenerationRequest> read =
      read_generation(body, GenerationKind::kCompletion, {.temperature = 1, .seed = seed});
  if (!read.ok()) return named.in_their_words(read.status());
  out.request = std::move(read.value().requests.front());
  out.request.records_drafts = false;
  if (out.returns_logprob) out.request.logprobs = 0;
  return out;
}

Status in_words_of_infer(const Status& status) {
  return without_section(in_words_of_body(status, {}));
}

}  // namespace specd::host
