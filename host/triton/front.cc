#include "host/triton/front.h"

#include <new>
#include <string_view>
#include <utility>

#include "core/base/json.h"
#include "host/base/fields.h"
#include "host/base/out_of_memory.h"
#include "host/base/random_bytes.h"
#include "host/http/http_status.h"
#include "host/triton/infer_body.h"
#include "host/triton/infer_call.h"
#include "host/triton/infer_request.h"
#include "host/triton/statistics.h"
#include "host/version.h"

namespace specd::host {
namespace {

using Ordered = nlohmann::ordered_json;
using Reply = std::shared_ptr<HttpReply>;

constexpr char kJsonType[] = "application/json";
constexpr size_t kBodyBytesMax = size_t{8} << 20, kSmallBodyBytesMax = size_t{4} << 10;
constexpr char kPing[] = ": ping\n\n";
// HTTP clients are not told apart: all count as one client, different from every client of gRPC.
constexpr uint64_t kHttpClient = UINT64_MAX;

std::string text_of(const auto& json) {
  return json.dump(-1, ' ', false, std::decay_t<decltype(json)>::error_handler_t::replace);
}
HttpAnswer json_answer(const auto& body) {
  return {.content_type = kJsonType, .body = text_of(body)};
}

HttpAnswer error_answer_of(unsigned status, const std::string& text) {
  Json body = Json::object();
  body["error"] = text;
  HttpAnswer answer = json_answer(body);
  answer.status = status;
  add_status_headers(answer);
  return answer;
}

// ---- responses ----

// An answer in one piece.
class WholeAnswer final : public InferSink {
 public:
  using Make = std::function<HttpAnswer(const InferOutputs&)>;
  WholeAnswer(Reply reply, Make make) : reply_(std::move(reply)), make_(std::move(make)) {}
  void respond(const InferOutputs& outputs, bool, std::function<void(bool)> done) override {
    reply_->answer(make_(outputs));
    done(true);
  }
  void fail(const Status& status, std::function<void(bool)> done) override {
    reply_->answer(triton_error(status));
    done(true);
  }

 private:
  const Reply reply_;
  const Make make_;
};

// An event for each response. An error before the first has its status.
class EventStream final : public InferSink {
 public:
  using Make = std::function<std::string(const InferOutputs&)>;
  EventStream(Reply reply, HttpFields headers, Make make)
      : reply_(std::move(reply)), headers_(std::move(headers)), make_(std::move(make)) {}
  void respond(const InferOutputs& outputs, bool is_last, std::function<void(bool)> done) override {
    if (!is_last) return write(make_(outputs), std::move(done));
    end(make_(outputs));
    done(true);
  }
  void fail(const Status& status, std::function<void(bool)> done) override {
    if (has_begun_) {
      end(triton_error(status).body);
    } else {
      reply_->answer(triton_error(status));
    }
    done(true);
  }

 private:
  void write(const std::string& json, std::function<void(bool)> done) {
    std::string event = "data: " + json + "\n\n";
    if (!has_begun_)
      reply_->start(
          {.content_type = "text/event-stream; charset=utf-8", .body = {}, .headers = headers_},
          kPing);
    has_begun_ = true;
    reply_->write(std::move(event), std::move(done));
  }

  // May be called again when there was no memory for all of it.
  void end(const std::string& json) {
    if (!has_last_) write(json, [](bool) {});
    has_last_ = true;
    reply_->finish();
  }

  const Reply reply_;
  const HttpFields headers_;
  const Make make_;
  bool has_begun_ = false, has_last_ = false;
};

Json generated(const TritonModel& model, const std::string& id, const InferOutputs& outputs) {
  Json body = Json::object();
  if (!id.empty()) body["id"] = id;
  body["model_name"] = model.name;
  body["model_version"] = model.version;
  for (const auto& [name, value] : outputs) body[name] = value;
  return body;
}

Ordered duration_json(const InferStatistics::Duration& duration) {
  Ordered out;
  out["count"] = duration.count;
  out["ns"] = duration.ns;
  return out;
}

}  // namespace

bool is_triton_path(std::string_view path) { return path == "/v2" || path.starts_with("/v2/"); }

HttpAnswer triton_error(const Status& status) {
  return error_answer_of(http_status(status), error_text(status.text()));
}

HttpAnswer triton_refusal(const HttpRefusal& why) { return error_answer_of(why.status, why.text); }

struct TritonFront::Served {
  Engine& engine;
  InferCalls calls;
  const Options& options;

  const TritonModel& model() const { return options.model; }

  Status check_model(const HttpRequest& http) const {
    return model().check(http.parameter("model"), http.parameter("version"));
  }

  Result<InferRequest> read(const Json& values, const std::string& id) const {
    SPECD_TRY(InferRequest request, read_infer(values, id, random_number()));
    if (options.rejects_unknown_names && !request.ignored.empty())
      return Status(Code::kInvalidArgument, request.ignored.front(),
                    "specd does not know this name");
    return request;
  }

  static HttpFields headers_of(const InferRequest& request) {
    HttpFields headers;
    if (!request.ignored.empty())
      headers.emplace_back("x-specd-ignored-fields", header_list(request.ignored));
    return headers;
  }

  // Answers a request that could not be read.
  void refuse(const Status& status, const Reply& reply) const {
    engine.count_refused();  // no session does
    reply->answer(triton_error(status));
  }

  void start(InferRequest request, std::shared_ptr<InferSink> sink, const Reply& reply) const {
    const auto call = calls.start(std::move(request), kHttpClient, std::move(sink));
    try {
      reply->when_gone([weak = std::weak_ptr(call)] {
        if (const auto there = weak.lock()) there->disconnect();
      });
    } catch (const std::bad_alloc&) {
      call->disconnect();
      throw;
    }
  }

  Result<InferRequest> read_generate(const HttpRequest& http, bool is_stream) const {
    SPECD_OK_OR_RETURN(check_model(http));
    SPECD_TRY(Json values, read_infer_object(http.body));
    SPECD_TRY(const std::string id, take_infer_id(values));
    SPECD_OK_OR_RETURN(take_infer_parameters(values, values));
    SPECD_TRY(InferRequest request, read(values, id));
    if (!is_stream && request.is_stream.value_or(false))
      return Status(Code::kInvalidArgument, "stream",
                    "generate has one response; use generate_stream");
    request.is_stream = request.is_stream.value_or(is_stream);
    return request;
  }

  void generate(const HttpRequest& http, bool is_stream, const Reply& reply) const {
    Result<InferRequest> request = within_memory([&] { return read_generate(http, is_stream); });
    if (!request.ok()) return refuse(request.status(), reply);
    const std::string id = request.value().id;
    HttpFields headers = headers_of(request.value());
    std::shared_ptr<InferSink> sink;
    if (is_stream) {
      sink = std::make_shared<EventStream>(reply, std::move(headers),
                                           [this, id](const InferOutputs& outputs) {
                                             return text_of(generated(model(), id, outputs));
                                           });
    } else {
      sink = std::make_shared<WholeAnswer>(
          reply, [this, id, headers = std::move(headers)](const InferOutputs& outputs) {
            HttpAnswer answer = json_answer(generated(model(), id, outputs));
            answer.headers = headers;
            return answer;
          });
    }
    start(std::move(request).value(), std::move(sink), reply);
  }

  Result<InferRequest> read_infer_request(const HttpRequest& http, InferBody& asked) const {
    SPECD_OK_OR_RETURN(check_model(http));
    SPECD_TRY(asked,
              read_infer_body(http.body, http.header("inference-header-content-length"), model()));
    SPECD_TRY(InferRequest request, read(asked.values, asked.id));
    asked.values = Json::object();
    request.is_stream = false;
    return request;
  }

  void infer(const HttpRequest& http, const Reply& reply) const {
    InferBody asked;
    Result<InferRequest> request = within_memory([&] { return read_infer_request(http, asked); });
    if (!request.ok()) return refuse(request.status(), reply);
    HttpFields headers = headers_of(request.value());
    auto sink = std::make_shared<WholeAnswer>(reply, [this, asked = std::move(asked),
                                                      headers = std::move(headers)](
                                                         const InferOutputs& outputs) {
      size_t json_bytes = 0;
      HttpAnswer answer{.content_type = kJsonType,
                        .body = write_infer_body(asked, outputs, model(), json_bytes),
                        .headers = headers};
      if (json_bytes == answer.body.size()) return answer;
      answer.content_type = "application/octet-stream";
      answer.headers.emplace_back("Inference-Header-Content-Length", std::to_string(json_bytes));
      return answer;
    });
    start(std::move(request).value(), std::move(sink), reply);
  }

  HttpAnswer metadata() const {
    Ordered body;
    body["name"] = model().name;
    body["versions"] = {model().version};
    body["platform"] = kTritonBackend;
    body["inputs"] = Ordered::array();
    body["outputs"] = Ordered::array();
    const auto add = [&body](const char* list, const char* name, Datatype type, int64_t dim) {
      Ordered tensor;
      tensor["name"] = name;
      tensor["datatype"] = datatype_name(type);
      tensor["shape"] = {dim};
      body[list].push_back(std::move(tensor));
    };
    for (const TensorSpec& each : infer_inputs()) add("inputs", each.name, each.type, each.dim());
    for (const char* const each : infer_outputs()) add("outputs", each, Datatype::kBytes, 1);
    return json_answer(body);
  }

  HttpAnswer config() const {
    Ordered body;
    body["name"] = model().name;
    body["platform"] = "";
    body["backend"] = kTritonBackend;
    body["max_batch_size"] = 0;
    body["input"] = Ordered::array();
    body["output"] = Ordered::array();
    for (const TensorSpec& each : infer_inputs()) {
      Ordered tensor;
      tensor["name"] = each.name;
      tensor["data_type"] = datatype_config_name(each.type);
      tensor["format"] = "FORMAT_NONE";
      tensor["dims"] = {each.dim()};
      tensor["is_shape_tensor"] = false;
      tensor["allow_ragged_batch"] = false;
      tensor["optional"] = std::string_view(each.name) != kTextInput;
      body["input"].push_back(std::move(tensor));
    }
    for (const char* const each : infer_outputs()) {
      Ordered tensor;
      tensor["name"] = each;
      tensor["data_type"] = datatype_config_name(Datatype::kBytes);
      tensor["dims"] = {1};
      tensor["label_filename"] = "";
      tensor["is_shape_tensor"] = false;
      body["output"].push_back(std::move(tensor));
    }
    body["model_transaction_policy"]["decoupled"] = false;
    return json_answer(body);
  }

  HttpAnswer statistics() const {
    const InferStatistics all = infer_statistics(engine.metrics());
    Ordered stats;
    stats["name"] = model().name;
    stats["version"] = model().version;
    stats["inference_count"] = all.inference_count;
    stats["execution_count"] = all.execution_count;
    Ordered inference;
    inference["success"] = duration_json(all.success);
    inference["fail"] = duration_json(all.fail);
    inference["queue"] = duration_json(all.queue);
    inference["compute_input"] = duration_json(all.compute_input);
    inference["compute_infer"] = duration_json(all.compute_infer);
    inference["compute_output"] = duration_json(all.compute_output);
    inference["cache_hit"] = duration_json({});
    inference["cache_miss"] = duration_json({});
    stats["inference_stats"] = std::move(inference);
    stats["response_stats"] = Ordered::object();
    stats["batch_stats"] = Ordered::array();
    stats["memory_usage"] = Ordered::array();
    Ordered body;
    body["model_stats"] = Ordered::array({std::move(stats)});
    return json_answer(body);
  }

  HttpAnswer index(const std::string& text) const {
    bool only_ready = false;
    if (!text.empty()) {
      const Result<Json> body = read_infer_object(text);
      if (!body.ok()) return triton_error(body.status());
      Fields fields(body.value());
      only_ready = fields.boolean("ready").value_or(false);
      if (!fields.status().ok()) return triton_error(fields.status());
    }
    const bool is_ready = options.is_ready();
    Ordered list = Ordered::array();
    if (is_ready || !only_ready) {
      Ordered one;
      one["name"] = model().name;
      one["version"] = model().version;
      one["state"] = is_ready ? "READY" : "UNAVAILABLE";
      if (!is_ready) one["reason"] = "draining";
      list.push_back(std::move(one));
    }
    return json_answer(list);
  }
};

void TritonFront::loaded(Engine& engine, Sessions& sessions) {
  made_ = std::make_shared<Served>(
      Served{.engine = engine, .calls = InferCalls(engine, sessions), .options = options_});
  served_ = made_.get();
}

std::vector<HttpRoute> TritonFront::routes() const {
  const auto when_loaded = [this](auto handler) -> HttpHandler {
    return [this, handler](HttpRequest request, Reply reply) {
      if (const Served* const served = served_; served != nullptr)
        return handler(*served, request, std::move(reply));
      reply->answer(triton_error(Status(Code::kUnavailable, "the model is being loaded")));
    };
  };
  // Answers about the model, or that there is none of this name.
  const auto about = [&when_loaded](HttpAnswer (Served::*make)() const) {
    return when_loaded(
        [make](const Served& served, const HttpRequest& request, const Reply& reply) {
          const Status known = served.check_model(request);
          reply->answer(known.ok() ? (served.*make)() : triton_error(known));
        });
  };
  const auto generate = [&when_loaded](bool is_stream) {
    return when_loaded(
        [is_stream](const Served& served, const HttpRequest& request, const Reply& reply) {
          served.generate(request, is_stream, reply);
        });
  };
  const auto probe = [](const std::function<bool()>& is_so) -> HttpHandler {
    return [&is_so](const HttpRequest&, const Reply& reply) {
      reply->answer({.status = is_so() ? 200U : 400U, .content_type = kJsonType});
    };
  };
  const HttpHandler infer = when_loaded([](const Served& served, const HttpRequest& request,
                                           const Reply& reply) { served.infer(request, reply); });
  const HttpHandler ready = [this](const HttpRequest& request, const Reply& reply) {
    const Status known =
        options_.model.check(request.parameter("model"), request.parameter("version"));
    if (known.ok() && options_.is_ready()) return reply->answer({.content_type = kJsonType});
    HttpAnswer answer = triton_error(Status(Code::kInvalidArgument, "Model version not ready"));
    reply->answer(std::move(answer));
  };
  const HttpHandler server = [](const HttpRequest&, const Reply& reply) {
    Ordered body;
    body["name"] = "specd";
    body["version"] = kVersion;
    body["extensions"] = Ordered::array();
    for (const char* const each : triton_extensions()) body["extensions"].push_back(each);
    reply->answer(json_answer(body));
  };
  const HttpHandler all_statistics =
      when_loaded([](const Served& served, const HttpRequest&, const Reply& reply) {
        reply->answer(served.statistics());
      });
  const HttpHandler index =
      when_loaded([](const Served& served, const HttpRequest& request, const Reply& reply) {
        reply->answer(served.index(request.body));
      });
  std::vector<HttpRoute> routes{{"GET", "/v2", server},
                                {"GET", "/v2/health/live", probe(options_.is_live)},
                                {"GET", "/v2/health/ready", probe(options_.is_ready)},
                                {"GET", "/v2/models/stats", all_statistics},
                                {"POST", "/v2/repository/index", index, kSmallBodyBytesMax}};
  for (const std::string model : {"/v2/models/{model}", "/v2/models/{model}/versions/{version}"}) {
    routes.push_back({"GET", model, about(&Served::metadata)});
    routes.push_back({"GET", model + "/ready", ready});
    routes.push_back({"GET", model + "/config", about(&Served::config)});
    routes.push_back({"GET", model + "/stats", about(&Served::statistics)});
    routes.push_back({"POST", model + "/generate", generate(false), kBodyBytesMax});
    routes.push_back({"POST", model + "/generate_stream", generate(true), kBodyBytesMax});
    routes.push_back({"POST", model + "/infer", infer, kBodyBytesMax});
  }
  return routes;
}

}  // namespace specd::host
