#include "host/config/config_keys.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pwd.h>

#include <charconv>
#include <concepts>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/base/quote.h"
#include "host/base/unix_socket.h"
#include "host/config/config.h"

namespace specd::host {
namespace {

using Type = Key::Type;
template <typename V>
using Choices = std::vector<std::pair<std::string, V>>;

constexpr int64_t kDrainSecondsMax = 86'400;
constexpr int64_t kStallSecondsMax = 86'400;
constexpr int64_t kRequestsOfUserMax = 1'000'000;
const std::string kSocketScheme = "unix:";

// ---- values with readers of their own ----------------------------------------------------------

Result<std::string> read_listen(const Value& value) {
  SPECD_TRY(const std::string listen, read_text(value));
  if (!listen.starts_with(kSocketScheme) || listen.size() == kSocketScheme.size())
    return value.error("expected unix:PATH, found " + quote(listen) +
                       "; TCP is served at `tcp.listen`");
  std::string given = listen.substr(kSocketScheme.size());
  if (given.starts_with("//")) given.erase(0, 2);  // unix:///run/x
  const auto no_socket = [&] {
    return value.error("expected unix:PATH of a socket, found " + quote(listen));
  };
  if (given.empty()) return no_socket();
  SPECD_TRY(std::string path, resolve_path(value, given));
  if (path.ends_with('/')) return no_socket();  // from "x/" or ".."
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

// The address in "ADDRESS:PORT", without the brackets of an IPv6 one.
std::string address_of(const std::string& listen) {
  const std::string address = listen.substr(0, listen.rfind(':'));
  const bool has_brackets = address.starts_with('[') && address.ends_with(']');
  return has_brackets ? address.substr(1, address.size() - 2) : address;
}

// "ADDRESS:PORT" with a literal address; an IPv6 one is in brackets. `may_be_any`: or a wildcard.
Result<std::string> read_address(const Value& value, bool may_be_any) {
  SPECD_TRY(const std::string listen, read_text(value));
  const auto refuse = [&](const std::string& why) {
    return value.error("expected ADDRESS:PORT such as 127.0.0.1:9090 or [::1]:9090, found " +
                       quote(listen) + why);
  };
  const size_t colon = listen.rfind(':');
  if (colon == std::string::npos) return refuse("");
  uint16_t port = 0;
  const char* const digits = listen.data() + colon + 1;
  const char* const listen_end = listen.data() + listen.size();
  const auto [end, bad] = std::from_chars(digits, listen_end, port);
  if (bad != std::errc() || end != listen_end || (end - digits > 1 && *digits == '0'))
    return refuse("; a port is a number from 0 (any free one) to 65535");
  const std::string address = address_of(listen);
  const bool is_v6 = listen.starts_with('[');
  in_addr v4{};
  in6_addr v6{};
  if (is_v6 ? inet_pton(AF_INET6, address.c_str(), &v6) != 1
            : inet_pton(AF_INET, address.c_str(), &v4) != 1)
    return refuse("; names are not resolved, write the address");
  const bool is_any = is_v6 ? IN6_IS_ADDR_UNSPECIFIED(&v6) != 0 : v4.s_addr == htonl(INADDR_ANY);
  if (is_any && may_be_any) return listen;
  if (is_any || (is_v6 ? IN6_IS_ADDR_MULTICAST(&v6) || IN6_IS_ADDR_V4MAPPED(&v6)
                       : v4.s_addr == htonl(INADDR_BROADCAST) || IN_MULTICAST(ntohl(v4.s_addr))))
    return refuse("; that is not one address of this machine: name the one to listen on");
  return listen;
}
// Metrics need no key, so wildcards are refused: name the address to serve them on.
Result<std::string> read_http_listen(const Value& value) { return read_address(value, false); }
Result<std::string> read_tcp_listen(const Value& value) { return read_address(value, true); }
Result<std::string> read_kserve_listen(const Value& value) {
  SPECD_TRY(const std::string listen, read_text(value));
  return listen.starts_with(kSocketScheme) ? read_listen(value) : read_address(value, false);
}

// Of a user's name or number; none when the machine knows no such user.
std::optional<uid_t> user_id(const std::string& name) {
  uid_t id = 0;
  const char* const end = name.data() + name.size();
  const auto [rest, bad] = std::from_chars(name.data(), end, id);
  if (bad == std::errc() && rest == end && id != UINT32_MAX) return id;  // which means "none"
  passwd entry{};
  passwd* found = nullptr;
  std::vector<char> text(size_t{64} << 10);
  if (getpwnam_r(name.c_str(), &entry, text.data(), text.size(), &found) != 0 || found == nullptr)
    return std::nullopt;
  return found->pw_uid == UINT32_MAX ? std::nullopt : std::optional(found->pw_uid);
}

Result<std::string> read_user(const Value& value) {
  SPECD_TRY(const std::string name, read_text(value));
  if (!user_id(name).has_value())
    return value.error("expected a user of this machine, by name or number, found " + quote(name));
  return name;
}

Result<std::string> read_certificate_name(const Value& value) {
  constexpr size_t kBytesMax = 255;
  SPECD_TRY(const std::string name, read_text(value));
  if (name.size() > kBytesMax)
    return value.error("expected a name of at most " + std::to_string(kBytesMax) +
                       " bytes, found " + std::to_string(name.size()));
  return name;
}

// ---- kinds of keys, each bound to a member -----------------------------------------------------

Key unbound(const char* name, Type type, const char* meaning) {
  Key key;
  key.name = name;
  key.type = type;
  key.meaning = meaning;
  return key;
}
template <typename T>
Key value(const char* name, Type type, T& member, const char* meaning) {
  Key key = unbound(name, type, meaning);
  key.set = [&member](const Json& json) { member = json.get<T>(); };
  key.get = [&member] { return Json(member); };
  return key;
}
Key text(const char* name, const char* form, const char* pattern, const char* meaning) {
  Key key = unbound(name, Type::kText, meaning);
  key.form = form;
  key.pattern = pattern;
  return key;
}
// A path of a folder that exists.
Key folder(const char* name, std::string& member, const char* expected, const char* meaning) {
  Key key = value(name, Type::kPath, member, meaning);
  key.expected = expected;
  return key;
}
Key integer(const char* name, auto& member, int64_t min, int64_t max, const char* meaning) {
  Key key = value(name, Type::kInteger, member, meaning);
  key.min = min;
  key.max = max;
  return key;
}
Key bytes(const char* name, uint64_t& member, const char* meaning) {
  Key key = value(name, Type::kBytes, member, meaning);
  key.min = 1;
  key.max = int64_t{1} << 50;
  return key;
}
template <typename V>
Key choice(const char* name, V& member, const Choices<V>& choices, const char* meaning) {
  Key key = unbound(name, Type::kChoice, meaning);
  for (const auto& [word, meant] : choices) key.choices.push_back(word);
  key.set = [&member, &choices](const Json& json) {
    for (const auto& [word, meant] : choices)
      if (json == word) member = meant;
  };
  key.get = [&member, &choices]() -> Json {
    for (const auto& [word, meant] : choices)
      if (meant == member) return word;
    return nullptr;
  };
  return key;
}
Key section(const char* name, const char* meaning, std::same_as<Key> auto... keys) {
  Key key = unbound(name, Type::kSection, meaning);
  (key.keys.push_back(std::move(keys)), ...);
  return key;
}
// A section that may be absent, and then its struct is too.
template <typename U>
Key section_if(std::optional<U>& member, Key (*section_of)(U&)) {
  const auto one = std::make_shared<U>();
  Key key = section_of(*one);
  key.store = [&member, one](size_t, const std::string&) { member = *one; };
  key.show = [&member, one](size_t) -> std::optional<std::string> {
    if (!member) return std::nullopt;
    *one = *member;
    return "";
  };
  return key;
}
// A list, or with `label` a mapping from names; each item keeps its name in that member.
template <typename U, typename Label = std::nullptr_t>
Key many(const char* name, std::vector<U>& members, Key (*item_of)(U&), const char* meaning,
         Label label = nullptr) {
  const auto one = std::make_shared<U>();
  constexpr bool kIsNamed = !std::is_null_pointer_v<Label>;
  const auto name_in = [label]([[maybe_unused]] U& item) -> std::string* {
    (void)label;  // without names
    if constexpr (kIsNamed) {
      return &(item.*label);
    } else {
      return nullptr;
    }
  };
  Key key = unbound(name, kIsNamed ? Type::kNamed : Type::kList, meaning);
  key.keys.push_back(item_of(*one));
  key.store = [&members, one, name_in](size_t index, const std::string& text) {
    members.resize(index);  // drops the default
    members.push_back(std::exchange(*one, U()));
    if (std::string* const item_name = name_in(members.back()); item_name != nullptr)
      *item_name = text;
  };
  key.show = [&members, one, name_in](size_t index) -> std::optional<std::string> {
    if (index >= members.size()) return std::nullopt;
    *one = members[index];
    const std::string* const item_name = name_in(*one);
    return item_name != nullptr ? *item_name : "";
  };
  return key;
}

// ---- the table ---------------------------------------------------------------------------------

const Choices<KvDType> kKvDTypes{{"f32", KvDType::kF32},
                                 {"f16", KvDType::kF16},
                                 {"bf16", KvDType::kBF16},
                                 {"f8e4m3", KvDType::kF8E4M3},
                                 {"int8", KvDType::kInt8}};
const Choices<LogLevel> kLogLevels{{"debug", LogLevel::kDebug},
                                   {"info", LogLevel::kInfo},
                                   {"warn", LogLevel::kWarn},
                                   {"error", LogLevel::kError},
                                   {"off", LogLevel::kOff}};
const Choices<UnknownFields> kUnknownFields{{"report", UnknownFields::kReport},
                                            {"reject", UnknownFields::kReject}};
const Choices<std::string> kIsas{
    {"auto", ""}, {"scalar", "scalar"}, {"avx2", "avx2"}, {"avx512", "avx512"}};
const Choices<Numerics> kNumerics{
    {"strict", Numerics::kStrict}, {"bf16", Numerics::kBf16}, {"fast", Numerics::kFast}};
const Choices<Guarantee> kGuarantees{
    {"identical", Guarantee::kIdentical}, {"law", Guarantee::kLaw}, {"none", Guarantee::kNone}};
const Choices<Right> kRights{
    {"infer", Right::kInfer}, {"read", Right::kRead}, {"operate", Right::kOperate}};
const Choices<Isolation> kIsolations{
    {"none", Isolation::kNone}, {"guarded", Isolation::kGuarded}, {"process", Isolation::kProcess}};
const Choices<Replace> kReplaces{{"overlap", Replace::kOverlap},
                                 {"stop_first", Replace::kStopFirst}};
constexpr char kModelFolder[] =
    "a folder with config.json, the weights as safetensors and tokenizer.json";

// A socket by its path.
Key socket(std::string& path, const char* meaning) {
  Key key = text("listen", "`unix:PATH`", "^unix:[^\\u0000-\\u001f\\u007f]+$", meaning);
  key.read = read_listen;
  key.set = [&path](const Json& json) {
    path = json.get<std::string>().substr(kSocketScheme.size());
  };
  key.get = [&path]() -> Json { return kSocketScheme + path; };
  return key;
}

Key keys_of_control(ControlOptions& control) {
  return section("control", "a socket for `specd.v1.Control` alone",
                 socket(control.socket_path,
                        "the socket; then the other one serves `specd.v1.Inference` alone")
                     .required())
      .absent("`listen` serves both");
}

Key right(Right& one) { return choice("", one, kRights, ""); }

Key keys_of_user(UserOptions& o) {
  Key name = text("name", "a user's name or number", "^[A-Za-z0-9_][A-Za-z0-9_.$-]{0,63}$",
                  "a user of this machine, on the sockets; a number in quotes")
                 .absent("`certificate`")
                 .read_by(read_user);
  name.set = [&o](const Json& json) {
    o.name = json.get<std::string>();
    o.id = user_id(o.name);
  };
  name.get = [&o]() -> Json { return o.name.empty() ? Json() : Json(o.name); };
  Key certificate =
      text("certificate", "a name in a certificate", "^[^\\u0000-\\u001f\\u007f]{1,255}$",
           "clients over TCP whose certificate has this alternative name (DNS, URI or email), or "
           "where it has none this common name; of several users the first that fits")
          .absent("`name`")
          .read_by(read_certificate_name);
  certificate.set = [&o](const Json& json) { o.certificate = json.get<std::string>(); };
  certificate.get = [&o]() -> Json { return o.certificate.empty() ? Json() : Json(o.certificate); };
  Key user = section(
      "", "", std::move(name), std::move(certificate),
      many("rights", o.rights, right,
           "`infer`: Inference; `read`: what Control reports; `operate`: all of Control")
          .required(),
      integer("requests_max", o.requests_max, 0, kRequestsOfUserMax,
              "calls of Generate and RenderChat at a time, waiting ones included; 0 = no limit"),
      integer("waiting_max", o.waiting_max, 0, kRequestsOfUserMax,
              "of these calls, those that have had no output yet; 0 = no limit"),
      bytes("bytes_max", o.bytes_max, "of the messages of these calls together")
          .absent("no limit"));
  user.exclusive = {"name", "certificate"};
  return user;
}

void set_address(const std::string& given, std::string& address, uint16_t& port) {
  address = address_of(given);
  port = static_cast<uint16_t>(std::stoi(given.substr(given.rfind(':') + 1)));
}
std::string address_text(const std::string& address, uint16_t port) {
  const bool is_v6 = address.find(':') != std::string::npos;
  return (is_v6 ? "[" + address + "]" : address) + ":" + std::to_string(port);
}

// An address of TCP; an empty one is not given.
Key address_key(const char* name, std::string& address, uint16_t& port,
                Result<std::string> (*reader)(const Value&), const char* meaning) {
  Key key =
      text(name, "`ADDRESS:PORT`", R"(^([0-9.]+|\[[0-9A-Fa-f:.]+\]):(0|[1-9][0-9]{0,4})$)", meaning)
          .read_by(reader);
  key.set = [&address, &port](const Json& json) {
    set_address(json.get<std::string>(), address, port);
  };
  key.get = [&address, &port]() -> Json {
    return address.empty() ? Json() : Json(address_text(address, port));
  };
  return key;
}
template <typename Options>
Key address(Options& o, Result<std::string> (*reader)(const Value&), const char* meaning) {
  return address_key("listen", o.address, o.port, reader, meaning).required();
}

Key certificate_of_tls(TlsOptions& o) {
  return value("certificate", Type::kPath, o.certificate,
               "the server's, then those between it and its authority")
      .required();
}
Key key_of_tls(TlsOptions& o) {
  return value("key", Type::kPath, o.key,
               "of the server's certificate, without a password; only the user of specd and "
               "a group may read it")
      .required();
}

Key keys_of_tls(TlsOptions& o) {
  return section("tls", "TLS 1.3 with certificates on both sides; PEM files", certificate_of_tls(o),
                 key_of_tls(o),
                 value("client_ca", Type::kPath, o.client_ca,
                       "the authorities whose signature a client's certificate needs")
                     .required())
      .absent(
          "needs `--insecure` and a loopback address; then everybody there may use "
          "Inference, and nobody Control");
}

Key keys_of_http_tls(TlsOptions& o) {
  return section("tls", "TLS 1.3; PEM files, which SIGHUP reads again", certificate_of_tls(o),
                 key_of_tls(o))
      .absent("plain HTTP");
}

Key keys_of_tcp(TcpOptions& o) {
  return section(
             "tcp", "gRPC over TCP, beside the sockets",
             address(o, read_tcp_listen,
                     "a literal address, also `0.0.0.0` or `'[::]'`; port 0 = a free one, logged"),
             section_if(o.tls, keys_of_tls))
      .absent("no port");
}

Key keys_of_http(HttpOptions& http) {
  Key listen = address(
      http, read_http_listen,
      "a literal address (`127.0.0.1:8000`, `'[::1]:8000'`), no wildcard; port 0 = a free "
      "one, logged. The API needs a loopback address, or `tls` and `api_keys_file`; without "
      "them others serve only metrics, probes and `/version`");
  return section(
             "http", "the API of OpenAI and vLLM, `/metrics` and probes", std::move(listen),
             value("api_keys_file", Type::kPath, http.api_keys_file,
                   "a file with one key per line (16 to 256 characters; lines that begin with `#` "
                   "are comments); API requests then need `Authorization: Bearer KEY`; only the "
                   "user of specd and a group may read it; SIGHUP reads it again")
                 .absent("no key needed"),
             section_if(http.tls, keys_of_http_tls),
             choice("unknown_fields", http.unknown_fields, kUnknownFields,
                    "what becomes of a request with fields that specd does not know: `report`, "
                    "they are ignored, and the response header `x-specd-ignored-fields` lists "
                    "them; `reject`, 400"),
             value("page", Type::kBoolean, http.page,
                   "whether `/` is a live page with tokens per second, routes, KV and the draft "
                   "trees of a running request; whoever may use the API then sees pieces of "
                   "everybody's texts"),
             integer("stall_seconds", http.stall_seconds, 1, kStallSecondsMax,
                     "a step that takes longer makes `/health/live` fail"))
      .absent("no listener");
}

Key keys_of_kserve(KserveOptions& o) {
  Key listen =
      text("listen", "`unix:PATH` or `ADDRESS:PORT`",
           R"(^(unix:[^\u0000-\u001f\u007f]+|([0-9.]+|\[[0-9A-Fa-f:.]+\]):(0|[1-9][0-9]{0,4}))$)",
           "a socket, for those who may use Inference, or with `insecure` a loopback "
           "address (`127.0.0.1:8001`); port 0 = a free one, logged")
          .required()
          .read_by(read_kserve_listen);
  listen.set = [&o](const Json& json) {
    const std::string given = json.get<std::string>();
    o.socket_path.clear();
    o.address.clear();
    if (given.starts_with(kSocketScheme)) {
      o.socket_path = given.substr(kSocketScheme.size());
    } else {
      set_address(given, o.address, o.port);
    }
  };
  listen.get = [&o]() -> Json {
    return o.socket_path.empty() ? address_text(o.address, o.port) : kSocketScheme + o.socket_path;
  };
  return section("kserve", "Triton's gRPC protocol, `inference.GRPCInferenceService`",
                 std::move(listen),
                 value("insecure", Type::kBoolean, o.insecure,
                       "everybody on this machine may use the port; without it `listen` has to "
                       "be a socket"),
                 integer("model_version", o.model_version, 1, INT32_MAX,
                         "the version that Triton's clients see, here and over HTTP"),
                 address_key("metrics_listen", o.metrics_address, o.metrics_port, read_http_listen,
                             "where `/metrics` has Triton's names (`127.0.0.1:8002`)")
                     .absent("not served"))
      .absent("not served");
}

Key keys_of_engine(EngineOptions& o) {
  using L = EngineLimits;
  return section(
      "engine", "the step loop",  //
      integer("threads", o.threads, 0, L::kThreads,
              "0 = one per core; the ranks of a machine share them, at least one each"),
      integer("tensor_parallel_size", o.tensor_parallel_size, 1, L::kRanks,
              "ranks that share the model, 1, 2, 4 or 8; texts are those of one rank; they are "
              "threads, or under mpirun processes, and on GPUs each has one (`devices`)"),
      integer("pipeline_parallel_size", o.pipeline_parallel_size, 1, L::kStages,
              "stages of layers, each of `tensor_parallel_size` ranks; a step passes through one "
              "after the other, which makes no step faster"),
      integer("rank_timeout_seconds", o.rank_timeout_seconds, 1, L::kRankTimeoutSeconds,
              "a rank that the others wait for longer is lost, and the daemon exits"),
      bytes(
          "rank_bytes_max", o.rank_bytes_max,
          "memory of a rank: weights, activations, columns, on rank 0 the limits of drafters that "
          "work there, and KV, which gets the rest unless `model.kv` says how much")
          .absent("what the device has"),
      choice("isa", o.isa, kIsas, "instructions of the CPU; the text is the same on all"),
      choice(
          "numerics", o.numerics, kNumerics,
          "`strict`: drafts change no token; `bf16`: activations rounded to bfloat16 on a CPU "
          "with AVX-512 BF16, faster, other texts than strict's, and drafts change none of them "
          "on one model of processor; `fast`: cuBLASLt, and FP8 by tensor cores, on `devices: [cuda:N]`, where "
          "routes reach the guarantee `law` at most"),
      integer("max_sequences", o.max_sequences, 1, L::kSequences, "sequences in one step"),
      integer("step_tokens_max", o.step_tokens_max, 1, L::kStepTokens,
              "rows of one step, prefill and drafts together; at least `max_sequences`"),
      integer("queue_max", o.queue_max, 1, L::kQueue, "waiting requests; more are refused"),
      integer("priority_aging_ms", o.priority_aging_ms, 1, L::kPriorityAgingMs,
              "waiting this long is worth one level of a request's `priority`"));
}

Key keys_of_kv(ModelOptions& o) {
  Key kv = section(
      "kv", "the cache of keys and values",
      choice("dtype", o.kv_dtype, kKvDTypes,
             "of the numbers in the cache: `f8e4m3` has the scales of the checkpoint, or 1; "
             "`int8` has one for each token and head"),
      bytes("bytes_max", o.kv_bytes_max, "memory of the cache")
          .absent("full contexts, at most 1 GiB"),
      value("memory_share", Type::kShare, o.kv_memory_share,
            "instead of `bytes_max`: share of the device's memory"),
      integer("pages", o.kv_pages, 1, EngineLimits::kKvPages,
              "instead of `bytes_max`: pages of 16 tokens"),
      value("prefix_cache", Type::kBoolean, o.prefix_cache,
            "pages of finished prompts and texts serve the next prompt that begins alike"));
  kv.exclusive = {"bytes_max", "memory_share", "pages"};
  return kv;
}

Key keys_of_model(ModelOptions& o) {
  return section(
      "model", "the target model",
      value("name", Type::kName, o.name, "what routes and reports call it").required(),
      folder("path", o.path, kModelFolder, kModelFolder).required(),
      value("chat_template", Type::kPath, o.chat_template,
            "a file with the Jinja template for messages, instead of chat_template.jinja or the "
            "one in tokenizer_config.json")
          .absent("the model's own"),
      value("generation_config", Type::kBoolean, o.generation_config,
            "what generation_config.json says of sampling holds where a request says nothing; "
            "its end tokens hold in any case"),
      keys_of_kv(o));
}

Key draft_device(std::string& one) {
  Key key =
      value("device", Type::kText, one,
            "puts it elsewhere, on rank 0's machine and on a device that no rank has: in pages of "
            "its own, as many as the target's; what drafters exchange with it is copied");
  key.form = "`cpu` or `cuda:N`";
  key.pattern = "^(cpu|cuda:[0-9]{1,4})$";
  return std::move(key).absent("the target's");
}

Key keys_of_draft_model(DraftModelOptions& o) {
  return section(
      "", "",
      value("name", Type::kName, o.name, "what drafters call it; no other model has it").required(),
      folder("path", o.path, kModelFolder, kModelFolder).required(),
      section(
          "kv", "its cache of keys and values",
          choice("dtype", o.kv_dtype, kKvDTypes,
                 "its KV lies in the pages of `model.kv` and counts against their limit, unless "
                 "a page of it is larger than one of theirs on a rank: then it has as many "
                 "pages of its own")),
      integer("tensor_parallel_size", o.tensor_parallel_size, 1, EngineLimits::kRanks,
              "`engine.tensor_parallel_size`: the target's ranks share it; 1: rank 0 has it alone")
          .absent("shared if it can be; with `rank_bytes_max` what leaves most pages"),
      draft_device(o.device));
}

Key keys_of_use(const char* key_name, const char* meaning, PluginUse& use) {
  Key plugin = value("plugin", Type::kText, use.plugin,
                     "the plugin's id, which means its newest version, or that version");
  plugin.form = "`ID` or `ID@VERSION`";
  plugin.pattern = "^[A-Za-z0-9_.-]{1,64}(@[A-Za-z0-9_.+-]{1,64})?$";
  return section(key_name, meaning, std::move(plugin).required().read_by(read_plugin_name),
                 value("factory", Type::kName, use.factory, "which of the plugin's factories")
                     .absent("the only one of its kind"),
                 value("config", Type::kFree, use.config, "what the plugin documents"))
      .required();
}

Key keys_of_route(RouteOptions& o) {
  return section(
      "", "",
      value("model", Type::kName, o.model, "the name of the model that is served")
          .absent("the model"),
      choice(
          "guarantee", o.guarantee, kGuarantees,
          "the least that is accepted of the pair: `identical`, the very tokens of plain decoding; "
          "`law`, tokens drawn by the same distribution; `none`, lossy"),
      integer(
          "draft_nodes_max", o.draft_nodes_max, 1, EngineLimits::kDraftNodes,
          "guesses per sequence and step, less than `step_tokens_max`; a tree needs as many as it has nodes"),
      integer("disable_by_batch_size", o.disable_by_batch_size, 0, EngineLimits::kSequences,
              "no drafts while more than so many sequences run; 0 = never"),
      value(
          "suspend_when_slower", Type::kBoolean, o.suspend_when_slower,
          "whether the drafter is suspended for a while when a token takes longer with its drafts "
          "than without; to compare, 16 of some 4,000 steps go without, at first of 64"),
      integer("call_ms_max", o.call_ms_max, 0, EngineLimits::kCallMs,
              "how long one call of the drafter may take in a step; after several calls in a row "
              "that fail or take longer it is suspended for a while, and one beside the step that "
              "has not returned by then is never called again; 0 = no limit"),
      choice(
          "isolation", o.isolation, kIsolations,
          "where the drafter's calls run: `none`, in the step, which waits for them; `guarded`, on a "
          "thread of its own, so that one that is slow or hangs costs drafts and no time; `process`, "
          "in a process of its own, so that one that crashes costs no more than that, either"),
      integer("step_budget_us", o.step_budget_us, 1, EngineLimits::kStepBudgetUs,
              "with another isolation than `none`: how long a step waits for the drafts"),
      choice(
          "replace", o.replace, kReplaces,
          "what becomes of the version that the route has when this one is applied: `overlap`, it "
          "serves until this one does, so that both need memory meanwhile; `stop_first`, it ends "
          "first, and until this one serves the route's requests are decoded without drafts; a reload lets "
          "all versions overlap"),
      integer("probation_seconds", o.probation_seconds, 0, EngineLimits::kProbationSeconds,
              "how long after a promotion the version before is kept, to go back to by hand or "
              "when the new drafter is suspended; 0 = it is not kept"),
      keys_of_use("drafter", "who guesses", o.drafter),
      keys_of_use("verifier", "who judges", o.verifier));
}

Key device(std::string& one) {
  Key key = value("", Type::kText, one, "");
  key.form = "`cpu`, `cuda:N` or `auto`";
  key.pattern = "^(cpu|auto|cuda:[0-9]{1,4})$";
  return key;
}

Key plugin_hash(std::string& one) {
  Key key = value("", Type::kText, one, "");
  key.form = "64 hexadecimal digits";
  key.pattern = "^[0-9a-f]{64}$";
  return key;
}
Key plugin_key(std::string& one) { return value("", Type::kPath, one, ""); }

Key keys_of_approved(ApprovedPlugins& o) {
  return section(
             "approved", "which plugins may run, where it is given; with no item none may",
             many("sha256", o.sha256, plugin_hash,
                  "the SHA-256 of `plugin.json` of each plugin that may run, which names the "
                  "hashes of its files")
                 .absent("none"),
             many("keys", o.keys, plugin_key,
                  "PEM files of Ed25519 public keys: plugins with a `plugin.json.sig` by one of "
                  "them may run, too")
                 .absent("none"))
      .absent("every plugin may run");
}

Key plugin_directory(std::string& one) {
  return folder("", one, "a folder whose subfolders are plugins (is it built?)", "");
}

}  // namespace

Key keys_of(Config& config) {
  EngineOptions& engine = config.engine;
  Key listen =
      socket(config.socket_path, "the socket; its folder exists, the path has at most 107 bytes")
          .required();
  Key users =
      many(
          "users", config.users, keys_of_user,
          "at most 64 who may connect, beside the user of specd and root on the sockets, who have every "
          "right unless they are listed here")
          .absent("none");
  Key devices =
      many("devices", engine.devices, device,
           "where models run: one item, or a `cuda:N` for each rank (under mpirun for each "
           "rank of a machine); `auto`, for one rank, is cuda:0 where it can be had, else the "
           "CPU; see the root README for what has run on a GPU");
  devices.min = 1;
  devices.max = EngineLimits::kRanks * EngineLimits::kStages;
  devices.expected = "a list of one device, or of one for each rank";
  Key routes =
      many("routes", engine.routes, keys_of_route,
           "a drafter, a verifier and their limits, by name; `off` is plain decoding and always "
           "there",
           &RouteOptions::name);
  routes.max = static_cast<int64_t>(EngineLimits::kRoutes);
  routes.expected = "a route";
  routes.reserved = "off";
  return section(
      "", "", std::move(listen), section_if(config.control, keys_of_control),
      section_if(config.tcp, keys_of_tcp), std::move(users), section_if(config.http, keys_of_http),
      section_if(config.kserve, keys_of_kserve),
      choice("log_level", config.log_level, kLogLevels, "the least that is logged"),
      integer("drain_seconds", config.drain_seconds, 0, kDrainSecondsMax,
              "how long running requests may finish after SIGTERM"),
      folder(
          "state_directory", engine.state_directory,
          "an existing folder, which only the user of specd may write",
          "an existing folder of this daemon alone, where only its user may write; keeps changes of routes over a restart")
          .absent("changes are lost"),
      std::move(devices), keys_of_engine(engine), keys_of_model(engine.model).required(),
      many("draft_models", engine.draft_models, keys_of_draft_model,
           "models that drafters may use beside the target; one that does not fit it (other "
           "tokens, other layout) is refused with the reason, and so are the routes that need it"),
      section("plugins", "where plugins are",
              many("directories", engine.plugin_directories, plugin_directory,
                   "each subfolder is a plugin")
                  .required(),
              value("cache_directory", Type::kPath, engine.plugin_cache_directory,
                    "private copies of plugin libraries")
                  .absent("`$CACHE_DIRECTORY`, `$XDG_CACHE_HOME/specd`, `$HOME/.cache/specd` or "
                          "`/var/cache/specd`"),
              value("base_directory", Type::kPath, engine.config_directory,
                    "where relative paths in the configurations of plugins start")
                  .absent("the folder of this file"),
              section_if(engine.approved_plugins, keys_of_approved),
              integer("control_seconds", engine.plugin_control_seconds, 1,
                      EngineLimits::kPluginControlSeconds,
                      "how long a plugin may take to load, and to make or end a route's instance; "
                      "one that takes longer is refused")),
      value("default_route", Type::kName, engine.default_route, "for requests that name none"),
      std::move(routes));
}

Key keys_of(RouteOptions& route) {
  Key key = keys_of_route(route);
  key.keys.insert(key.keys.begin(),
                  value("name", Type::kName, route.name, "of the route").required());
  return key;
}

const Key& config_keys() {
  static Config fresh;  // its members are the defaults
  static const Key keys = keys_of(fresh);
  return keys;
}

void for_each_key(const KeyVisitor& visit, const Key& parent, const std::string& path) {
  for (const Key& key : parent.keys) {
    const std::string front = path.empty() ? "" : path + ".";
    const std::string key_path = parent.type == Type::kList    ? path + "[]"
                                 : parent.type == Type::kNamed ? path + ".NAME"
                                                               : front + key.name;
    visit(key_path, key, parent);
    for_each_key(visit, key, key_path);
  }
}

}  // namespace specd::host
