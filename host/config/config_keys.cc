#include "host/config/config_keys.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <charconv>
#include <filesystem>
#include <utility>

#include "core/base/quote.h"
#include "host/config/config.h"
#include "host/base/unix_socket.h"

namespace specd::host {
namespace {

using Type = Key::Type;

constexpr int64_t kDrainSecondsMax = 86'400;
constexpr int64_t kStallSecondsMax = 86'400;
constexpr char kSocketScheme[] = "unix:";

// ---- values of a form of their own -------------------------------------------------------------

Result<std::string> read_listen(const Value& value) {
  SPECD_TRY(const std::string listen, read_text(value));
  const std::string scheme = kSocketScheme;
  if (!listen.starts_with(scheme) || listen.size() == scheme.size())
    return value.error("expected unix:PATH, found " + quote(listen) +
                       "; only Unix sockets are served, TCP will need mutual TLS");
  std::string given = listen.substr(scheme.size());
  if (given.starts_with("//")) given.erase(0, 2);  // unix:///run/x
  const auto no_socket = [&] {
    return value.error("expected unix:PATH of a socket, found " + quote(listen));
  };
  if (given.empty()) return no_socket();
  SPECD_TRY(std::string path, resolve_path(value, given));
  if (path.ends_with('/')) return no_socket();  // "x/", and ".." of it
  if (path.size() > kSocketPathMax)
    return value.error("expected at most " + std::to_string(kSocketPathMax) +
                       " bytes for the path of a Unix socket, found " +
                       std::to_string(path.size()) + ": " + quote(path));
  const std::string folder = std::filesystem::path(path).parent_path().string();
  std::error_code failure;
  if (!std::filesystem::is_directory(folder, failure))
    return value.error("expected a socket in an existing folder; there is no folder " + folder +
                       " (create it, private to the user of specd)");
  const auto there = std::filesystem::symlink_status(path, failure).type();
  using std::filesystem::file_type;  // none: whoever checks may not search the folder
  if (there != file_type::none && there != file_type::not_found && there != file_type::socket)
    return value.error("expected the path of a socket or of nothing yet; " + quote(path) +
                       " is something else: remove it or set another one");
  return path;
}

Json show_listen(const std::string& path) {
  return path.empty() ? Json() : Json(kSocketScheme + path);
}

// "ADDRESS:PORT" with a literal address; an IPv6 one stands in brackets.
Status read_http_listen(const Value& value, HttpOptions& http) {
  SPECD_TRY(const std::string listen, read_text(value));
  const auto refuse = [&](const std::string& why) {
    return value.error("expected ADDRESS:PORT such as 127.0.0.1:9090 or [::1]:9090, found " +
                       quote(listen) + why);
  };
  const size_t colon = listen.rfind(':');
  if (colon == std::string::npos) return refuse("");
  std::string address = listen.substr(0, colon);
  const bool brackets = address.size() > 2 && address.front() == '[' && address.back() == ']';
  if (brackets) address = address.substr(1, address.size() - 2);
  const std::string port = listen.substr(colon + 1);
  const auto [end, bad] = std::from_chars(port.data(), port.data() + port.size(), http.port);
  if (bad != std::errc() || end != port.data() + port.size() || (port.size() > 1 && port[0] == '0'))
    return refuse("; a port is a number from 0 (any free one) to 65535");
  in_addr v4{};
  in6_addr v6{};
  if (brackets ? inet_pton(AF_INET6, address.c_str(), &v6) != 1
               : inet_pton(AF_INET, address.c_str(), &v4) != 1)
    return refuse("; names are not resolved, write the address");
  // Metrics have no password: who wants them on a network says on which address.
  if (brackets
          ? IN6_IS_ADDR_UNSPECIFIED(&v6) || IN6_IS_ADDR_MULTICAST(&v6) || IN6_IS_ADDR_V4MAPPED(&v6)
          : v4.s_addr == htonl(INADDR_ANY) || v4.s_addr == htonl(INADDR_BROADCAST) ||
                IN_MULTICAST(ntohl(v4.s_addr)))
    return refuse("; that is not one address of this machine: name the one to listen on");
  http.address = address;
  return Status();
}

KeyOf<HttpOptions> http_listen() {
  Key key =
      make_key("listen", Type::kText,
               "where `/metrics`, `/health/live` and `/health/ready` are served: a literal "
               "address (`127.0.0.1:9090`, `'[::1]:9090'`), no wildcard; port 0 = a free one, "
               "logged");
  key.form = "`ADDRESS:PORT`";
  key.pattern = R"(^([0-9.]+|\[[0-9A-Fa-f:.]+\]):(0|[1-9][0-9]{0,4})$)";
  key.read = [](const Value& value, void* target) {
    return read_http_listen(value, *static_cast<HttpOptions*>(target));
  };
  key.show = [](const void* target) {
    const auto& http = *static_cast<const HttpOptions*>(target);
    const bool is_v6 = http.address.find(':') != std::string::npos;
    return Json((is_v6 ? "[" + http.address + "]" : http.address) + ":" +
                std::to_string(http.port));
  };
  return KeyOf<HttpOptions>{std::move(key)}.required();
}

KeyOf<EngineOptions> devices() {
  Key item = make_key("", Type::kText, "");
  item.form = "`cpu`, `cuda:N` or `auto`";
  item.pattern = "^(cpu|auto|cuda:[0-9]{1,4})$";
  Key key =
      make_key("devices", Type::kList,
               "where models run, one item; `auto` is cuda:0 where it can be had, else the CPU; "
               "see the root README for what has run on a GPU");
  key.min = key.max = 1;
  key.keys = {item};
  return scalar(
      std::move(key), &EngineOptions::devices,
      [](const Value& value) -> Result<std::vector<std::string>> {
        const bool is_list = value.node().kind == YamlNode::Kind::kSequence;
        const size_t size = value.node().items.size();
        if (!is_list || size != 1)
          return value.error(
              "expected a list of one device (several cannot share a model yet), found " +
              (is_list ? "a list of " + std::to_string(size) : value.found()));
        SPECD_TRY(std::string one, read_text(value.item(0)));
        return std::vector<std::string>{std::move(one)};
      },
      [](const std::vector<std::string>& names) { return Json(names); });
}

// ---- the table ---------------------------------------------------------------------------------

const Choices<KvDType> kKvDTypes{
    {"f32", KvDType::kF32}, {"f16", KvDType::kF16}, {"bf16", KvDType::kBF16}};
const Choices<LogLevel> kLogLevels{{"debug", LogLevel::kDebug},
                                   {"info", LogLevel::kInfo},
                                   {"warn", LogLevel::kWarn},
                                   {"error", LogLevel::kError},
                                   {"off", LogLevel::kOff}};
const Choices<std::string> kIsas{
    {"auto", ""}, {"scalar", "scalar"}, {"avx2", "avx2"}, {"avx512", "avx512"}};
const Choices<Numerics> kNumerics{
    {"strict", Numerics::kStrict}, {"bf16", Numerics::kBf16}, {"fast", Numerics::kFast}};
const Choices<Guarantee> kGuarantees{
    {"identical", Guarantee::kIdentical}, {"law", Guarantee::kLaw}, {"none", Guarantee::kNone}};
constexpr char kModelFolder[] =
    "a folder with config.json, the weights as safetensors and tokenizer.json";

Keys<HttpOptions> http_keys() {
  return {http_listen(), integer("stall_seconds", &HttpOptions::stall_seconds, 1, kStallSecondsMax,
                                 "a step that takes longer makes `/health/live` fail")};
}

Keys<EngineOptions> engine_keys() {
  using O = EngineOptions;
  using L = EngineLimits;
  return {
      integer("threads", &O::threads, 0, L::kThreads, "0 = one per core"),
      choice("isa", &O::isa, kIsas, "instructions of the CPU; the text is the same on all"),
      choice("numerics", &O::numerics, kNumerics,
             "`strict`: drafts change no token; `bf16`: activations rounded to bfloat16 on a CPU "
             "with AVX-512 BF16, faster, other texts than strict's, and drafts change none of them "
             "on one model of processor; `fast`: cuBLASLt on `devices: [cuda:N]`, where "
             "routes reach the guarantee `law` at most"),
      integer("max_sequences", &O::max_sequences, 1, L::kSequences, "sequences in one step"),
      integer("step_tokens_max", &O::step_tokens_max, 1, L::kStepTokens,
              "rows of one step, prefill and drafts together; at least `max_sequences`"),
      integer("queue_max", &O::queue_max, 1, L::kQueue, "waiting requests; more are refused"),
      integer("priority_aging_ms", &O::priority_aging_ms, 1, L::kPriorityAgingMs,
              "waiting this long is worth one level of a request's `priority`"),
  };
}

Keys<ModelOptions> model_keys() {
  using O = ModelOptions;
  return {
      name("name", &O::name, "what routes and reports call it").required(),
      folder("path", &O::path, kModelFolder).required(),
      path(
          "chat_template", &O::chat_template,
          "a file with the Jinja template for messages, instead of chat_template.jinja or the one in "
          "tokenizer_config.json")
          .absent("the model's own"),
      boolean(
          "generation_config", &O::generation_config,
          "what generation_config.json says of sampling holds where a request says nothing; its "
          "end tokens hold in any case"),
      section<O>(
          "kv",
          {
              choice("dtype", &O::kv_dtype, kKvDTypes, "of the numbers in the cache"),
              bytes("bytes_max", &O::kv_bytes_max, "memory of the cache")
                  .absent("full contexts, at most 1 GiB"),
              share("memory_share", &O::kv_memory_share,
                    "instead of `bytes_max`: share of the device's memory"),
              integer("pages", &O::kv_pages, 1, EngineLimits::kKvPages,
                      "instead of `bytes_max`: pages of 16 tokens"),
              boolean("prefix_cache", &O::prefix_cache,
                      "pages of finished prompts and texts serve the next prompt that begins "
                      "alike"),
          },
          "the cache of keys and values")
          .at_most_one("the size", {"bytes_max", "memory_share", "pages"}),
  };
}

Keys<DraftModelOptions> draft_model_keys() {
  using O = DraftModelOptions;
  return {
      name("name", &O::name, "what drafters call it; no other model has it").required(),
      folder("path", &O::path, kModelFolder).required(),
      section<O>("kv",
                 {choice("dtype", &O::kv_dtype, kKvDTypes,
                         "its KV lies in the pages of `model.kv` and counts against their limit")},
                 "its cache of keys and values"),
  };
}

Keys<PluginUse> use_keys() {
  return {name("plugin", &PluginUse::plugin, "the plugin's id").required(),
          name("factory", &PluginUse::factory, "which of the plugin's factories")
              .absent("the only one of its kind"),
          free_mapping("config", &PluginUse::config, "what the plugin documents")};
}

Keys<RouteOptions> route_keys() {
  using O = RouteOptions;
  return {
      name("model", &O::model, "the name of the model that is served").absent("the model"),
      choice(
          "guarantee", &O::guarantee, kGuarantees,
          "the least that is accepted of the pair: `identical`, the very tokens of plain decoding; "
          "`law`, tokens drawn by the same distribution; `none`, lossy"),
      integer("draft_nodes_max", &O::draft_nodes_max, 1, EngineLimits::kDraftNodes,
              "per sequence and step, less than `step_tokens_max`"),
      integer("disable_by_batch_size", &O::disable_by_batch_size, 0, EngineLimits::kSequences,
              "no drafts while more than so many sequences run; 0 = never"),
      section("drafter", &O::drafter, use_keys(), "who guesses").required(),
      section("verifier", &O::verifier, use_keys(), "who judges").required(),
  };
}

KeyOf<EngineOptions> routes() {
  KeyOf<EngineOptions> made = named(
      "routes", &EngineOptions::routes, &RouteOptions::name, route_keys(),
      "a drafter, a verifier and their limits, by name; `off` is plain decoding and always there");
  made.key.max = static_cast<int64_t>(EngineLimits::kRoutes);
  made.key.element = "a route";
  made.key.reserved = "off";
  return made;
}

Keys<EngineOptions> plugins_keys() {
  static constexpr char kDirectory[] = "a folder whose subfolders are plugins (is it built?)";
  return {
      list("directories", &EngineOptions::plugin_directories, make_key("", Type::kPath, ""),
           "each subfolder is a plugin",
           [](const Value& value) { return read_folder(value, kDirectory); })
          .required(),
      path("cache_directory", &EngineOptions::plugin_cache_directory,
           "private copies of plugin libraries")
          .absent("`$CACHE_DIRECTORY`, `$XDG_CACHE_HOME/specd`, `$HOME/.cache/specd` or "
                  "`/var/cache/specd`"),
  };
}

Keys<Config> root_keys() {
  const Keys<Config> host{
      text("listen", &Config::socket_path, "`unix:PATH`", "^unix:[^\\u0000-\\u001f\\u007f]+$",
           "the socket; its folder exists, the path has at most 107 bytes", read_listen,
           show_listen)
          .required(),
      section("http", &Config::http, http_keys(), "metrics and probes").absent("no listener"),
      choice("log_level", &Config::log_level, kLogLevels, "the least that is logged"),
      integer("drain_seconds", &Config::drain_seconds, 0, kDrainSecondsMax,
              "how long running requests may finish after SIGTERM"),
  };
  const Keys<EngineOptions> engine{
      devices(),
      section("engine", engine_keys(), "the step loop"),
      section("model", &EngineOptions::model, model_keys(), "the target model").required(),
      list("draft_models", &EngineOptions::draft_models, draft_model_keys(),
           "models that drafters may use beside the target; one that does not fit it (other "
           "tokens, other layout) is refused with the reason, and so are the routes that need it"),
      section("plugins", plugins_keys(), "where plugins are"),
      name("default_route", &EngineOptions::default_route, "for requests that name none"),
      routes(),
  };
  return host + inside(&Config::engine, engine);
}

template <typename T>
Key section_of(Keys<T> keys) {
  return section<T>("", std::move(keys), "").key;
}

void visit_keys(const Key& key, const std::string& path,
                const std::function<void(const std::string&, const Key&)>& visit) {
  switch (key.type) {
    case Type::kSection:
      for (const Key& one : key.keys)
        visit_keys(one, path.empty() ? one.name : path + "." + one.name, visit);
      return;
    case Type::kList:
      return visit_keys(key.keys[0], path + "[]", visit);
    case Type::kNamed:
      return visit_keys(key.keys[0], path + ".NAME", visit);
    default:
      visit(path, key);
  }
}

}  // namespace

const Key& config_keys() {
  static const Key root = section_of(root_keys());
  return root;
}

const Key& route_file_keys() {
  static const Key root = section_of(Keys<RouteOptions>{name("name", &RouteOptions::name, "of the route").required()} +
      route_keys());
  return root;
}

void for_each_key(const std::function<void(const std::string& path, const Key& key)>& visit) {
  visit_keys(config_keys(), "", visit);
}

}  // namespace specd::host
