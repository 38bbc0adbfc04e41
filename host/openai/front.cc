#include "host/openai/front.h"

#include <algorithm>
#include <ctime>
#include <string_view>
#include <utility>

#include "core/base/json.h"
#include "core/base/quote.h"
#include "core/base/sha256.h"
#include "host/base/out_of_memory.h"
#include "host/base/random_bytes.h"
#include "host/openai/error_answer.h"
#include "host/base/fields.h"
#include "host/openai/generation.h"
#include "host/openai/generation_request.h"
#include "host/version.h"

namespace specd::host {
namespace {

using Ordered = nlohmann::ordered_json;
using Reply = std::shared_ptr<HttpReply>;

constexpr size_t kBodyBytesMax = size_t{8} << 20;
constexpr size_t kIdBytesMax = 112;  // the engine takes 128; those of several prompts are longer
constexpr uint64_t kTokenizerConfigBytesMax = uint64_t{16} << 20;
constexpr uint64_t kSeeds = uint64_t{1} << 53;  // those that every JSON reader keeps exactly

HttpAnswer json_answer(const Ordered& body) {
  return {.content_type = "application/json",
          .body = body.dump(-1, ' ', false, Ordered::error_handler_t::replace)};
}

// The client's id, in its header or its body, or a new one.
Result<std::string> id_of(const HttpRequest& http, const std::string& of_body) {
  const std::string_view header = http.header("x-request-id");
  std::string id = header.empty() ? of_body : std::string(header);
  if (id.empty()) return to_hex(random_bytes<16>());
  const char* const field = header.empty() ? "request_id" : "x-request-id";
  if (id.size() > kIdBytesMax)
    return Status(Code::kInvalidArgument, field,
                  "expected at most " + std::to_string(kIdBytesMax) + " bytes, found " +
                      std::to_string(id.size()));
  if (std::any_of(id.begin(), id.end(), [](char c) { return c <= ' ' || c > '~'; }))
    return Status(Code::kInvalidArgument, field, "expected printable ASCII without spaces");
  return id;
}

// A text of tokenizer_config.json, where it may be a token: {"content": "</s>", ...}.
Ordered text_in(const Json& config, const char* name) {
  const auto found = config.find(name);
  if (found == config.end()) return nullptr;
  if (found->is_string()) return found->get<std::string>();
  if (!found->is_object() || !found->contains("content") || !(*found)["content"].is_string())
    return nullptr;
  return (*found)["content"].get<std::string>();
}

}  // namespace

struct OpenAiFront::Served {
  Engine& engine;
  Sessions& sessions;
  Options options;
  float temperature = 1;  // of a request that names none
  int64_t max_model_len = 0;
  int32_t vocab_size = 0;
  int64_t created = 0;
  Ordered tokenizer_info;

  Status check_model(const std::string& name) const {
    if (name.empty() || name == options.model) return Status();
    return Status(
        Code::kNotFound, "model",
        "the model " + quote(name) + " does not exist; this server has " + quote(options.model));
  }

  Ordered model() const {
    Ordered out;
    out["id"] = options.model;
    out["object"] = "model";
    out["created"] = created;
    out["owned_by"] = "specd";
    out["root"] = options.model;
    out["parent"] = nullptr;
    out["max_model_len"] = max_model_len;
    return out;
  }

  // What is wrong with a body is found before its model is looked at, as by vLLM.
  Result<GenerationCall> read_call(const HttpRequest& http, GenerationKind kind) const {
    SPECD_TRY(const Json body, parse_json(http.body, "body"));
    const uint64_t seed = random_number() % kSeeds;
    GenerationCall call;
    SPECD_TRY(call.request,
              read_generation(
                  body, kind,
                  {.temperature = temperature, .seed = seed, .choices_max = options.choices_max}));
    SPECD_OK_OR_RETURN(check_model(call.request.model));
    SPECD_TRY(call.id, id_of(http, call.request.request_id));
    call.model = options.model;
    const std::vector<std::string>& unknown = call.request.unknown_fields;
    if (options.rejects_unknown_fields && !unknown.empty())
      return Status(Code::kInvalidArgument, unknown.front(), "specd does not know this field");
    call.headers.emplace_back("x-request-id", call.id);
    call.headers.emplace_back("x-specd-seed",
                              std::to_string(*call.request.requests.front().sampling.seed));
    if (!unknown.empty()) call.headers.emplace_back("x-specd-ignored-fields", header_list(unknown));
    return call;
  }

  void generate(const HttpRequest& http, GenerationKind kind, const Reply& reply) const {
    Result<GenerationCall> call = within_memory([&] { return read_call(http, kind); });
    if (call.ok()) return start_generation(engine, sessions, std::move(call).value(), reply);
    engine.count_refused();  // no session does
    HttpAnswer answer = error_answer(call.status());
    if (const auto id = id_of(http, ""); id.ok())
      answer.headers.emplace_back("x-request-id", id.value());
    reply->answer(std::move(answer));
  }

  Result<Request> read_tokenize(const HttpRequest& http, bool& wants_texts) const {
    SPECD_TRY(const Json body, parse_json(http.body, "body"));
    if (!body.is_object())
      return Status(Code::kInvalidArgument, "expected a JSON object, found " + shown(body));
    Fields fields(body);
    Request request;
    const std::string name = fields.text("model").value_or("");
    wants_texts = fields.boolean("return_token_strs").value_or(false);
    if (fields.value("messages") != nullptr) {
      request.chat = read_chat(fields);
    } else if (auto prompt = fields.text("prompt")) {
      request.prompt = std::move(*prompt);
      request.add_bos = fields.boolean("add_special_tokens").value_or(true);
    } else {
      fields.fail("prompt", "expected a text, or `messages`");
    }
    SPECD_OK_OR_RETURN(fields.status());
    SPECD_OK_OR_RETURN(check_model(name));
    return request;
  }

  // A long text takes long, so it waits with the prompts of generations.
  void tokenize(const HttpRequest& http, const Reply& reply) const {
    bool wants_texts = false;
    Result<Request> request = within_memory([&] { return read_tokenize(http, wants_texts); });
    if (!request.ok()) return reply->answer(error_answer(request.status()));
    const auto asked = std::make_shared<const Request>(std::move(request).value());
    const auto answer = [this, asked, reply, wants_texts] {
      // Without memory for an answer the reply is let go, and the connection ends.
      (void)within_memory([&]() -> Status {
        const Result<HttpAnswer> made = tokens_of(*asked, wants_texts);
        reply->answer(made.ok() ? made.value() : error_answer(in_words_of_body(made.status(), {})));
        return Status();
      });
    };
    const Result<uint64_t> number = sessions.queue(*asked, answer);
    if (!number.ok()) return reply->answer(error_answer(number.status()));
    reply->when_gone([this, n = number.value()] { sessions.forget_prompt(n); });
  }

  Result<HttpAnswer> tokens_of(const Request& request, bool wants_texts) const {
    SPECD_TRY(const RenderedPrompt made, engine.render(request));
    Ordered out;
    out["count"] = made.tokens.size();
    out["max_model_len"] = max_model_len;
    out["tokens"] = made.tokens;
    out["token_strs"] = nullptr;
    if (wants_texts) {
      Ordered texts = Ordered::array();
      for (const int32_t token : made.tokens)
        texts.push_back(std::string(engine.token_bytes(token)));
      out["token_strs"] = std::move(texts);
    }
    return json_answer(out);
  }

  Result<HttpAnswer> detokenize(const HttpRequest& http) const {
    SPECD_TRY(const Json body, parse_json(http.body, "body"));
    if (!body.is_object())
      return Status(Code::kInvalidArgument, "expected a JSON object, found " + shown(body));
    Fields fields(body);
    const std::string name = fields.text("model").value_or("");
    const Json* const list = fields.value("tokens");
    if (list == nullptr || !list->is_array())
      return Status(Code::kInvalidArgument, "tokens", "expected a list of token ids");
    SPECD_OK_OR_RETURN(fields.status());
    SPECD_OK_OR_RETURN(check_model(name));
    std::vector<int32_t> tokens;
    tokens.reserve(list->size());
    for (const Json& each : *list) {
      Result<int64_t> token = integer_of(each, 0, vocab_size - 1);
      if (!token.ok())
        return std::move(token).in_field("tokens[" + std::to_string(tokens.size()) + "]").status();
      tokens.push_back(static_cast<int32_t>(token.value()));
    }
    Ordered out;
    out["prompt"] = engine.decode(tokens);
    return json_answer(out);
  }
};

void OpenAiFront::loaded(Engine& engine, Sessions& sessions) {
  const ModelReport model = engine.model();
  Ordered info;
  const Result<Json> config =
      parse_json_file(options_.model_folder + "/tokenizer_config.json", kTokenizerConfigBytesMax);
  const Json empty = Json::object();
  const Json& read = config.ok() && config.value().is_object() ? config.value() : empty;
  for (const char* const name :
       {"tokenizer_class", "bos_token", "eos_token", "pad_token", "unk_token", "chat_template"})
    info[name] = text_in(read, name);
  if (info["eos_token"].is_null() && !model.eos_tokens.empty())
    info["eos_token"] = std::string(engine.token_bytes(model.eos_tokens.front()));
  const int64_t cache = int64_t{model.kv_pages_total} * model.page_tokens;
  made_ = std::make_shared<Served>(
      Served{.engine = engine,
             .sessions = sessions,
             .options = options_,
             .temperature =
                 model.sampling_defaults.temperature > 0 ? model.sampling_defaults.temperature : 1,
             .max_model_len = std::min<int64_t>(model.max_positions, cache),
             .vocab_size = model.vocab_size,
             .created = static_cast<int64_t>(std::time(nullptr)),
             .tokenizer_info = std::move(info)});
  served_ = made_.get();
}

std::vector<HttpRoute> OpenAiFront::routes() const {
  // Answers once the engine is there.
  const auto when_loaded = [this](auto handler) -> HttpHandler {
    return [this, handler](HttpRequest request, Reply reply) {
      if (const Served* const served = served_; served != nullptr)
        return handler(*served, request, std::move(reply));
      reply->answer(error_answer(Status(Code::kUnavailable, "the model is being loaded")));
    };
  };
  const auto generate = [&when_loaded](GenerationKind kind) {
    return when_loaded([kind](const Served& served, const HttpRequest& request,
                              const Reply& reply) { served.generate(request, kind, reply); });
  };
  const HttpHandler models =
      when_loaded([](const Served& served, const HttpRequest&, const Reply& reply) {
        Ordered out;
        out["object"] = "list";
        out["data"] = Ordered::array({served.model()});
        reply->answer(json_answer(out));
      });
  const HttpHandler model =
      when_loaded([](const Served& served, const HttpRequest& request, const Reply& reply) {
        const Status known = served.check_model(std::string(request.parameter("id")));
        reply->answer(known.ok() ? json_answer(served.model()) : error_answer(known));
      });
  const HttpHandler tokenize =
      when_loaded([](const Served& served, const HttpRequest& request, const Reply& reply) {
        served.tokenize(request, reply);
      });
  const HttpHandler detokenize =
      when_loaded([](const Served& served, const HttpRequest& request, const Reply& reply) {
        const Result<HttpAnswer> made =
            within_memory([&]() -> Result<HttpAnswer> { return served.detokenize(request); });
        reply->answer(made.ok() ? made.value() : error_answer(made.status()));
      });
  const HttpHandler info =
      when_loaded([](const Served& served, const HttpRequest&, const Reply& reply) {
        reply->answer(json_answer(served.tokenizer_info));
      });
  const HttpHandler version = [](const HttpRequest&, const Reply& reply) {
    Ordered out;
    out["version"] = kVersion;
    reply->answer(json_answer(out));
  };
  return {{"POST", "/v1/completions", generate(GenerationKind::kCompletion), kBodyBytesMax},
          {"POST", "/v1/chat/completions", generate(GenerationKind::kChat), kBodyBytesMax},
          {"GET", "/v1/models", models},
          {"GET", "/v1/models/{id}", model},
          {"POST", "/tokenize", tokenize, kBodyBytesMax},
          {"POST", "/detokenize", detokenize, kBodyBytesMax},
          {"GET", "/tokenizer_info", info},
          {"GET", "/version", version}};
}

}  // namespace specd::host
