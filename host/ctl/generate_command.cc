// specctl generate, render and cancel: one request.
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "core/base/file_descriptor.h"
#include "core/base/quote.h"
#include "core/base/utf8.h"
#include "host/base/command_line.h"
#include "host/base/output.h"
#include "host/base/table.h"
#include "host/bench/workload.h"
#include "host/ctl/chat_options.h"
#include "host/ctl/command.h"
#include "host/ctl/transcript.h"
#include "host/rpc/proto_text.h"

namespace specd::host {
namespace {

// Reads a file, a pipe or a terminal, whose size is not known beforehand. Errors begin with `what`.
Result<std::string> read_to_end(int descriptor, const std::string& what) {
  std::string text;
  for (char buffer[4096];;) {
    const ssize_t got = read(descriptor, buffer, sizeof(buffer));
    if (got == 0) break;
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      return Status(Code::kInvalidArgument, what + ": cannot read: " + std::strerror(errno));
    text.append(buffer, static_cast<size_t>(got));
    if (text.size() > kPromptBytesMax)
      return Status(Code::kInvalidArgument, what + ": expected a prompt of at most " +
                                                std::to_string(kPromptBytesMax) +
                                                " bytes, found more");
  }
  if (const size_t bad = utf8_error_offset(text); bad != std::string::npos)
    return Status(Code::kInvalidArgument, what +
                                              ": expected UTF-8, found an ill-formed character at "
                                              "byte " +
                                              std::to_string(bad));
  return text;
}

Result<std::string> read_prompt(const Values& values) {
  if (values.count("prompt") != 0) return values["prompt"].as<std::string>();
  if (values.count("prompt-file") == 0) return read_to_end(STDIN_FILENO, "standard input");
  const std::string what = "--prompt-file " + values["prompt-file"].as<std::string>();
  const FileDescriptor file(
      open(values["prompt-file"].as<std::string>().c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0)
    return Status(Code::kNotFound, what + ": cannot open: " + std::strerror(errno));
  return read_to_end(file.get(), what);
}

// Reads the prompt into `request`: text or messages.
Status read_prompt(const Values& values, v1::GenerateRequest& request) {
  if (has_chat_options(values)) {
    SPECD_TRY(*request.mutable_chat(), read_chat_options(values));
    return Status();
  }
  SPECD_TRY(const std::string text, read_prompt(values));
  request.set_text(text);
  return Status();
}

// Sets only what was given; the model's defaults apply to the rest.
void set_sampling(const Values& values, float temperature, v1::Sampling& to) {
  const auto given = [&](const char* option) {
    return values.count(option) != 0 && !values[option].defaulted();
  };
  if (given("temperature")) to.set_temperature(temperature);
  if (given("top-p")) to.set_top_p(values["top-p"].as<float>());
  if (given("top-k")) to.set_top_k(values["top-k"].as<int32_t>());
  if (given("seed")) to.set_seed(values["seed"].as<uint64_t>());
  if (given("min-p")) to.set_min_p(values["min-p"].as<float>());
  if (given("typical-p")) to.set_typical_p(values["typical-p"].as<float>());
  if (given("repetition-penalty"))
    to.set_repetition_penalty(values["repetition-penalty"].as<float>());
  if (given("frequency-penalty")) to.set_frequency_penalty(values["frequency-penalty"].as<float>());
  if (given("presence-penalty")) to.set_presence_penalty(values["presence-penalty"].as<float>());
}

// Reads "ID:NUMBER"s. The daemon checks ranges. Returns a problem or "".
std::string set_logit_bias(const Values& values, v1::GenerateRequest& request) {
  if (values.count("logit-bias") == 0) return "";
  for (const std::string& text : values["logit-bias"].as<std::vector<std::string>>()) {
    int32_t token = 0;
    float add = 0;
    const char* const end = text.data() + text.size();
    const auto id = std::from_chars(text.data(), end, token);
    const bool has_number = id.ec == std::errc() && id.ptr != end && *id.ptr == ':';
    const auto number = has_number ? std::from_chars(id.ptr + 1, end, add) : id;
    if (!has_number || number.ec != std::errc() || number.ptr != end) {
      return "--logit-bias: expected ID:NUMBER, as in 17:-2.5, found " + quote(text, 60);
    }
    if (!request.mutable_logit_bias()->insert({token, add}).second) {
      return "--logit-bias: token " + std::to_string(token) + " twice";
    }
  }
  return "";
}

}  // namespace

int run_generate(Client& client, const Values& values, Format format) {
  v1::GenerateRequest request;
  if (values.count("prompt-tokens") != 0) {
    const auto ids = parse_list("--prompt-tokens", values["prompt-tokens"].as<std::string>(), 0,
                                std::numeric_limits<int32_t>::max(), /*whole=*/true);
    if (!ids.ok()) return ctl_usage(ids.status().message());
    if (has_chat_options(values)) return ctl_usage("--prompt-tokens or messages, not both");
    for (const double id : ids.value())
      request.mutable_token_ids()->add_ids(static_cast<int32_t>(id));
  } else if (const Status status = read_prompt(values, request); !status.ok()) {
    return ctl_fail(status);
  }
  const auto temperatures =
      parse_list("--temperature", values["temperature"].as<std::string>(), 0, 100, /*whole=*/false);
  if (!temperatures.ok()) return ctl_usage(temperatures.status().message());
  if (temperatures.value().size() != 1) return ctl_usage("--temperature: expected one number");
  set_sampling(values, static_cast<float>(temperatures.value()[0]), *request.mutable_sampling());
  request.set_max_tokens(values["max-tokens"].as<int32_t>());
  request.set_min_tokens(values["min-tokens"].as<int32_t>());
  if (const std::string problem = set_logit_bias(values, request); !problem.empty()) {
    return ctl_usage(problem);
  }
  if (values.count("stop") != 0)
    for (const std::string& stop : values["stop"].as<std::vector<std::string>>())
      request.add_stop(stop);
  if (values.count("stop-token") != 0)
    for (const int32_t id : values["stop-token"].as<std::vector<int32_t>>())
      request.add_stop_token_ids(id);
  request.set_ignore_eos(values["ignore-eos"].as<bool>());
  request.set_route(values["route"].as<std::string>());
  request.set_request_id(values["request-id"].as<std::string>());
  request.set_priority(values["priority"].as<int32_t>());
  request.set_deadline_ms(values["deadline-ms"].as<int64_t>());
  request.set_cache_salt(values["cache-salt"].as<std::string>());
  if (values.count("draft-nodes-max") != 0)
    request.set_draft_nodes_max(values["draft-nodes-max"].as<int32_t>());
  if (values.count("logprobs") != 0) request.set_logprobs(values["logprobs"].as<int32_t>());
  if (values.count("prompt-logprobs") != 0) {
    request.set_prompt_logprobs(values["prompt-logprobs"].as<int32_t>());
    request.set_return_prompt_token_ids(true);
  }
  request.set_echo(values["echo"].as<bool>());
  request.set_n(values["n"].as<int32_t>());
  request.set_best_of(values["best-of"].as<int32_t>());

  const bool is_terminal = isatty(STDOUT_FILENO) == 1;
  std::atomic<bool> stop = false;  // the text cannot be written
  int failure = 0;
  const auto for_output = [&](const std::string& text) {
    return is_terminal ? printable(text) : text;
  };
  Transcript transcript;
  const auto on_message = [&](const v1::GenerateResponse& message) {
    failure = write_output(format != Format::kTable ? object_text(to_json(message), format)
                                                    : for_output(transcript.add(message)));
    stop = failure != 0;
  };
  const auto generation = client.generate(request, on_message, &stop);
  if (stop) return failure == EPIPE ? kCtlOk : kCtlFailed;  // main() says why
  if (format == Format::kTable) write_output(for_output(transcript.rest()));
  if (!generation.ok()) return ctl_fail(generation.status());
  const v1::Finished& end = generation.value().finished;
  const v1::Speculation& speculation = end.speculation();
  std::fprintf(
      stderr,
      "[%s on route %s: %d prompt (%d cached) + %d new tokens, %s; queue %.1f, prefill %.1f, decode "
      "%.1f ms; drafts %lld, accepted %lld (%s), %.2f accepted a step]\n",
      printable(end.request_id()).c_str(), printable(generation.value().started.route()).c_str(),
      end.usage().prompt_tokens(), end.usage().cached_prompt_tokens(),
      end.usage().completion_tokens(),
      end.finish_reason() == v1::FINISH_REASON_STOP ? "stop" : "length", end.times().queue_ms(),
      end.times().prefill_ms(), end.times().decode_ms(),
      static_cast<long long>(speculation.total_draft_tokens()),
      static_cast<long long>(speculation.total_accepted_draft_tokens()),
      percent(speculation.acceptance_rate()).c_str(), speculation.mean_accepted_length());
  return kCtlOk;
}

int run_render(Client& client, const Values& values, Format format) {
  v1::GenerateRequest request;
  if (const Status status = read_prompt(values, request); !status.ok()) return ctl_fail(status);
  const auto rendered = client.render(request);
  if (!rendered.ok()) return ctl_fail(rendered.status());
  if (format != Format::kTable) {
    write_output(object_text(to_json(rendered.value()), format));
    return kCtlOk;
  }
  const std::string& text = rendered.value().text();
  const std::string shown = isatty(STDOUT_FILENO) == 1 ? printable(text) : text;
  std::string ids;
  for (const int32_t id : rendered.value().token_ids()) ids += std::to_string(id) + " ";
  write_output(shown + "\n" + ids + "\n");
  return kCtlOk;
}

int run_cancel(Client& client, const Values& values) {
  const std::string id = values["request-id"].as<std::string>();
  if (id.empty()) return ctl_usage("--request-id: expected the id of a request");
  const auto response = client.cancel(id);
  if (!response.ok()) return ctl_fail(response.status());
  if (!response.value().found())
    return ctl_fail(Status(Code::kNotFound, "no request '" + id + "' runs or waits"));
  return kCtlOk;
}

}  // namespace specd::host
