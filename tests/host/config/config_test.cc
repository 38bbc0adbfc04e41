#include "host/config/config.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace specd::host {
namespace {

namespace fs = std::filesystem;

// A folder with what a configuration may name: model/, plugins/ and run/.
class ConfigTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "specd-config-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    for (const char* name : {"model", "plugins", "run"}) fs::create_directory(folder_ / name);
    std::ofstream(folder_ / "file") << "x";
  }
  void TearDown() override { fs::remove_all(folder_); }

  Result<Config> parse(const std::string& text) const {
    return parse_config(text, (folder_ / "c.yaml").string());
  }
  // The message with the folder cut from its front: "c.yaml:1:1: ...".
  std::string error(const std::string& text) const {
    const Result<Config> config = parse(text);
    if (config.ok()) return "ok";
    EXPECT_EQ(config.status().code(), Code::kInvalidArgument);
    std::string message = config.status().text();
    const std::string front = folder_.string() + "/";
    if (message.rfind(front, 0) == 0) message.erase(0, front.size());
    return message;
  }

  fs::path folder_;
};

// Lines 1 to 5 of every good file; what is tested begins at line 6.
const std::string kGood =
    "listen: unix:run/s.sock\n"
    "model: {name: m, path: model}\n"
    "plugins:\n"
    "  directories: [plugins]\n"
    "  cache_directory: cache\n";
const std::string kPair =
    "    drafter: {plugin: d}\n"
    "    verifier: {plugin: v}\n";

TEST_F(ConfigTest, the_least_configuration_gets_the_documented_defaults) {
  const auto config = parse("listen: unix:run/s.sock\nmodel: {name: m, path: model}\n");
  ASSERT_TRUE(config.ok()) << config.status().text();
  const Config& c = config.value();
  EXPECT_EQ(c.socket_path, (folder_ / "run/s.sock").string());
  EXPECT_FALSE(c.control.has_value());
  EXPECT_FALSE(c.tcp.has_value());
  EXPECT_TRUE(c.users.empty());
  EXPECT_EQ(c.log_level, LogLevel::kInfo);
  EXPECT_EQ(c.drain_seconds, 30U);
  EXPECT_FALSE(c.http.has_value());
  EXPECT_EQ(c.engine.model.name, "m");
  EXPECT_EQ(c.engine.model.path, (folder_ / "model").string());
  EXPECT_EQ(c.engine.model.kv_dtype, KvDType::kBF16);
  EXPECT_EQ(c.engine.model.kv_bytes_max, 0U);
  EXPECT_EQ(c.engine.threads, 0);
  EXPECT_EQ(c.engine.isa, "");
  EXPECT_EQ(c.engine.max_sequences, 64);
  EXPECT_EQ(c.engine.step_tokens_max, 512);
  EXPECT_EQ(c.engine.queue_max, 256);
  EXPECT_EQ(c.engine.priority_aging_ms, 1000);
  EXPECT_EQ(c.engine.model.kv_memory_share, 0);
  EXPECT_EQ(c.engine.model.kv_pages, 0);
  EXPECT_TRUE(c.engine.model.prefix_cache);
  EXPECT_EQ(c.engine.default_route, "off");
  EXPECT_TRUE(c.engine.routes.empty());
  EXPECT_TRUE(c.engine.plugin_directories.empty());
  EXPECT_FALSE(c.engine.plugin_cache_directory.empty());
}

TEST_F(ConfigTest, sockets_and_users_that_are_the_same_are_refused) {
  const std::string front = "listen: unix:run/s.sock\n", back = "\nmodel: {name: m, path: model}\n";
  const auto refused = [&](const std::string& line) {
    const auto config = parse(front + line + back);
    return config.ok() ? "was not refused" : config.status().text();
  };
  const auto expect = [&](const std::string& line, const std::string& words) {
    const std::string text = refused(line);
    EXPECT_NE(text.find(words), std::string::npos) << text;
  };
  expect("control: {listen: unix:run/s.sock}",
         "c.yaml:2:19: control.listen: expected another socket than `listen`");
  expect("users: [{name: root, rights: []}, {name: '0', rights: []}]",
         "c.yaml:2:42: users[1].name: expected each user once, found root and 0, who are the same");
  expect("users: [{name: no such, rights: []}]",
         "c.yaml:2:16: users[0].name: expected a user of this machine, by name or number, found");
  expect("users: [{name: '4294967295', rights: []}]", "expected a user of this machine");
  expect("users: [{name: root, rights: [all]}]", "users[0].rights[0]: expected ");
  expect("users: [{name: root}]", "rights");
  expect("control: {}", "listen");
  expect("users: [{rights: []}]",
         "c.yaml:2:9: users[0]: expected `name`, of a user of this machine, or "
         "`certificate`, for clients over TCP");
  expect("users: [{name: root, certificate: a, rights: []}]",
         "expected only one of name or certificate");
  expect("users: [{certificate: a, rights: []}]",
         "c.yaml:2:23: users[0].certificate: expected `tcp` with `tls`");
  const std::string tls = "tcp: {listen: '[::]:1', tls: {certificate: s, key: k, client_ca: c}}\n";
  expect(tls + "users: [{certificate: a, rights: []}, {certificate: a, rights: [read]}]",
         "c.yaml:3:53: users[1].certificate: expected each name once, found 'a' again");
  EXPECT_EQ(refused(tls + "users: [{certificate: a, rights: []}, {name: root, rights: [read]}]"),
            "was not refused");
  expect(tls + "users: [{certificate: " + std::string(256, 'a') + ", rights: []}]",
         "expected a name of at most 255 bytes, found 256");
  expect("tcp: {listen: 0.0.0.0:1}",
         "c.yaml:2:6: tcp.tls: expected certificates, because other "
         "machines can reach 0.0.0.0");
  EXPECT_EQ(refused("tcp: {listen: '[::1]:1'}"), "was not refused");
  expect("tcp: {listen: '127.0.0.1:1', tls: {certificate: s, key: k}}", "tcp.tls.client_ca");
  expect("tcp: {listen: 'localhost:1'}", "tcp.listen: expected ADDRESS:PORT");
  expect("tcp: {listen: '224.0.0.1:1'}", "that is not one address");
  EXPECT_EQ(refused("kserve: {listen: 'unix:run/k.sock'}"), "was not refused");
  EXPECT_EQ(refused("kserve: {listen: '[::1]:8001', insecure: true}"), "was not refused");
  expect("kserve: {listen: '127.0.0.1:8001'}",
         "c.yaml:2:9: kserve.insecure: expected true, because everybody on this machine can reach "
         "127.0.0.1; or serve unix:PATH");
  expect("kserve: {listen: '10.0.0.1:8001', insecure: true}",
         "c.yaml:2:18: kserve.listen: expected a socket or a loopback address such as 127.0.0.1");
  expect("kserve: {listen: 0.0.0.0:8001, insecure: true}", "that is not one address");
  expect("kserve: {listen: 'unix:run/s.sock'}",
         "c.yaml:2:18: kserve.listen: expected a socket of its own; ");
  expect("kserve: {listen: 'unix:run/k.sock', model_version: 0}", "kserve.model_version: expected");
  expect("kserve: {listen: 'unix:run/k.sock', metrics_listen: 'localhost:8002'}",
         "kserve.metrics_listen: expected ADDRESS:PORT");
  std::string many;
  for (int i = 0; i < 65; ++i)
    many += (i > 0 ? ", " : "") + ("{name: '" + std::to_string(1000 + i) + "', rights: []}");
  expect("users: [" + many + "]", "users: expected at most 64 users, found 65");
}

TEST_F(ConfigTest, every_key_arrives_where_it_belongs) {
  const auto config = parse(
      "listen: unix://" + (folder_ / "run/t.sock").string() +
      "\n"
      "control: {listen: unix:run/c.sock}\n"
      "tcp: {listen: 0.0.0.0:8443, tls: {certificate: s.pem, key: run/s.key, client_ca: /c.pem}}\n"
      "users: [{certificate: c, rights: [read]}, {name: root, rights: [infer, operate]}, "
      "{name: '4711', rights: [], requests_max: 3, waiting_max: 2, bytes_max: 5KiB}]\n"
      "log_level: debug\n"
      "drain_seconds: 5\n"
      "state_directory: run\n"
      "http: {listen: '[::1]:0', api_keys_file: keys, unknown_fields: reject, page: true, stall_seconds: 7}\n"
      "devices: [cuda:1]\n"
      "engine: {numerics: fast, threads: 2, tensor_parallel_size: 1, pipeline_parallel_size: 1, rank_timeout_seconds: 7, rank_bytes_max: 5GiB, isa: avx2, max_sequences: 4, step_tokens_max: 64, queue_max: 1,"
      " priority_aging_ms: 250}\n"
      "model: {name: m, path: ./model/, kv: {dtype: f32, bytes_max: 512MiB,"
      " prefix_cache: false}}\n"
      "draft_models: [{name: d, path: model, kv: {dtype: f16}, tensor_parallel_size: 1, device: cpu}, {name: e, path: run}]\n"
      "plugins: {directories: [plugins, ./run], cache_directory: cache, base_directory: ., "
      "control_seconds: 9, approved: {keys: [k.pem], sha256: [" +
      std::string(64, 'a') +
      "]}}\n"
      "default_route: a\n"
      "routes:\n"
      "  a:\n"
      "    model: m\n"
      "    guarantee: law\n"
      "    draft_nodes_max: 63\n"
      "    disable_by_batch_size: 12\n"
      "    suspend_when_slower: true\n"
      "    call_ms_max: 250\n"
      "    isolation: guarded\n"
      "    step_budget_us: 900\n"
      "    replace: stop_first\n"
      "    probation_seconds: 7\n"
      "    drafter: {plugin: x.y@1.0.0-rc.1+b, factory: f, config: {n: 3, t: yes, q: '5', f: 0.5, b: true,"
      " z: ~, l: [0x10, a], o: {k: -1}}}\n"
      "    verifier: {plugin: v, config: }\n");
  ASSERT_TRUE(config.ok()) << config.status().text();
  const Config& c = config.value();
  EXPECT_EQ(c.socket_path, (folder_ / "run/t.sock").string());
  ASSERT_TRUE(c.control.has_value());
  EXPECT_EQ(c.control->socket_path, (folder_ / "run/c.sock").string());
  ASSERT_TRUE(c.tcp.has_value());
  EXPECT_EQ(c.tcp->address, "0.0.0.0");
  EXPECT_EQ(c.tcp->port, 8443);
  EXPECT_EQ(c.tcp->tls, (TlsOptions{.certificate = (folder_ / "s.pem").string(),
                                    .key = (folder_ / "run/s.key").string(),
                                    .client_ca = "/c.pem"}));
  ASSERT_EQ(c.users.size(), 3U);
  EXPECT_EQ(c.users[0], (UserOptions{.name = "",
                                     .id = std::nullopt,
                                     .certificate = "c",
                                     .rights = {Right::kRead},
                                     .requests_max = 0,
                                     .waiting_max = 0,
                                     .bytes_max = 0}));
  EXPECT_EQ(c.users[1], (UserOptions{.name = "root",
                                     .id = 0,
                                     .rights = {Right::kInfer, Right::kOperate},
                                     .requests_max = 0,
                                     .waiting_max = 0,
                                     .bytes_max = 0}));
  EXPECT_EQ(c.users[2], (UserOptions{.name = "4711",
                                     .id = 4711,
                                     .rights = {},
                                     .requests_max = 3,
                                     .waiting_max = 2,
                                     .bytes_max = 5120}));
  EXPECT_EQ(c.log_level, LogLevel::kDebug);
  EXPECT_EQ(c.drain_seconds, 5U);
  ASSERT_TRUE(c.engine.approved_plugins.has_value());
  EXPECT_EQ(c.engine.approved_plugins->sha256, std::vector<std::string>{std::string(64, 'a')});
  EXPECT_EQ(c.engine.approved_plugins->keys,
            std::vector<std::string>{(folder_ / "k.pem").string()});
  EXPECT_EQ(c.engine.state_directory, (folder_ / "run").string());
  ASSERT_TRUE(c.http.has_value());
  EXPECT_EQ(c.http->address, "::1");
  EXPECT_EQ(c.http->port, 0);
  EXPECT_EQ(c.http->stall_seconds, 7U);
  EXPECT_EQ(c.http->api_keys_file, (folder_ / "keys").string());
  EXPECT_EQ(c.http->unknown_fields, UnknownFields::kReject);
  EXPECT_TRUE(c.http->page);
  EXPECT_EQ(c.engine.threads, 2);
  EXPECT_EQ(c.engine.devices, std::vector<std::string>{"cuda:1"});
  EXPECT_EQ(c.engine.numerics, Numerics::kFast);
  EXPECT_EQ(c.engine.tensor_parallel_size, 1);
  EXPECT_EQ(c.engine.pipeline_parallel_size, 1);
  EXPECT_EQ(c.engine.rank_timeout_seconds, 7);
  EXPECT_EQ(c.engine.rank_bytes_max, uint64_t{5} << 30);
  EXPECT_EQ(c.engine.isa, "avx2");
  EXPECT_EQ(c.engine.max_sequences, 4);
  EXPECT_EQ(c.engine.step_tokens_max, 64);
  EXPECT_EQ(c.engine.queue_max, 1);
  EXPECT_EQ(c.engine.priority_aging_ms, 250);
  EXPECT_FALSE(c.engine.model.prefix_cache);
  EXPECT_EQ(c.engine.model.kv_dtype, KvDType::kF32);
  EXPECT_EQ(c.engine.model.kv_bytes_max, uint64_t{512} << 20);
  ASSERT_EQ(c.engine.draft_models.size(), 2U);
  EXPECT_EQ(c.engine.draft_models[0].name, "d");
  EXPECT_EQ(c.engine.draft_models[0].path, (folder_ / "model").string());
  EXPECT_EQ(c.engine.draft_models[0].kv_dtype, KvDType::kF16);
  EXPECT_EQ(c.engine.draft_models[0].tensor_parallel_size, 1);
  EXPECT_EQ(c.engine.draft_models[0].device, "cpu");
  EXPECT_EQ(c.engine.draft_models[1].tensor_parallel_size, 0);
  EXPECT_EQ(c.engine.draft_models[1].device, "");
  EXPECT_EQ(c.engine.draft_models[1].name, "e");
  EXPECT_EQ(c.engine.draft_models[1].kv_dtype, KvDType::kBF16);
  EXPECT_EQ(c.engine.plugin_directories.size(), 2U);
  EXPECT_EQ(c.engine.plugin_cache_directory, (folder_ / "cache").string());
  EXPECT_EQ(c.engine.plugin_control_seconds, 9);
  ASSERT_EQ(c.engine.routes.size(), 1U);
  const RouteOptions& route = c.engine.routes[0];
  EXPECT_EQ(route.name, "a");
  EXPECT_EQ(route.model, "m");
  EXPECT_EQ(route.guarantee, Guarantee::kLaw);
  EXPECT_EQ(route.draft_nodes_max, 63);
  EXPECT_EQ(route.disable_by_batch_size, 12);
  EXPECT_TRUE(route.suspend_when_slower);
  EXPECT_EQ(route.call_ms_max, 250);
  EXPECT_EQ(route.isolation, Isolation::kGuarded);
  EXPECT_EQ(route.step_budget_us, 900);
  EXPECT_EQ(route.replace, Replace::kStopFirst);
  EXPECT_EQ(route.probation_seconds, 7);
  EXPECT_EQ(route.drafter.plugin, "x.y@1.0.0-rc.1+b");
  EXPECT_EQ(route.drafter.factory, "f");
  EXPECT_EQ(route.drafter.config,
            Json::parse(R"({"n":3,"t":"yes","q":"5","f":0.5,"b":true,"z":null,"l":[16,"a"],)"
                        R"("o":{"k":-1}})"));
  EXPECT_EQ(route.verifier.config, Json::object());
}

TEST_F(ConfigTest, ranks_and_stages_are_not_mixed_up) {
  const auto config = parse(
      "listen: unix:run/s.sock\nmodel: {name: m, path: model}\n"
      "engine: {tensor_parallel_size: 2, pipeline_parallel_size: 3}\n");
  ASSERT_TRUE(config.ok()) << config.status().text();
  EXPECT_EQ(config.value().engine.tensor_parallel_size, 2);
  EXPECT_EQ(config.value().engine.pipeline_parallel_size, 3);
}

TEST_F(ConfigTest, every_kind_of_number_of_a_cache_has_its_word) {
  const std::pair<const char*, KvDType> all[] = {{"f32", KvDType::kF32},
                                                 {"f16", KvDType::kF16},
                                                 {"bf16", KvDType::kBF16},
                                                 {"f8e4m3", KvDType::kF8E4M3},
                                                 {"int8", KvDType::kInt8}};
  for (const auto& [word, dtype] : all) {
    const auto config = parse(
        "listen: unix:run/s.sock\nmodel: {name: m, path: model, kv: {dtype: " + std::string(word) +
        "}}\n");
    ASSERT_TRUE(config.ok()) << config.status().text();
    EXPECT_EQ(config.value().engine.model.kv_dtype, dtype) << word;
  }
}

TEST_F(ConfigTest, the_size_of_the_cache_is_said_in_one_way) {
  const auto kv = [&](const std::string& keys) {
    return "listen: unix:run/s.sock\nmodel:\n  name: m\n  path: model\n  kv: {" + keys + "}\n";
  };
  EXPECT_EQ(parse(kv("memory_share: 0.25")).value().engine.model.kv_memory_share, 0.25);
  EXPECT_EQ(parse(kv("memory_share: 1")).value().engine.model.kv_memory_share, 1);
  EXPECT_EQ(parse(kv("pages: 7")).value().engine.model.kv_pages, 7);
  for (const char* keys : {"memory_share: 0", "memory_share: 1.5", "memory_share: -0.1",
                           "memory_share: half", "memory_share: '0.5'"}) {
    EXPECT_EQ(error(kv(keys)).rfind("c.yaml:5:22: model.kv.memory_share: expected a number of more "
                                    "than 0 and at most 1",
                                    0),
              0u)
        << error(kv(keys));
  }
  EXPECT_EQ(error(kv("pages: 0")).rfind("c.yaml:5:15: model.kv.pages: expected a whole number", 0),
            0u)
      << error(kv("pages: 0"));
  EXPECT_EQ(error(kv("bytes_max: 1GiB, pages: 7")),
            "c.yaml:5:32: model.kv.pages: expected only one of bytes_max, memory_share or pages; "
            "bytes_max is given already");
  EXPECT_EQ(error(kv("pages: 7, memory_share: 0.5")),
            "c.yaml:5:15: model.kv.pages: expected only one of bytes_max, memory_share or pages; "
            "memory_share is given already");
  EXPECT_EQ(error(kv("prefix_cache: on")),
            "c.yaml:5:22: model.kv.prefix_cache: expected true or false, found 'on'");
}

TEST_F(ConfigTest, what_the_engine_says_gets_its_place_in_the_file) {
  const auto config = parse(kGood +
                            "routes:\n"
                            "  r:\n"
                            "    guarantee: law\n"
                            "    drafter:\n"
                            "      plugin: d\n"
                            "      config: {n: 3}\n"
                            "    verifier: {plugin: v}\n");
  ASSERT_TRUE(config.ok()) << config.status().text();
  struct Said {
    const char *field, *message;
    const char* front;
  };
  const Said table[] = {
      {"routes.r.drafter.config.n", "expected at most 2, found 3",
       "c.yaml:11:16: routes.r.drafter.config.n: expected at most 2"},
      {"routes.r.drafter.config", "key 'm' is missing",
       "c.yaml:11:7: routes.r.drafter.config: key"},
      {"routes.r.drafter.config.parts.0.n", "expected less",
       "c.yaml:11:7: routes.r.drafter.config.parts.0.n: expected less"},
      {"routes.r.drafter.factory", "name one", "c.yaml:9:5: routes.r.drafter.factory: name one"},
      {"routes.r.drafter", "gone", "c.yaml:9:5: routes.r.drafter: gone"},
      {"routes.r.drafter.plugin", "not there", "c.yaml:10:7: routes.r.drafter.plugin: not there"},
      {"routes.r.verifier.plugin", "not there",
       "c.yaml:12:16: routes.r.verifier.plugin: not there"},
      {"routes.r.guarantee", "'none'", "c.yaml:8:5: routes.r.guarantee: 'none'"},
      {"routes.rr.drafter", "x", "c.yaml:6:1: routes.rr.drafter: x"},
      {"model.path", "cannot open", "c.yaml:2:18: model.path: cannot open"},
      {"engine.isa", "this machine has no avx512", "c.yaml:1:1: engine.isa: this machine"},
      {"plugins.directories[0]", "not there", "c.yaml:4:17: plugins.directories[0]: not there"},
      {"plugins.directories[7]", "not there", "c.yaml:4:3: plugins.directories[7]: not there"},
      {"plugins.cache_directory", "not private",
       "c.yaml:5:3: plugins.cache_directory: not private"},
  };
  for (const auto& [field, message, front] : table) {
    const Status placed = with_place(config.value(), Status(Code::kNotFound, field, message));
    EXPECT_EQ(placed.code(), Code::kNotFound);
    EXPECT_EQ(placed.text().rfind(folder_.string() + "/" + front, 0), 0U) << placed.text();
  }
  EXPECT_TRUE(with_place(config.value(), Status()).ok());
  const Status about_nothing(Code::kExhausted, "out of memory");
  EXPECT_EQ(with_place(config.value(), about_nothing), about_nothing);
}

// Names may have dots, and parts of a plugin's configuration have numbers.
TEST_F(ConfigTest, the_place_of_a_field_is_that_of_the_longest_part_that_is_there) {
  const auto config = parse(kGood +
                            "routes:\n"
                            "  a.b:\n"
                            "    drafter:\n"
                            "      plugin: d\n"
                            "      config: {parts: [{n: 3}, {n: 4}]}\n"
                            "    verifier: {plugin: v}\n");
  ASSERT_TRUE(config.ok()) << config.status().text();
  const auto place = [&](const std::string& field) {
    const std::string text =
        with_place(config.value(), Status(Code::kNotFound, "routes.a.b." + field, "x")).text();
    return text.substr(text.find("c.yaml:") + 7, text.find(": ") - text.find("c.yaml:") - 7);
  };
  EXPECT_EQ(place("drafter.config.parts.1.n"), "10:33");
  EXPECT_EQ(place("drafter.config.parts[1].n"), "10:33");
  EXPECT_EQ(place("drafter.config.parts.2.n"), "10:16");
  EXPECT_EQ(place("drafter.config.parts.x"), "10:16");
  EXPECT_EQ(place("drafter.config.part"), "10:7");
}

struct Bad {
  const char* name;
  std::string text;
  std::string starts;    // the message's front: place and key path
  std::string contains;  // and a part of its text
};

std::vector<Bad> bad_files() {
  const std::string& g = kGood;
  const std::string model = "model: {name: m, path: model}\n";
  const std::string listen = "listen: unix:run/s.sock\n";
  const auto route = [&](const std::string& lines) { return g + "routes:\n  r:\n" + lines; };
  return {
      {"empty", "", "c.yaml:1:1: ", "the file is empty"},
      {"comment_only", "# nothing\n", "c.yaml:1:1: ", "the file is empty"},
      {"null_document", "---\n~\n", "c.yaml:2:1: ", "expected a mapping, found nothing"},
      {"a_list", "- a\n", "c.yaml:1:1: ", "expected a mapping, found a list"},
      {"a_word", "hello\n", "c.yaml:1:1: ", "expected a mapping, found 'hello'"},
      {"draft_models_map", g + "draft_models: {name: d}\n",
       "c.yaml:6:15: draft_models: ", "expected a list, found a mapping"},
      {"draft_model_key", g + "draft_models: [{name: d, paht: model}]\n",
       "c.yaml:6:26: draft_models[0].paht: ", "did you mean 'path'?"},
      {"draft_model_named_like_the_target", g + "draft_models:\n  - {name: m, path: model}\n",
       "c.yaml:7:12: draft_models[0].name: ", "a name that no other model has, found 'm'"},
      {"draft_model_twice",
       g + "draft_models:\n  - {name: d, path: model}\n  - {name: d, path: model}\n",
       "c.yaml:8:12: draft_models[1].name: ", "a name that no other model has, found 'd'"},
      {"draft_model_path", g + "draft_models: [{name: d, path: nowhere}]\n",
       "c.yaml:6:32: draft_models[0].path: ", "found nothing at"},
      {"draft_model_bytes", g + "draft_models: [{name: d, path: model, kv: {bytes_max: 1}}]\n",
       "c.yaml:6:44: draft_models[0].kv.bytes_max: ", "unknown key"},
      {"two_documents", g + "---\n" + g, "c.yaml:6:1: ", "a second document"},
      {"not_yaml", "listen: [a\n", "c.yaml:", "not YAML"},
      {"tab_indent", "model:\n\tname: m\n", "c.yaml:2:6: ", "indent with spaces"},
      {"bare_carriage_return", "listen: unix:run/s.sock\rmodel: x\n",
       "c.yaml:1:24: ", "carriage return without a line feed"},
      {"ipv6_unquoted", g + "http: {listen: [::]:9090}\n", "c.yaml:6:", "quote an address"},
      {"unknown_top", g + "lisen: x\n", "c.yaml:6:1: lisen: ", "did you mean 'listen'?"},
      {"unknown_far", g + "zzzzzz: x\n", "c.yaml:6:1: zzzzzz: ", "unknown key; known here: listen"},
      {"unknown_nested", listen + "model: {name: m, path: model, kvs: {}}\n",
       "c.yaml:2:31: model.kvs: ", "did you mean 'kv'?"},
      {"unknown_engine", g + "engine:\n  thread: 2\n",
       "c.yaml:7:3: engine.thread: ", "did you mean 'threads'?"},
      {"unknown_route_key", route("    draft_node_max: 3\n" + kPair),
       "c.yaml:8:5: routes.r.draft_node_max: ", "did you mean 'draft_nodes_max'?"},
      {"unknown_use_key", route("    drafter: {plugn: d}\n    verifier: {plugin: v}\n"),
       "c.yaml:8:15: routes.r.drafter.plugn: ", "did you mean 'plugin'?"},
      {"duplicate_top", g + "listen: unix:run/t.sock\n",
       "c.yaml:6:1: ", "duplicate key 'listen'; first given at line 1"},
      {"duplicate_nested", g + "engine: {threads: 1, threads: 2}\n",
       "c.yaml:6:22: ", "duplicate key 'threads'; first given at line 6"},
      {"duplicate_route", g + "routes:\n  a:\n" + kPair + "  a:\n" + kPair,
       "c.yaml:10:3: ", "duplicate key 'a'"},
      {"duplicate_in_plugin_config",
       route("    drafter:\n      plugin: d\n      config:\n        k: 1\n        k: 2\n"),
       "c.yaml:12:9: ", "duplicate key 'k'"},
      {"no_listen", model, "c.yaml:1:1: listen: ", "missing; it is required"},
      {"no_model", listen, "c.yaml:1:1: model: ", "missing; it is required"},
      {"no_model_path", listen + "model: {name: m}\n", "c.yaml:2:8: model.path: ", "missing"},
      {"no_model_name", listen + "model: {path: model}\n", "c.yaml:2:8: model.name: ", "missing"},
      {"model_nothing", listen + "model:\n",
       "c.yaml:2:1: model: ", "expected a mapping, found nothing"},
      {"listen_tcp", "listen: 0.0.0.0:50051\n" + model,
       "c.yaml:1:9: listen: ", "TCP is served at `tcp.listen`"},
      {"http_name", g + "http: {listen: localhost:9090}\n",
       "c.yaml:6:16: http.listen: ", "found 'localhost:9090'; names are not resolved"},
      {"http_everywhere", g + "http: {listen: 0.0.0.0:9090}\n",
       "c.yaml:6:16: http.listen: ", "found '0.0.0.0:9090'; that is not one address"},
      {"http_everywhere_6", g + "http: {listen: '[::]:9090'}\n",
       "c.yaml:6:16: http.listen: ", "that is not one address"},
      {"http_mapped", g + "http: {listen: '[::ffff:0.0.0.0]:9090'}\n",
       "c.yaml:6:16: http.listen: ", "that is not one address"},
      {"http_multicast", g + "http: {listen: 224.0.0.1:9090}\n",
       "c.yaml:6:16: http.listen: ", "that is not one address"},
      {"http_no_host", g + "http: {listen: ':9090'}\n",
       "c.yaml:6:16: http.listen: ", "expected ADDRESS:PORT"},
      {"http_no_port", g + "http: {listen: 127.0.0.1}\n",
       "c.yaml:6:16: http.listen: ", "expected ADDRESS:PORT"},
      {"http_port", g + "http: {listen: 127.0.0.1:65536}\n",
       "c.yaml:6:16: http.listen: ", "a port is a number from 0"},
      {"http_port_text", g + "http: {listen: 127.0.0.1:80x}\n",
       "c.yaml:6:16: http.listen: ", "a port is a number from 0"},
      {"http_no_brackets", g + "http: {listen: ::1:9090}\n",
       "c.yaml:6:16: http.listen: ", "expected ADDRESS:PORT"},
      {"http_short", g + "http: {listen: 127.1:9090}\n",
       "c.yaml:6:16: http.listen: ", "names are not resolved"},
      {"http_nothing", g + "http:\n", "c.yaml:6:1: http: ", "expected a mapping"},
      {"http_no_listen", g + "http: {stall_seconds: 5}\n", "c.yaml:6:7: http.listen: ", "missing"},
      {"http_stall", g + "http: {listen: 127.0.0.1:0, stall_seconds: 0}\n",
       "c.yaml:6:", "expected a whole number in [1, 86400]"},
      {"listen_list", "listen: [a]\n" + model,
       "c.yaml:1:9: listen: ", "expected text, found a list"},
      {"listen_no_folder", "listen: unix:nowhere/s.sock\n" + model,
       "c.yaml:1:9: listen: ", "there is no folder"},
      {"listen_parent", "listen: unix:..\n" + model,
       "c.yaml:1:9: listen: ", "expected unix:PATH of a socket"},
      {"listen_folder", "listen: unix:run/\n" + model,
       "c.yaml:1:9: listen: ", "expected unix:PATH of a socket"},
      {"listen_folder_itself", "listen: unix:run/.\n" + model,
       "c.yaml:1:9: listen: ", "expected unix:PATH of a socket"},
      {"listen_way_back", "listen: unix:run/..\n" + model,
       "c.yaml:1:9: listen: ", "expected unix:PATH of a socket"},
      {"listen_long", "listen: unix:run/" + std::string(120, 'x') + "\n" + model,
       "c.yaml:1:9: listen: ", "expected at most 107 bytes"},
      {"model_folder_missing", listen + "model: {name: m, path: modle}\n",
       "c.yaml:2:24: model.path: ", "found nothing at "},
      {"model_is_a_file", listen + "model: {name: m, path: file}\n",
       "c.yaml:2:24: model.path: ", "not a folder"},
      {"model_name_space", listen + "model: {name: 'a b', path: model}\n",
       "c.yaml:2:15: model.name: ", "expected a name"},
      {"kv_dtype", listen + "model: {name: m, path: model, kv: {dtype: bf61}}\n",
       "c.yaml:2:43: model.kv.dtype: ", "did you mean 'bf16'?"},
      {"kv_size_unit", listen + "model: {name: m, path: model, kv: {bytes_max: 64MB}}\n",
       "c.yaml:2:47: model.kv.bytes_max: ", "expected a size such as 512MiB"},
      {"kv_size_zero", listen + "model: {name: m, path: model, kv: {bytes_max: 0}}\n",
       "c.yaml:2:47: model.kv.bytes_max: ", "from 1 byte"},
      {"kv_size_huge",
       listen + "model: {name: m, path: model, kv: {bytes_max: 99999999999999GiB}}\n",
       "c.yaml:2:47: model.kv.bytes_max: ", "1024 TiB"},
      {"kv_size_negative", listen + "model: {name: m, path: model, kv: {bytes_max: -1MiB}}\n",
       "c.yaml:2:47: model.kv.bytes_max: ", "found '-1MiB'"},
      {"threads_text", g + "engine: {threads: two}\n",
       "c.yaml:6:19: engine.threads: ", "expected a whole number in [0, 256], found 'two'"},
      {"threads_quoted", g + "engine: {threads: '2'}\n",
       "c.yaml:6:19: engine.threads: ", "found text '2'"},
      {"threads_float", g + "engine: {threads: 2.0}\n",
       "c.yaml:6:19: engine.threads: ", "found '2.0'"},
      {"threads_negative", g + "engine: {threads: -1}\n",
       "c.yaml:6:19: engine.threads: ", "found '-1'"},
      {"threads_large", g + "engine: {threads: 4294967298}\n",
       "c.yaml:6:19: engine.threads: ", "found '4294967298'"},
      {"threads_beyond_64_bits", g + "engine: {threads: 99999999999999999999}\n",
       "c.yaml:6:19: engine.threads: ", "does not fit 64 bits; quote it if it is text"},
      {"threads_octal", g + "engine: {threads: 010}\n",
       "c.yaml:6:19: engine.threads: ", "begins with 0"},
      {"threads_yes", g + "engine: {threads: yes}\n",
       "c.yaml:6:19: engine.threads: ", "found 'yes'"},
      {"threads_nothing", g + "engine: {threads: }\n",
       "c.yaml:6:10: engine.threads: ", "found nothing"},
      {"sequences_zero", g + "engine: {max_sequences: 0}\n",
       "c.yaml:6:25: engine.max_sequences: ", "[1, 1024]"},
      {"rows_below_sequences", g + "engine: {max_sequences: 8, step_tokens_max: 7}\n",
       "c.yaml:6:45: engine.step_tokens_max: ", "at least max_sequences (8)"},
      {"isa", g + "engine: {isa: avx}\n", "c.yaml:6:15: engine.isa: ", "did you mean 'avx2'?"},
      {"devices_word", g + "devices: cuda:0\n", "c.yaml:6:10: devices: ",
       "expected a list of one device, or of one for each rank, found 'cuda:0'"},
      {"devices_none", g + "devices: []\n", "c.yaml:6:10: devices: ", "found a list of 0"},
      {"devices_two", g + "devices: [cuda:0, cuda:1]\n", "c.yaml:6:10: devices: ", "found 2"},
      {"devices_name", g + "devices: [gpu]\n",
       "c.yaml:6:11: devices[0]: ", "expected cpu, cuda:N (N as CUDA numbers devices) or auto"},
      {"devices_number", g + "devices: ['cuda:12345']\n",
       "c.yaml:6:11: devices[0]: ", "found 'cuda:12345'"},
      {"log_level", g + "log_level: warning\n", "c.yaml:6:12: log_level: ", "did you mean 'warn'?"},
      {"drain", g + "drain_seconds: 1e9\n", "c.yaml:6:16: drain_seconds: ", "found '1e9'"},
      {"approved_hash",
       listen + model + "plugins: {directories: [plugins], approved: {sha256: [Aa]}}\n",
       "c.yaml:3:55: plugins.approved.sha256[0]: ", "expected 64 hexadecimal digits in lower case"},
      {"plugin_version", g + "routes: {a: {drafter: {plugin: d@}, verifier: {plugin: v}}}\n",
       "c.yaml:6:32: routes.a.drafter.plugin: ", "expected ID@VERSION, each of at most 64"},
      {"plugin_two_versions",
       g + "routes: {a: {drafter: {plugin: d@1@2}, verifier: {plugin: v}}}\n",
       "c.yaml:6:32: routes.a.drafter.plugin: ", "found 'd@1@2'"},
      {"state_directory_missing", g + "state_directory: none\n",
       "c.yaml:6:18: state_directory: ", "expected an existing folder, which only the user"},
      {"plugin_directory_missing", listen + model + "plugins: {directories: [plugin]}\n",
       "c.yaml:3:25: plugins.directories[0]: ", "found nothing at "},
      {"plugin_directories_word", listen + model + "plugins: {directories: plugins}\n",
       "c.yaml:3:24: plugins.directories: ", "expected a list, found 'plugins'"},
      {"plugin_directories_map", listen + model + "plugins: {directories: [plugins, {a: b}]}\n",
       "c.yaml:3:34: plugins.directories[1]: ", "expected a folder, found a mapping"},
      {"plugins_without_directories", listen + model + "plugins: {cache_directory: x}\n",
       "c.yaml:3:10: plugins.directories: ", "missing"},
      {"default_route_unknown", g + "default_route: prompt\nroutes:\n  prompts:\n" + kPair,
       "c.yaml:6:16: default_route: ", "did you mean 'prompts'?"},
      {"route_off", g + "routes:\n  off:\n" + kPair, "c.yaml:7:3: routes.off: ", "reserved"},
      {"route_name", g + "routes:\n  a/b:\n" + kPair,
       "c.yaml:7:3: routes: ", "as the name of a route"},
      {"routes_list", g + "routes: [a]\n",
       "c.yaml:6:9: routes: ", "expected a mapping, found a list"},
      {"route_word", g + "routes: {r: lookup}\n", "c.yaml:6:13: routes.r: ", "expected a mapping"},
      {"no_drafter", route("    verifier: {plugin: v}\n"),
       "c.yaml:8:5: routes.r.drafter: ", "missing"},
      {"no_verifier", route("    drafter: {plugin: d}\n"),
       "c.yaml:8:5: routes.r.verifier: ", "missing"},
      {"drafter_word", route("    drafter: d\n    verifier: {plugin: v}\n"),
       "c.yaml:8:14: routes.r.drafter: ", "expected a mapping, found 'd'"},
      {"no_plugin", route("    drafter: {}\n    verifier: {plugin: v}\n"),
       "c.yaml:8:14: routes.r.drafter.plugin: ", "missing"},
      {"plugin_path", route("    drafter: {plugin: ../x}\n    verifier: {plugin: v}\n"),
       "c.yaml:8:23: routes.r.drafter.plugin: ", "expected a name"},
      {"guarantee", route("    guarantee: lossless\n" + kPair),
       "c.yaml:8:16: routes.r.guarantee: ", "expected one of identical, law, none"},
      {"route_model", route("    model: other\n" + kPair),
       "c.yaml:8:12: routes.r.model: ", "expected 'm'"},
      {"nodes_zero", route("    draft_nodes_max: 0\n" + kPair),
       "c.yaml:8:22: routes.r.draft_nodes_max: ", "[1, 1024]"},
      {"nodes_beyond_step", route("    draft_nodes_max: 512\n" + kPair),
       "c.yaml:8:22: routes.r.draft_nodes_max: ", "less than engine.step_tokens_max (512)"},
      {"config_list", route("    drafter: {plugin: d, config: [1]}\n    verifier: {plugin: v}\n"),
       "c.yaml:8:34: routes.r.drafter.config: ", "expected a mapping, found a list"},
      {"config_octal",
       route("    drafter: {plugin: d, config: {n: 010}}\n    verifier: {plugin: v}\n"),
       "c.yaml:8:38: routes.r.drafter.config.n: ", "begins with 0"},
      {"config_infinite",
       route("    drafter: {plugin: d, config: {n: [1, .inf]}}\n    verifier: {plugin: v}\n"),
       "c.yaml:8:42: routes.r.drafter.config.n[1]: ", "not a finite number"},
      {"anchor", g + "engine: &e {threads: 1}\n", "c.yaml:6:9: ", "anchors"},
      {"alias", g + "engine: *e\n", "c.yaml:", ""},
      {"tag", g + "engine: !!map {threads: 1}\n", "c.yaml:6:9: ", "tags"},
      {"merge", g + "engine: {<<: {threads: 1}}\n", "c.yaml:6:10: ", "merge keys"},
      {"key_list", g + "? [a, b]\n: c\n", "c.yaml:6:3: ", "a key must be a word"},
      {"control_character", "listen: \"unix:run/\\u0007\"\n" + model,
       "c.yaml:1:9: listen: ", "control characters"},
      {"zero_byte", g + std::string("a: \0", 4), "c.yaml:6:4: ", "a zero byte"},
      {"too_large", g + "#" + std::string(1 << 20, 'x'), "c.yaml:1:1: ", "has at most 1048576"},
      {"too_deep", g + "routes: " + std::string(40, '[') + std::string(40, ']') + "\n",
       "c.yaml:6:40: ", "nested deeper than 32 levels"},
  };
}

TEST_F(ConfigTest, every_bad_file_is_refused_with_its_place_and_key) {
  const std::vector<Bad> table = bad_files();
  EXPECT_GE(table.size(), 70U);
  for (const Bad& bad : table) {
    const std::string message = error(bad.text);
    EXPECT_EQ(message.substr(0, bad.starts.size()), bad.starts) << bad.name << ": " << message;
    EXPECT_NE(message.find(bad.contains), std::string::npos) << bad.name << ": " << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << bad.name << ": " << message;
  }
}

TEST_F(ConfigTest, damage_anywhere_never_crashes_and_names_the_file) {
  const std::string text = kGood + "engine: {threads: 2}\nroutes:\n  r:\n" + kPair;
  ASSERT_EQ(error(text), "ok");
  for (size_t i = 0; i < text.size(); ++i)
    for (const char c : {'\0', '\n', '\t', ':', '{', '[', '*', '&', '!', '"', '\'', '\xff', '-'}) {
      std::string damaged = text;
      damaged[i] = c;
      const std::string message = error(damaged);
      EXPECT_TRUE(message == "ok" || message.rfind("c.yaml:", 0) == 0) << message;
    }
  for (size_t i = 0; i < text.size(); ++i) (void)error(text.substr(0, i));
}

// ---- one route on its own ----------------------------------------------------------------------

EngineOptions served() {
  EngineOptions engine;
  engine.model.name = "m";
  return engine;
}

TEST(RouteFile, is_read_like_a_route_of_the_configuration) {
  const auto file = parse_route(
      "name: r\nguarantee: law\ndraft_nodes_max: 5\n"
      "drafter: {plugin: d, factory: f, config: {n: 18446744073709551615, deep: [1, {x: no}]}}\n"
      "verifier:\n  plugin: v\n",
      "r.yaml", served());
  ASSERT_TRUE(file.ok()) << file.status().text();
  const RouteOptions& route = file.value().route;
  EXPECT_EQ(route.name, "r");
  EXPECT_EQ(route.model, "m");
  EXPECT_EQ(route.guarantee, Guarantee::kLaw);
  EXPECT_EQ(route.draft_nodes_max, 5);
  EXPECT_EQ(route.drafter.factory, "f");
  EXPECT_EQ(route.drafter.config,
            Json::parse(R"({"n": 18446744073709551615, "deep": [1, {"x": "no"}]})"));
  EXPECT_EQ(route.verifier.plugin, "v");
}

TEST(RouteFile, what_is_written_as_json_is_read_back_as_the_same_route) {
  RouteOptions route;
  route.name = "r.1-a_b";
  route.model = "m";
  route.guarantee = Guarantee::kNone;
  route.draft_nodes_max = 17;
  route.drafter = {.plugin = "org.example.d", .factory = "f", .config = {}};
  route.drafter.config = Json::parse(
      R"({"i": -9223372036854775808, "u": 18446744073709551615, "f": 0.1, "e": 1e300, "b": true,
          "s": "true", "t": "12", "z": null, "q": "a \"b\" \\ \n\t\u0001 é 😀 #x: *y", "empty": "",
          "l": [[], {}, [1, "1"]], "007": "0x1f", "- k: v": 1})");
  route.verifier = {.plugin = "v", .factory = {}, .config = Json::object()};
  const std::string text = route_to_json(route).dump();
  const auto file = parse_route(text, "r.json", served());
  ASSERT_TRUE(file.ok()) << file.status().text() << "\n" << text;
  EXPECT_EQ(file.value().route, route);
  EXPECT_EQ(route_from_json(Json::parse(text)).value(), route);
  EXPECT_EQ(route_to_json(file.value().route).dump(), text);
}

TEST(RouteFile, a_bad_one_is_refused_with_its_place) {
  const std::string pair = "drafter: {plugin: d}\nverifier: {plugin: v}\n";
  const std::pair<std::string, const char*> table[] = {
      {"", "r.yaml:1:1: "},
      {"- name: r\n", "r.yaml:1:1: expected a mapping, found a list"},
      {pair, "r.yaml:1:1: name: missing"},
      {"name: off\n" + pair, "r.yaml:1:7: name: 'off' is reserved"},
      {"name: a b\n" + pair, "r.yaml:1:7: name: expected a name"},
      {"name: r\nverifer: {plugin: v}\ndrafter: {plugin: d}\n",
       "r.yaml:2:1: verifer: unknown key; did you mean 'verifier'?"},
      {"name: r\nlisten: unix:x\n" + pair, "r.yaml:2:1: listen: unknown key"},
      {"name: r\ndrafter: {plugin: d}\n", "r.yaml:1:1: verifier: missing"},
      {"name: r\nmodel: n\n" + pair, "r.yaml:2:8: model: expected 'm'"},
      {"name: r\ndraft_nodes_max: 0\n" + pair, "r.yaml:2:18: draft_nodes_max: expected a whole"},
      {"name: r\ndraft_nodes_max: 512\n" + pair,
       "r.yaml:2:18: draft_nodes_max: expected less than engine.step_tokens_max (512)"},
      {"name: r\nguarantee: identic\n" + pair, "r.yaml:2:12: guarantee: expected one of"},
      {"name: r\nname: r\n" + pair, "r.yaml:2:1: "},
      {"name: r\n---\nname: s\n", "r.yaml:"},
      {std::string("name: r\0\n", 9), "r.yaml:1:"},
      {"name: \xff\n" + pair, "r.yaml:1:"},
      {std::string(2 << 20, ' '), "r.yaml:1:1: "},
  };
  for (const auto& [text, starts] : table) {
    const auto file = parse_route(text, "r.yaml", served());
    ASSERT_FALSE(file.ok()) << text.substr(0, 100);
    EXPECT_EQ(file.status().text().substr(0, std::string(starts).size()), starts)
        << file.status().text();
  }
}

TEST(RouteFile, what_the_engine_says_gets_its_place) {
  const auto file = parse_route(
      "name: r\ndrafter:\n  plugin: d.x\n  config:\n    depth: 3\nverifier: {plugin: v}\n",
      "r.yaml", served());
  ASSERT_TRUE(file.ok()) << file.status().text();
  const auto placed = [&](const char* field, const char* message) {
    return with_place(file.value(), Status(Code::kInvalidArgument, field, message)).text();
  };
  EXPECT_EQ(placed("routes.r.drafter.plugin", "plugin 'd.x' is not there"),
            "r.yaml:3:3: drafter.plugin: plugin 'd.x' is not there");
  EXPECT_EQ(placed("routes.r.drafter.config.depth", "expected at most 2"),
            "r.yaml:5:5: drafter.config.depth: expected at most 2");
  EXPECT_EQ(placed("routes.r.draft_nodes_max", "expected at most 8"),
            "r.yaml:1:1: draft_nodes_max: expected at most 8");
  EXPECT_EQ(placed("routes.r", "there are 256 routes already"),
            "r.yaml:1:1: name: there are 256 routes already");
  EXPECT_EQ(placed("request_id", "too long"), "request_id: too long");
  EXPECT_EQ(placed("routes.rr", "x"), "routes.rr: x");
}

TEST_F(ConfigTest, a_missing_file_is_named) {
  const auto config = load_config((folder_ / "none.yaml").string());
  ASSERT_FALSE(config.ok());
  EXPECT_NE(config.status().text().find("none.yaml"), std::string::npos);
}

// Each shipped file is loaded, with the folders that a build makes standing in for build/.
TEST(Configs, every_shipped_file_loads) {
  std::string pattern = (fs::temp_directory_path() / "specd-configs-XXXXXX").string();
  ASSERT_NE(mkdtemp(pattern.data()), nullptr);
  const fs::path root = pattern;
  const fs::path source = SPECD_SOURCE_DIR;
  fs::copy(source / "configs", root / "configs");
  fs::create_directory_symlink(source / "configs/zoo", root / "configs/zoo");
  fs::create_directories(root / "build/cpu/plugins");
  fs::create_directories(root / "build/quickstart");
  int count = 0;
  for (const auto& entry : fs::directory_iterator(root / "configs")) {
    if (entry.path().extension() != ".yaml") continue;
    ++count;
    const auto config = load_config(entry.path().string());
    EXPECT_TRUE(config.ok()) << config.status().text();
  }
  EXPECT_GE(count, 2);
  fs::remove_all(root);
}

}  // namespace
}  // namespace specd::host
