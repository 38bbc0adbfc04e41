#include "host/triton/front.h"

#include <sys/random.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <utility>

#include "core/base/json.h"
#include "core/base/quote.h"
#include "host/base/fields.h"
#include "host/base/out_of_memory.h"
#include "host/http/http_status.h"
#include "host/triton/infer_call.h"
#include "host/triton/infer_request.h"
#include "host/triton/statistics.h"
#include "host/triton/tensors.h"
#include "host/version.h"

namespace specd::host {
namespace {

using Ordered = nlohmann::ordered_json;
using Reply = std::shared_ptr<HttpReply>;

constexpr char kJsonType[] = "application/json";
constexpr char kLengthHeader[] = "inference-header-content-length";
constexpr size_t kBodyBytesMax = size_t{8} << 20, kSmallBodyBytesMax = size_t{4} << 10;
constexpr char kPing[] = ": ping\n\n";
// Over this port nobody is told from anybody: every request is of one client, who is none of gRPC's.
constexpr uint64_t kHttpClient = UINT64_MAX;

std::string text_of(const auto& json) {
  return json.dump(-1, ' ', false, std::decay_t<decltype(json)>::error_handler_t::replace);
}
HttpAnswer json_answer(const auto& body) {
  return {.content_type = kJsonType, .body = text_of(body)};
}

uint64_t random_seed() {
  uint64_t value = 0;
  [[maybe_unused]] const ssize_t unused = getrandom(&value, sizeof(value), 0);
  return value;
}

Result<Json> read_object(std::string_view body) {
  SPECD_TRY(Json json, parse_json(body, "body"));
  if (json.is_object()) return json;
  return Status(Code::kInvalidArgument, "expected a JSON object, found " + shown(json));
}

// The text of `id`, which may be absent; takes it out.
Result<std::string> take_id(Json& object) {
  const auto found = object.find("id");
  if (found == object.end()) return std::string();
  if (!found->is_string())
    return Status(Code::kInvalidArgument, "id", "expected a text, found " + shown(*found));
  std::string id = found->get<std::string>();
  object.erase(found);
  return id;
}

// Moves the members of `parameters` to `values`.
Status take_parameters(Json& object, Json& values) {
  const auto found = object.find("parameters");
  if (found == object.end()) return Status();
  if (!found->is_object())
    return {Code::kInvalidArgument, "parameters", "expected an object, found " + shown(*found)};
  const Json parameters = std::move(*found);
  object.erase(found);
  for (const auto& [name, value] : parameters.items()) {
    const auto [place, is_new] = values.emplace(name, value);
    if (!is_new)
      return {Code::kInvalidArgument, "parameters." + name,
              "expected it once; an input or another value has this name, too"};
  }
  return Status();
}

// A request of /infer, beside its values.
struct Tensors {
  std::string id;
  Json values = Json::object();
  // The outputs that are asked for; empty = all. Which go behind the JSON in bytes.
  std::vector<std::string> outputs, binary;
  bool is_binary = false;  // unless an output says otherwise
};

Result<size_t> byte_count(const Json& parameters, const char* name) {
  SPECD_TRY(const int64_t bytes, integer_of(parameters[name], 0, INT32_MAX));
  return static_cast<size_t>(bytes);
}

// One of `inputs`. `tail`: the bytes behind the JSON that no input has taken yet.
Status read_input(const Json& input, const TritonModel& model, std::string_view& tail,
                  Json& values) {
  if (!input.is_object())
    return {Code::kInvalidArgument, "expected an object, found " + shown(input)};
  Fields fields(input);
  TensorHead head{.name = fields.text("name").value_or(""),
                  .datatype = fields.text("datatype").value_or(""),
                  .shape = {}};
  if (const Json* const shape = fields.value("shape"); shape != nullptr && shape->is_array()) {
    for (const Json& each : *shape) {
      Result<int64_t> dim = integer_of(each, 0, INT64_MAX);
      if (!dim.ok()) return std::move(dim).in_field("shape").status();
      head.shape.push_back(dim.value());
    }
  } else {
    fields.fail("shape", "expected a list of integers");
  }
  SPECD_OK_OR_RETURN(fields.status());
  size_t count = 0;
  SPECD_TRY(const TensorSpec* const spec, check_tensor(head, model, count));
  const Json* const data = fields.value("data");
  const Json* const parameters = fields.value("parameters");
  const bool is_binary =
      parameters != nullptr && parameters->is_object() && parameters->contains("binary_data_size");
  if ((data != nullptr) == is_binary)
    return {Code::kInvalidArgument, "data",
            "expected either `data` or the parameter `binary_data_size`"};
  Json list;
  if (is_binary) {
    Result<size_t> bytes = byte_count(*parameters, "binary_data_size");
    if (!bytes.ok()) return std::move(bytes).in_field("binary_data_size").status();
    if (bytes.value() > tail.size())
      return {Code::kInvalidArgument, "binary_data_size",
              "expected at most the " + std::to_string(tail.size()) +
                  " bytes that are left behind the JSON, found " + std::to_string(bytes.value())};
    SPECD_TRY(list, values_of_raw(*spec, count, tail.substr(0, bytes.value())));
    tail.remove_prefix(bytes.value());
  } else {
    if (!data->is_array() || data->size() != count)
      return {Code::kInvalidArgument, "data",
              "expected a list of " + std::to_string(count) + " for shape [" +
                  std::to_string(count) + "], found " +
                  (data->is_array() ? std::to_string(data->size()) : shown(*data))};
    list = *data;
  }
  if (!values.emplace(head.name, std::move(list)).second)
    return {Code::kInvalidArgument, "name", "expected each input once, found " + quote(head.name)};
  return Status();
}

Status read_outputs(const Json& list, Tensors& out) {
  if (!list.is_array())
    return {Code::kInvalidArgument, "outputs", "expected a list, found " + shown(list)};
  const auto known = infer_outputs();
  for (const Json& each : list) {
    if (!each.is_object())
      return {Code::kInvalidArgument, "outputs", "expected objects, found " + shown(each)};
    Fields fields(each, "outputs");
    const std::string name = fields.text("name").value_or("");
    if (std::none_of(known.begin(), known.end(),
                     [&name](const char* output) { return name == output; }))
      fields.fail("name", "expected an output of the model, found " + quote(name));
    bool is_binary = out.is_binary;
    if (const Json* const parameters = fields.value("parameters");
        parameters != nullptr && parameters->is_object()) {
      Fields inner(*parameters, "outputs.parameters");
      is_binary = inner.boolean("binary_data").value_or(is_binary);
      if (inner.value("classification") != nullptr)
        inner.fail("classification", "specd does not support it; leave it out");
      SPECD_OK_OR_RETURN(inner.status());
    }
    SPECD_OK_OR_RETURN(fields.status());
    out.outputs.push_back(name);
    if (is_binary) out.binary.push_back(name);
  }
  return Status();
}

Result<Tensors> read_tensors(const HttpRequest& http, const TritonModel& model) {
  std::string_view json = http.body, tail;
  if (const std::string_view length = http.header(kLengthHeader); !length.empty()) {
    size_t bytes = 0;
    const char* const end = length.data() + length.size();
    const auto [rest, bad] = std::from_chars(length.data(), end, bytes);
    if (bad != std::errc() || rest != end || bytes == 0 || bytes > json.size())
      return Status(Code::kInvalidArgument, "Inference-Header-Content-Length",
                    "expected the bytes of the JSON, from 1 to the body's " +
                        std::to_string(json.size()) + ", found " + quote(length));
    tail = json.substr(bytes);
    json = json.substr(0, bytes);
  }
  SPECD_TRY(Json object, read_object(json));
  Tensors out;
  SPECD_TRY(out.id, take_id(object));
  const auto inputs = object.find("inputs");
  if (inputs == object.end() || !inputs->is_array())
    return Status(Code::kInvalidArgument, "inputs", "expected a list of tensors");
  size_t n = 0;
  for (const Json& each : *inputs) {
    const Status read = read_input(each, model, tail, out.values);
    const std::string place = "inputs[" + std::to_string(n++) + "]";
    if (!read.ok())
      return Status(read.code(), place + (read.field().empty() ? "" : "." + read.field()),
                    read.message());
  }
  if (!tail.empty())
    return Status(Code::kInvalidArgument, "inputs",
                  "expected that the inputs take every byte behind the JSON, found " +
                      std::to_string(tail.size()) + " more");
  SPECD_OK_OR_RETURN(take_parameters(object, out.values));
  if (const auto all = out.values.find("binary_data_output"); all != out.values.end())
    out.is_binary = all->is_boolean() && all->get<bool>();
  if (const auto outputs = object.find("outputs"); outputs != object.end())
    SPECD_OK_OR_RETURN(read_outputs(*outputs, out));
  return out;
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
    write(make_(outputs), std::move(done));
    if (is_last) reply_->finish();
  }
  void fail(const Status& status, std::function<void(bool)> done) override {
    if (has_begun_) {
      write(triton_error(status).body, std::move(done));
      return reply_->finish();
    }
    reply_->answer(triton_error(status));
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

  const Reply reply_;
  const HttpFields headers_;
  const Make make_;
  bool has_begun_ = false;
};

Json generated(const TritonModel& model, const std::string& id, const InferOutputs& outputs) {
  Json body = Json::object();
  if (!id.empty()) body["id"] = id;
  body["model_name"] = model.name;
  body["model_version"] = model.version;
  for (const auto& [name, value] : outputs) body[name] = value;
  return body;
}

bool has(const std::vector<std::string>& names, const char* name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

HttpAnswer inferred(const TritonModel& model, const Tensors& asked, const InferOutputs& outputs) {
  Ordered body = Ordered::object();
  if (!asked.id.empty()) body["id"] = asked.id;
  body["model_name"] = model.name;
  body["model_version"] = model.version;
  Ordered list = Ordered::array();
  std::string tail;
  bool is_binary = false;
  for (const auto& [name, value] : outputs) {
    if (!asked.outputs.empty() && !has(asked.outputs, name)) continue;
    Ordered output;
    output["name"] = name;
    output["datatype"] = datatype_name(Datatype::kBytes);
    output["shape"] = {1};
    if (asked.outputs.empty() ? asked.is_binary : has(asked.binary, name)) {
      const std::string raw = raw_of_text(value);
      output["parameters"]["binary_data_size"] = raw.size();
      tail += raw;
      is_binary = true;
    } else {
      output["data"] = Ordered::array({value});
    }
    list.push_back(std::move(output));
  }
  body["outputs"] = std::move(list);
  HttpAnswer answer = json_answer(body);
  if (!is_binary) return answer;
  answer.content_type = "application/octet-stream";
  answer.headers.emplace_back("Inference-Header-Content-Length",
                              std::to_string(answer.body.size()));
  answer.body += tail;
  return answer;
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
  Json body = Json::object();
  body["error"] = status.text();
  HttpAnswer answer{
      .status = http_status(status), .content_type = kJsonType, .body = text_of(body)};
  add_status_headers(answer);
  return answer;
}

HttpAnswer triton_refusal(const HttpRefusal& why) {
  Json body = Json::object();
  body["error"] = why.text;
  HttpAnswer answer{.status = why.status, .content_type = kJsonType, .body = text_of(body)};
  add_status_headers(answer);
  return answer;
}

struct TritonFront::Served {
  Engine& engine;
  Sessions& sessions;
  const Options& options;

  const TritonModel& model() const { return options.model; }

  Status check_model(const HttpRequest& http) const {
    return model().check(http.parameter("model"), http.parameter("version"));
  }

  Result<InferRequest> read(const Json& values, const std::string& id) const {
    SPECD_TRY(InferRequest request, read_infer(values, id, random_seed()));
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
    const auto call =
        InferCall::start(engine, sessions, std::move(request), kHttpClient, std::move(sink));
    reply->when_gone([weak = std::weak_ptr(call)] {
      if (const auto there = weak.lock()) there->disconnect();
    });
  }

  Result<InferRequest> read_generate(const HttpRequest& http, bool is_stream) const {
    SPECD_OK_OR_RETURN(check_model(http));
    SPECD_TRY(Json values, read_object(http.body));
    SPECD_TRY(const std::string id, take_id(values));
    SPECD_OK_OR_RETURN(take_parameters(values, values));
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

  Result<InferRequest> read_infer_request(const HttpRequest& http, Tensors& tensors) const {
    SPECD_OK_OR_RETURN(check_model(http));
    SPECD_TRY(tensors, read_tensors(http, model()));
    SPECD_TRY(InferRequest request, read(tensors.values, tensors.id));
    tensors.values = Json::object();
    request.is_stream = false;
    return request;
  }

  void infer(const HttpRequest& http, const Reply& reply) const {
    Tensors tensors;
    Result<InferRequest> request = within_memory([&] { return read_infer_request(http, tensors); });
    if (!request.ok()) return refuse(request.status(), reply);
    HttpFields headers = headers_of(request.value());
    auto sink = std::make_shared<WholeAnswer>(
        reply, [this, tensors = std::move(tensors),
                headers = std::move(headers)](const InferOutputs& outputs) {
          HttpAnswer answer = inferred(model(), tensors, outputs);
          answer.headers.insert(answer.headers.end(), headers.begin(), headers.end());
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
      const Result<Json> body = read_object(text);
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
  made_ =
      std::make_shared<Served>(Served{.engine = engine, .sessions = sessions, .options = options_});
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
