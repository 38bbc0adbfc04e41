#include <set>

#include "core/device/cuda_device.h"
#include "core/engine/impl.h"

namespace specd {

kernels::DType kernel_dtype(KvDType dtype) {
  switch (dtype) {
    case KvDType::kF32:
      return kernels::DType::kF32;
    case KvDType::kF16:
      return kernels::DType::kF16;
    case KvDType::kBF16:
      return kernels::DType::kBF16;
  }
  return kernels::DType::kBF16;
}

const char* dtype_name(kernels::DType dtype) {
  switch (dtype) {
    case kernels::DType::kF32:
      return "f32";
    case kernels::DType::kF16:
      return "f16";
    case kernels::DType::kBF16:
      return "bf16";
  }
  return "unknown";
}

uint32_t abi_guarantee(Guarantee guarantee) {
  switch (guarantee) {
    case Guarantee::kNone:
      return SPECD_GUARANTEE_NONE;
    case Guarantee::kLaw:
      return SPECD_GUARANTEE_LAW;
    case Guarantee::kIdentical:
      return SPECD_GUARANTEE_IDENTICAL;
  }
  return SPECD_GUARANTEE_IDENTICAL;
}

const char* guarantee_text(Guarantee guarantee) { return guarantee_name(abi_guarantee(guarantee)); }

RouteSpec route_spec(const RouteOptions& route, const EngineOptions& options) {
  return {.name = route.name,
          .drafter_plugin = route.drafter.plugin,
          .drafter_factory = route.drafter.factory,
          .drafter_config = route.drafter.config,
          .verifier_plugin = route.verifier.plugin,
          .verifier_factory = route.verifier.factory,
          .verifier_config = route.verifier.config,
          .guarantee = abi_guarantee(route.guarantee),
          .is_strict = options.numerics != Numerics::kFast,
          .draft_nodes_max = route.draft_nodes_max,
          .disable_by_batch_size = route.disable_by_batch_size,
          .max_sequences = options.max_sequences};
}

Status out_of_range(const std::string& field, const std::string& expected,
                    const std::string& found) {
  return Status(Code::kInvalidArgument, field + ": expected " + expected + ", found " + found);
}

static_assert(EngineLimits::kDraftNodes == SPECD_MAX_TREE_NODES);

namespace {
Status in(const std::string& field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return Status();
  return out_of_range(field, std::to_string(low) + " to " + std::to_string(high),
                      std::to_string(value));
}
}  // namespace

Status check_route(const RouteOptions& route, const EngineOptions& options) {
  if (route.name.empty() || route.name == "off") {
    return Status(Code::kInvalidArgument,
                  "routes: name '" + route.name +
                      "' is empty or reserved; 'off' is plain decoding and always there");
  }
  const std::string where = "routes." + route.name;
  SPECD_OK_OR_RETURN(
      in(where + ".draft_nodes_max", route.draft_nodes_max, 1, EngineLimits::kDraftNodes));
  SPECD_OK_OR_RETURN(in(where + ".disable_by_batch_size", route.disable_by_batch_size, 0,
                        EngineLimits::kSequences));
  if (!route.model.empty() && route.model != options.model.name) {
    return out_of_range(where + ".model", "'" + options.model.name + "'", "'" + route.model + "'");
  }
  return Status();
}

bool is_device_name(const std::string& name) {
  return name == "cpu" || name == "auto" || cuda_index(name) >= 0;
}

Status check_limits(const EngineOptions& options) {
  SPECD_OK_OR_RETURN(
      in("engine.max_sequences", options.max_sequences, 1, EngineLimits::kSequences));
  SPECD_OK_OR_RETURN(in("engine.step_tokens_max", options.step_tokens_max, options.max_sequences,
                        EngineLimits::kStepTokens));
  SPECD_OK_OR_RETURN(in("engine.queue_max", options.queue_max, 1, EngineLimits::kQueue));
  SPECD_OK_OR_RETURN(
      in("engine.priority_aging_ms", options.priority_aging_ms, 1, EngineLimits::kPriorityAgingMs));
  if (options.devices.size() != 1) {
    return out_of_range("devices", "one of them: a model runs on one device",
                        std::to_string(options.devices.size()));
  }
  if (!is_device_name(options.devices.front())) {
    return out_of_range("devices", "cpu, cuda:N or auto", "'" + options.devices.front() + "'");
  }
  constexpr int32_t kCudaRows = 65535;  // kernels/cuda.h
  if (options.devices.front() != "cpu" && options.step_tokens_max > kCudaRows) {
    return out_of_range("engine.step_tokens_max",
                        "at most " + std::to_string(kCudaRows) + " on " + options.devices.front(),
                        std::to_string(options.step_tokens_max));
  }
  if (options.numerics == Numerics::kFast && cuda_index(options.devices.front()) < 0) {
    return out_of_range("engine.numerics",
                        "strict or bf16 on " + options.devices.front() + " (fast is for cuda:N)",
                        "fast");
  }
  if (options.numerics == Numerics::kBf16 && options.devices.front() != "cpu") {
    return out_of_range("engine.numerics",
                        "strict or fast on " + options.devices.front() + " (bf16 is for cpu)",
                        "bf16");
  }
  const ModelOptions& model = options.model;
  SPECD_OK_OR_RETURN(in("model.kv.pages", model.kv_pages, 0, EngineLimits::kKvPages));
  if (!(model.kv_memory_share >= 0 && model.kv_memory_share <= 1)) {
    return out_of_range("model.kv.memory_share", "more than 0, at most 1",
                        std::to_string(model.kv_memory_share));
  }
  if ((model.kv_bytes_max > 0) + (model.kv_memory_share > 0) + (model.kv_pages > 0) > 1) {
    return Status(Code::kInvalidArgument,
                  "model.kv: expected one of bytes_max, memory_share and pages, found several");
  }
  if (options.routes.size() > EngineLimits::kRoutes) {
    return out_of_range("routes", "at most " + std::to_string(EngineLimits::kRoutes),
                        std::to_string(options.routes.size()));
  }
  std::set<std::string> models{options.model.name};
  for (const DraftModelOptions& draft : options.draft_models) {
    if (draft.name.empty() || !models.insert(draft.name).second) {
      return Status(Code::kInvalidArgument,
                    "draft_models: name '" + draft.name + "' is empty or given twice");
    }
  }
  std::set<std::string> names{"off"};
  for (const RouteOptions& route : options.routes) {
    SPECD_OK_OR_RETURN(check_route(route, options));
    if (!names.insert(route.name).second) {
      return Status(Code::kInvalidArgument, "routes: name '" + route.name + "' is given twice");
    }
  }
  if (!names.contains(options.default_route)) {
    return Status(Code::kInvalidArgument,
                  "default_route: no route is called '" + options.default_route + "'");
  }
  return Status();
}

Result<int32_t> kv_pages_of(const ModelOptions& model, const Device& device, uint64_t page_bytes,
                            uint64_t useful) {
  constexpr uint64_t kDefaultKvBytesMax = uint64_t{1} << 30;
  if (model.kv_pages > 0) return model.kv_pages;
  const char* key = model.kv_memory_share > 0 ? "model.kv.memory_share" : "model.kv.bytes_max";
  uint64_t bytes = std::min(kDefaultKvBytesMax, useful * page_bytes);
  if (model.kv_bytes_max > 0) bytes = model.kv_bytes_max;
  if (model.kv_memory_share > 0) {
    bytes =
        static_cast<uint64_t>(static_cast<double>(device.total_bytes()) * model.kv_memory_share);
  }
  if (bytes < page_bytes) {
    return Status(Code::kInvalidArgument, std::string(key) + ": " + std::to_string(bytes) +
                                              " bytes hold no page; one takes " +
                                              std::to_string(page_bytes));
  }
  return static_cast<int32_t>(std::min<uint64_t>(bytes / page_bytes, EngineLimits::kKvPages));
}

ChatTemplate load_chat_template(const ModelOptions& model) {
  ChatTemplate loaded = ChatTemplate::load(model.path, model.chat_template);
  if (const Status& status = loaded.status(); !status.ok()) {
    log(loaded.source().empty() ? LogLevel::kInfo : LogLevel::kWarn,
        model.name + " serves no chats: " + status.message());
  }
  return loaded;
}

Status check_options(const EngineOptions& options) {
  SPECD_OK_OR_RETURN(check_limits(options));
  SPECD_TRY(const auto device,
            CpuDevice::create(options.isa, 1, options.numerics == Numerics::kBf16));
  if (const int32_t index = cuda_index(options.devices.front()); index >= 0) {
    const auto opened = open_cuda_device(index, {});
    if (!opened.ok()) return opened.status().with_context("devices");
  }
  SPECD_TRY(ModelConfig config, load_model_config(options.model.path));
  SPECD_OK_OR_RETURN(load_eos_tokens(options.model.path, config.vocab_size, config.eos_tokens));
  if (options.model.generation_config) {
    SPECD_OK_OR_RETURN(load_generation_config(options.model.path).status());
  }
  SPECD_TRY(const auto tokenizer, Tokenizer::load(options.model.path + "/tokenizer.json"));
  SPECD_OK_OR_RETURN(check_vocabulary(options.model.path, config, *tokenizer));
  const ChatTemplate chat_template = load_chat_template(options.model);
  // One that was asked for must do; a model whose own does not still serves text.
  if (!options.model.chat_template.empty()) {
    SPECD_OK_OR_RETURN(chat_template.status().with_context("model.chat_template"));
  }
  SPECD_TRY(const Checkpoint weights, Checkpoint::open(options.model.path));
  SPECD_OK_OR_RETURN(check_tensors(weights, config));
  // A share of another device's memory is known when it is opened to load.
  if (options.devices.front() == "cpu" || options.model.kv_memory_share == 0) {
    const uint64_t page_bytes = KvStore::page_bytes(config, kernel_dtype(options.model.kv_dtype));
    SPECD_OK_OR_RETURN(kv_pages_of(options.model, *device, page_bytes, 1).status());
  }
  PagePool no_pages(0);
  ModelService draft_models(*device, no_pages);
  for (const DraftModelOptions& model : options.draft_models) {
    draft_models.add(check_draft_model(model.name, model.path, kernel_dtype(model.kv_dtype),
                                       {config, *tokenizer}));
    const Status& status = draft_models.models().back()->status;
    if (!status.ok()) return status.with_context("draft_models." + model.name);
  }
  if (options.routes.empty()) return Status();
  // Plugins keep the host for ever, so these services must outlive this call.
  static const auto cpu = CpuDevice::create("", 1).value();
  static Services services(*cpu, *cpu, config.vocab_size);
  static const specd_host* const host = make_host(&services);
  SPECD_TRY(const auto registry,
            PluginRegistry::open({.directories = options.plugin_directories,
                                  .cache_directory = options.plugin_cache_directory},
                                 host));
  ModelFacts target;
  target.fill(options.model.name, config, *tokenizer);
  services.set_models(&draft_models);
  Status status;
  for (const RouteOptions& route : options.routes) {
    const RouteSpec spec = route_spec(route, options);
    const auto made = create_route(*registry, spec, target.info);
    status = made.status();
    const std::string& device_name = options.devices.front();
    if (made.ok()) {
      status = device_name == "cpu" ? activate_route(*made.value(), spec, *cpu)
                                    : place(*made.value(), spec, false, device_name).status();
    }
    if (status.ok()) continue;
    status = status.with_context("routes." + route.name);
    break;
  }
  services.set_models(nullptr);
  return status;
}

}  // namespace specd
