#include "host/config/config_keys.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <charconv>
#include <filesystem>
#include <optional>
#include <utility>

#include "core/base/quote.h"
#include "host/base/unix_socket.h"
#include "host/config/config.h"
#include "host/config/config_fields.h"

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
  using std::filesystem::file_type;  // none: the user who checks may not search the folder
  if (there != file_type::none && there != file_type::not_found && there != file_type::socket)
    return value.error("expected the path of a socket or of nothing yet; " + quote(path) +
                       " is something else: remove it or set another one");
  return kSocketScheme + path;
}

std::string without_brackets(const std::string& address) {
  const bool has_them = address.size() > 2 && address.front() == '[' && address.back() == ']';
  return has_them ? address.substr(1, address.size() - 2) : address;
}

std::optional<uint16_t> read_port(std::string_view digits) {
  uint16_t port = 0;
  const auto [end, bad] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (bad != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return port;
}

// "ADDRESS:PORT" with a literal address; an IPv6 one stands in brackets.
Result<std::string> read_http_listen(const Value& value) {
  SPECD_TRY(const std::string listen, read_text(value));
  const auto refuse = [&](const std::string& why) {
    return value.error("expected ADDRESS:PORT such as 127.0.0.1:9090 or [::1]:9090, found " +
                       quote(listen) + why);
  };
  const size_t colon = listen.rfind(':');
  if (colon == std::string::npos) return refuse("");
  const std::string shown = listen.substr(0, colon), address = without_brackets(shown);
  const bool brackets = shown.size() != address.size();
  const std::string port = listen.substr(colon + 1);
  if (!read_port(port) || (port.size() > 1 && port[0] == '0'))
    return refuse("; a port is a number from 0 (any free one) to 65535");
  in_addr v4{};
  in6_addr v6{};
  if (brackets ? inet_pton(AF_INET6, address.c_str(), &v6) != 1
               : inet_pton(AF_INET, address.c_str(), &v4) != 1)
    return refuse("; names are not resolved, write the address");
  // Metrics have no password, so wildcards are refused: name the address to serve them on.
  if (brackets
          ? IN6_IS_ADDR_UNSPECIFIED(&v6) || IN6_IS_ADDR_MULTICAST(&v6) || IN6_IS_ADDR_V4MAPPED(&v6)
          : v4.s_addr == htonl(INADDR_ANY) || v4.s_addr == htonl(INADDR_BROADCAST) ||
                IN_MULTICAST(ntohl(v4.s_addr)))
    return refuse("; that is not one address of this machine: name the one to listen on");
  return listen;
}

// REQUIRES what read_http_listen() gave
void set_http_listen(const std::string& listen, HttpOptions& http) {
  const size_t colon = listen.rfind(':');
  http.address = without_brackets(listen.substr(0, colon));
  http.port = *read_port(listen.substr(colon + 1));
}

std::string http_listen_of(const HttpOptions& http) {
  if (http.address.empty()) return "";
  const bool is_v6 = http.address.find(':') != std::string::npos;
  return (is_v6 ? "[" + http.address + "]" : http.address) + ":" + std::to_string(http.port);
}

// ---- keys as data ------------------------------------------------------------------------------

Key make_key(const char* name, Type type, const char* meaning) {
  Key key;
  key.name = name;
  key.type = type;
  key.meaning = meaning;
  return key;
}
Key section(const char* name, const char* meaning) {
  return make_key(name, Type::kSection, meaning);
}
Key name(const char* key_name, const char* meaning) {
  return make_key(key_name, Type::kName, meaning);
}
Key path(const char* name, const char* meaning) { return make_key(name, Type::kPath, meaning); }
Key word(const char* name, const char* meaning) { return make_key(name, Type::kChoice, meaning); }
Key boolean(const char* name, const char* meaning) {
  return make_key(name, Type::kBoolean, meaning);
}
Key integer(const char* name, int64_t min, int64_t max, const char* meaning) {
  Key key = make_key(name, Type::kInteger, meaning);
  key.min = min;
  key.max = max;
  return key;
}
Key bytes(const char* name, const char* meaning) {
  Key key = make_key(name, Type::kBytes, meaning);
  key.min = 1;
  key.max = kBytesValueMax;
  return key;
}
// A path of a folder that exists.
Key folder(const char* name, const char* what, const char* meaning) {
  Key key = path(name, meaning);
  key.expected = what;
  return key;
}
Key text(const char* name, const char* form, const char* pattern, const char* meaning) {
  Key key = make_key(name, Type::kText, meaning);
  key.form = form;
  key.pattern = pattern;
  return key;
}
Key list(const char* name, Key item, const char* meaning) {
  Key key = make_key(name, Type::kList, meaning);
  key.keys.push_back(std::move(item));
  return key;
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

void keys_of(Fields& v, HttpOptions& http) {
  Key listen =
      text("listen", "`ADDRESS:PORT`", R"(^([0-9.]+|\[[0-9A-Fa-f:.]+\]):(0|[1-9][0-9]{0,4})$)",
           "where `/metrics`, `/health/live` and `/health/ready` are served: a literal "
           "address (`127.0.0.1:9090`, `'[::1]:9090'`), no wildcard; port 0 = a free one, "
           "logged")
          .required();
  listen.read = read_http_listen;
  v.text(
      listen, [&](const std::string& given) { set_http_listen(given, http); },
      [&] { return http_listen_of(http); });
  v.value(integer("stall_seconds", 1, kStallSecondsMax,
                  "a step that takes longer makes `/health/live` fail"),
          http.stall_seconds);
}

void keys_of_engine(Fields& v, EngineOptions& o) {
  using L = EngineLimits;
  v.value(integer("threads", 0, L::kThreads, "0 = one per core"), o.threads);
  v.choice(word("isa", "instructions of the CPU; the text is the same on all"), o.isa, kIsas);
  v.choice(
      word("numerics",
           "`strict`: drafts change no token; `bf16`: activations rounded to bfloat16 on a CPU "
           "with AVX-512 BF16, faster, other texts than strict's, and drafts change none of them "
           "on one model of processor; `fast`: cuBLASLt on `devices: [cuda:N]`, where "
           "routes reach the guarantee `law` at most"),
      o.numerics, kNumerics);
  v.value(integer("max_sequences", 1, L::kSequences, "sequences in one step"), o.max_sequences);
  v.value(integer("step_tokens_max", 1, L::kStepTokens,
                  "rows of one step, prefill and drafts together; at least `max_sequences`"),
          o.step_tokens_max);
  v.value(integer("queue_max", 1, L::kQueue, "waiting requests; more are refused"), o.queue_max);
  v.value(integer("priority_aging_ms", 1, L::kPriorityAgingMs,
                  "waiting this long is worth one level of a request's `priority`"),
          o.priority_aging_ms);
}

void keys_of(Fields& v, ModelOptions& o) {
  v.value(name("name", "what routes and reports call it").required(), o.name);
  v.value(folder("path", kModelFolder, kModelFolder).required(), o.path);
  v.value(
      path(
          "chat_template",
          "a file with the Jinja template for messages, instead of chat_template.jinja or the one in "
          "tokenizer_config.json")
          .absent("the model's own"),
      o.chat_template);
  v.value(
      boolean(
          "generation_config",
          "what generation_config.json says of sampling holds where a request says nothing; its "
          "end tokens hold in any case"),
      o.generation_config);
  Key kv = section("kv", "the cache of keys and values");
  kv.exclusive = {"bytes_max", "memory_share", "pages"};
  v.section(kv, [&](Fields& in) {
    in.choice(word("dtype", "of the numbers in the cache"), o.kv_dtype, kKvDTypes);
    in.value(bytes("bytes_max", "memory of the cache").absent("full contexts, at most 1 GiB"),
             o.kv_bytes_max);
    in.value(make_key("memory_share", Type::kShare,
                      "instead of `bytes_max`: share of the device's memory"),
             o.kv_memory_share);
    in.value(
        integer("pages", 1, EngineLimits::kKvPages, "instead of `bytes_max`: pages of 16 tokens"),
        o.kv_pages);
    in.value(boolean("prefix_cache",
                     "pages of finished prompts and texts serve the next prompt that begins alike"),
             o.prefix_cache);
  });
}

void keys_of(Fields& v, DraftModelOptions& o) {
  v.value(name("name", "what drafters call it; no other model has it").required(), o.name);
  v.value(folder("path", kModelFolder, kModelFolder).required(), o.path);
  v.section(section("kv", "its cache of keys and values"), [&](Fields& in) {
    in.choice(
        word("dtype", "its KV lies in the pages of `model.kv` and counts against their limit"),
        o.kv_dtype, kKvDTypes);
  });
}

void keys_of(Fields& v, PluginUse& use) {
  v.value(name("plugin", "the plugin's id").required(), use.plugin);
  v.value(name("factory", "which of the plugin's factories").absent("the only one of its kind"),
          use.factory);
  v.value(make_key("config", Type::kFree, "what the plugin documents"), use.config);
}

void keys_of(Fields& v, RouteOptions& o) {
  v.value(name("model", "the name of the model that is served").absent("the model"), o.model);
  v.choice(
      word(
          "guarantee",
          "the least that is accepted of the pair: `identical`, the very tokens of plain decoding; "
          "`law`, tokens drawn by the same distribution; `none`, lossy"),
      o.guarantee, kGuarantees);
  v.value(integer("draft_nodes_max", 1, EngineLimits::kDraftNodes,
                  "per sequence and step, less than `step_tokens_max`"),
          o.draft_nodes_max);
  v.value(integer("disable_by_batch_size", 0, EngineLimits::kSequences,
                  "no drafts while more than so many sequences run; 0 = never"),
          o.disable_by_batch_size);
  v.section(section("drafter", "who guesses").required(),
            [&](Fields& in) { keys_of(in, o.drafter); });
  v.section(section("verifier", "who judges").required(),
            [&](Fields& in) { keys_of(in, o.verifier); });
}

// Of a route that stands alone.
void keys_of_file(Fields& v, RouteOptions& o) {
  v.value(name("name", "of the route").required(), o.name);
  keys_of(v, o);
}

void keys_of(Fields& v, Config& config) {
  const auto fields = [](Fields& in, auto& member) { keys_of(in, member); };
  EngineOptions& engine = config.engine;
  Key listen = text("listen", "`unix:PATH`", "^unix:[^\\u0000-\\u001f\\u007f]+$",
                    "the socket; its folder exists, the path has at most 107 bytes")
                   .required();
  listen.read = read_listen;
  const size_t scheme = std::string_view(kSocketScheme).size();
  v.text(
      listen, [&](const std::string& given) { config.socket_path = given.substr(scheme); },
      [&] { return kSocketScheme + config.socket_path; });
  v.section_if(section("http", "metrics and probes").absent("no listener"), config.http, fields);
  v.choice(word("log_level", "the least that is logged"), config.log_level, kLogLevels);
  v.value(integer("drain_seconds", 0, kDrainSecondsMax,
                  "how long running requests may finish after SIGTERM"),
          config.drain_seconds);
  Key devices =
      list("devices", text("", "`cpu`, `cuda:N` or `auto`", "^(cpu|auto|cuda:[0-9]{1,4})$", ""),
           "where models run, one item; `auto` is cuda:0 where it can be had, else the CPU; "
           "see the root README for what has run on a GPU");
  devices.min = devices.max = 1;
  devices.expected = "a list of one device (several cannot share a model yet)";
  v.value(devices, engine.devices);
  v.section(section("engine", "the step loop"), [&](Fields& in) { keys_of_engine(in, engine); });
  v.section(section("model", "the target model").required(),
            [&](Fields& in) { keys_of(in, engine.model); });
  v.each(
      make_key(
          "draft_models", Type::kList,
          "models that drafters may use beside the target; one that does not fit it (other "
          "tokens, other layout) is refused with the reason, and so are the routes that need it"),
      engine.draft_models, fields);
  v.section(section("plugins", "where plugins are"), [&](Fields& in) {
    Key each = folder("", "a folder whose subfolders are plugins (is it built?)", "");
    in.value(list("directories", each, "each subfolder is a plugin").required(),
             engine.plugin_directories);
    in.value(path("cache_directory", "private copies of plugin libraries")
                 .absent("`$CACHE_DIRECTORY`, `$XDG_CACHE_HOME/specd`, `$HOME/.cache/specd` or "
                         "`/var/cache/specd`"),
             engine.plugin_cache_directory);
  });
  v.value(name("default_route", "for requests that name none"), engine.default_route);
  Key routes = make_key(
      "routes", Type::kNamed,
      "a drafter, a verifier and their limits, by name; `off` is plain decoding and always there");
  routes.max = static_cast<int64_t>(EngineLimits::kRoutes);
  routes.expected = "a route";
  routes.reserved = "off";
  v.each(routes, engine.routes, fields, &RouteOptions::name);
}

Key root_section(auto keys_of) {
  Key root = section("", "");
  root.keys = Fields::table(keys_of);
  return root;
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
  static Config fresh;  // its members are the defaults
  static const Key root = root_section([](Fields& v) { keys_of(v, fresh); });
  return root;
}

const Key& route_file_keys() {
  static RouteOptions fresh;
  static const Key root = root_section([](Fields& v) { keys_of_file(v, fresh); });
  return root;
}

void load(const Json& values, Config& config) {
  Fields::load(values, [&](Fields& v) { keys_of(v, config); });
}

void load(const Json& values, RouteOptions& route) {
  Fields::load(values, [&](Fields& v) { keys_of_file(v, route); });
}

Json save(Config config) {
  return Fields::save([&](Fields& v) { keys_of(v, config); });
}

Json save(RouteOptions route) {
  return Fields::save([&](Fields& v) { keys_of_file(v, route); });
}

void for_each_key(const std::function<void(const std::string& path, const Key& key)>& visit) {
  visit_keys(config_keys(), "", visit);
}

}  // namespace specd::host
