// The real daemon on the small model, used through its socket as a client would.
#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "core/base/json.h"
#include "host/bench/measure.h"
#include "host/bench/server_backend.h"
#include "tests/host/daemon/daemon_rig.h"

namespace specd::host {
namespace {

TEST_F(DaemonTest, text_and_its_ids_give_the_same_continuation) {
  Client client = daemon_->client();
  v1::GenerateRequest request = make_request("off", 24);
  request.set_request_id("my-id");
  request.set_return_prompt_token_ids(true);
  std::vector<std::string> kinds;
  const auto by_text = client.generate(request, [&](const v1::GenerateResponse& message) {
    kinds.emplace_back(message.has_started() ? "started"
                       : message.has_chunk() ? "chunk"
                                             : "finished");
  });
  ASSERT_TRUE(by_text.ok()) << by_text.status().text();
  const Generation& first = by_text.value();
  ASSERT_GE(kinds.size(), 3U);
  EXPECT_EQ(kinds.front(), "started");
  EXPECT_EQ(kinds.back(), "finished");
  EXPECT_EQ(first.started.request_id(), "my-id");
  EXPECT_EQ(first.finished.request_id(), "my-id");
  EXPECT_EQ(first.started.route(), "off");
  EXPECT_EQ(first.token_ids.size(), 24U);
  EXPECT_FALSE(first.text.empty());
  EXPECT_EQ(first.finished.finish_reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(first.finished.usage().completion_tokens(), 24);
  EXPECT_EQ(first.finished.usage().prompt_tokens(), first.started.prompt_token_ids_size());
  EXPECT_EQ(first.finished.speculation().total_draft_tokens(), 0);
  EXPECT_GT(first.finished.times().decode_ms(), 0);

  request.clear_text();
  request.clear_request_id();
  *request.mutable_token_ids()->mutable_ids() = first.started.prompt_token_ids();
  const auto by_ids = client.generate(request, {});
  ASSERT_TRUE(by_ids.ok()) << by_ids.status().text();
  EXPECT_EQ(by_ids.value().token_ids, first.token_ids);
  EXPECT_EQ(by_ids.value().text, first.text);
  EXPECT_FALSE(by_ids.value().started.request_id().empty());
}

TEST_F(DaemonTest, routes_give_identical_ids_greedy_and_sampled) {
  Client client = daemon_->client();
  for (const float temperature : {0.0F, 0.8F}) {
    const auto plain = client.generate(make_request("off", 48, temperature), {});
    const auto drafted = client.generate(make_request("", 48, temperature), {});
    ASSERT_TRUE(plain.ok() && drafted.ok());
    EXPECT_EQ(drafted.value().started.route(), "lookup");
    EXPECT_EQ(plain.value().token_ids, drafted.value().token_ids);
    const v1::Speculation& s = drafted.value().finished.speculation();
    EXPECT_EQ(s.total_draft_tokens(), s.total_accepted_draft_tokens() +
                                          s.total_rejected_draft_tokens() +
                                          s.total_discarded_draft_tokens());
    if (s.total_draft_tokens() > 0) {
      EXPECT_DOUBLE_EQ(s.acceptance_rate(), static_cast<double>(s.total_accepted_draft_tokens()) /
                                                static_cast<double>(s.total_draft_tokens()));
    }
  }
  const auto greedy = client.generate(make_request("lookup", 48), {});
  ASSERT_TRUE(greedy.ok());
  EXPECT_GT(greedy.value().finished.speculation().total_accepted_draft_tokens(), 0);
}

TEST_F(DaemonTest, client_that_hangs_up_cancels_its_request) {
  Client client = daemon_->client();
  const uint64_t before = client.status().value().cancelled();
  {
    const auto stub = v1::Inference::NewStub(daemon_->channel());
    grpc::ClientContext context;
    const auto reader = stub->Generate(&context, make_request("lookup", 1500, 0.9F));
    v1::GenerateResponse message;
    ASSERT_TRUE(reader->Read(&message));
    ASSERT_TRUE(reader->Read(&message));
    context.TryCancel();
    EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  EXPECT_TRUE(eventually([&] { return client.status().value().cancelled() == before + 1; }));
}

TEST_F(DaemonTest, cancel_ends_a_request_by_its_id) {
  Client client = daemon_->client();
  EXPECT_FALSE(client.cancel("nobody").value().found());
  v1::GenerateRequest request = make_request("off", 1500);
  request.set_request_id("to-be-cancelled");
  const auto generation = client.generate(request, [&](const v1::GenerateResponse& message) {
    if (message.has_started()) {
      EXPECT_TRUE(client.cancel("to-be-cancelled").value().found());
    }
  });
  ASSERT_FALSE(generation.ok());
  EXPECT_EQ(generation.status().code(), Code::kCancelled);
}

TEST_F(DaemonTest, deadlines_end_a_request_whoever_sets_them) {
  Client client = daemon_->client();
  const uint64_t before = client.status().value().deadline_misses();
  v1::GenerateRequest request = make_request("off", 1500);
  request.set_deadline_ms(50);
  const auto generation = client.generate(request, {});
  ASSERT_FALSE(generation.ok());
  EXPECT_EQ(generation.status().code(), Code::kDeadlineExceeded);
  EXPECT_NE(generation.status().text().find("deadline_ms"), std::string::npos);
  EXPECT_EQ(client.status().value().deadline_misses(), before + 1);
  auto inference = v1::Inference::NewStub(daemon_->channel());
  {  // out of range, whatever the call's own
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    request.set_deadline_ms(INT64_MAX);
    const auto stream = inference->Generate(&context, request);
    for (v1::GenerateResponse message; stream->Read(&message);) {
    }
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  }
  // The call's own: the engine heeds it, or gRPC's hanging up cancels.
  request.clear_deadline_ms();
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(50));
  const auto stream = inference->Generate(&context, request);
  for (v1::GenerateResponse message; stream->Read(&message);) {
  }
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
}

TEST_F(DaemonTest, usage_tells_what_the_prefix_cache_had_and_salts_keep_apart) {
  Client client = daemon_->client();
  v1::GenerateRequest request = make_request("off", 8);
  for (int i = 0; i < 40; ++i) request.mutable_token_ids()->add_ids(300 + i * 3);
  request.set_cache_salt("one");
  const auto first = client.generate(request, {});
  const auto second = client.generate(request, {});
  request.set_cache_salt("two");
  const auto other = client.generate(request, {});
  ASSERT_TRUE(first.ok() && second.ok() && other.ok());
  EXPECT_EQ(first.value().finished.usage().cached_prompt_tokens(), 0);
  EXPECT_EQ(second.value().finished.usage().cached_prompt_tokens(), 32);
  EXPECT_EQ(other.value().finished.usage().cached_prompt_tokens(), 0);
  EXPECT_EQ(second.value().token_ids, first.value().token_ids);
  EXPECT_GE(client.models().value().models(0).prefix_hit_tokens(), 32U);
}

TEST_F(DaemonTest, many_streams_at_once_all_complete_with_the_same_text) {
  constexpr int kStreams = 72;
  const auto expected = daemon_->client().generate(make_request("off", 8), {});
  ASSERT_TRUE(expected.ok());
  std::atomic<int> same{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kStreams; ++i)
    threads.emplace_back([&, i] {
      Client client = daemon_->client();
      const auto got = client.generate(make_request(i % 2 == 0 ? "off" : "lookup", 8), {});
      if (got.ok() && got.value().token_ids == expected.value().token_ids) ++same;
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(same, kStreams);
}

TEST_F(DaemonTest, stop_strings_and_ids_end_the_text) {
  Client client = daemon_->client();
  const auto plain = client.generate(make_request("off", 40), {});
  ASSERT_TRUE(plain.ok());
  const std::vector<int32_t>& ids = plain.value().token_ids;
  v1::GenerateRequest by_id = make_request("lookup", 40);
  by_id.add_stop_token_ids(ids[5]);
  const auto stopped = client.generate(by_id, {});
  ASSERT_TRUE(stopped.ok());
  EXPECT_EQ(stopped.value().finished.finish_reason(), v1::FINISH_REASON_STOP);
  const auto first = static_cast<size_t>(std::find(ids.begin(), ids.end(), ids[5]) - ids.begin());
  EXPECT_EQ(
      stopped.value().token_ids,
      std::vector<int32_t>(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(first) + 1));

  const std::string& text = plain.value().text;
  ASSERT_GT(text.size(), 12U);
  const std::string stop = text.substr(8, 3);
  v1::GenerateRequest by_text = make_request("lookup", 40);
  by_text.add_stop(stop);
  const auto cut = client.generate(by_text, {});
  ASSERT_TRUE(cut.ok());
  EXPECT_EQ(cut.value().finished.finish_reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(cut.value().text, text.substr(0, text.find(stop)));
}

TEST_F(DaemonTest, log_probabilities_of_prompt_and_text_an_echo_and_choices_come_in_their_order) {
  Client client = daemon_->client();
  v1::GenerateRequest request = make_request("lookup", 12);
  for (int i = 0; i < 300; ++i) request.mutable_token_ids()->add_ids(300 + i % 50);
  request.set_return_prompt_token_ids(true);
  request.set_echo(true);
  request.set_logprobs(2);
  request.set_prompt_logprobs(1);
  request.set_n(3);
  request.mutable_sampling()->set_temperature(1);
  std::string kinds;
  v1::Logprobs prompt;
  std::map<int, std::vector<int32_t>> tokens;
  std::map<int, int> finished;
  const auto generation = client.generate(request, [&](const v1::GenerateResponse& message) {
    const char kind = message.has_started()           ? 's'
                      : message.has_prompt_logprobs() ? 'p'
                      : message.has_chunk()           ? 'c'
                                                      : 'f';
    if (kinds.empty() || kinds.back() != kind) kinds += kind;
    if (message.has_prompt_logprobs()) prompt.MergeFrom(message.prompt_logprobs());
    if (!message.has_chunk()) return;
    const v1::Chunk& chunk = message.chunk();
    EXPECT_EQ(chunk.logprobs().token_size(), chunk.token_ids_size());
    EXPECT_EQ(chunk.logprobs().top_token_ids_size(), 2 * chunk.token_ids_size());
    EXPECT_EQ(chunk.logprobs().top_size(), 2 * chunk.token_ids_size());
    std::vector<int32_t>& all = tokens[chunk.index()];
    all.insert(all.end(), chunk.token_ids().begin(), chunk.token_ids().end());
    finished[chunk.index()] += chunk.finish_reason() == v1::FINISH_REASON_LENGTH ? 1 : 0;
  });
  ASSERT_TRUE(generation.ok()) << generation.status().text();
  EXPECT_EQ(kinds, "spcf");
  const v1::Started& started = generation.value().started;
  EXPECT_EQ(prompt.token_size(), started.prompt_token_ids_size() - 1);
  EXPECT_EQ(prompt.top_size(), prompt.token_size());
  EXPECT_FALSE(started.prompt_text().empty());
  ASSERT_EQ(tokens.size(), 3U);
  for (const auto& [index, ids] : tokens) {
    EXPECT_EQ(ids.size(), 12U) << index;
    EXPECT_EQ(finished[index], 1) << index;
  }
  EXPECT_NE(tokens[0], tokens[1]);
  EXPECT_EQ(generation.value().token_ids, tokens[0]);
  EXPECT_EQ(generation.value().finished.usage().completion_tokens(), 36);

  const auto [code, screen] = run_specctl(
      *daemon_,
      "generate --route off --prompt 'def main():' --ignore-eos --max-tokens 4 --echo --n 2 "
      "--logprobs 1 --prompt-logprobs 0");
  EXPECT_EQ(code, 0) << screen;
  EXPECT_EQ(screen.find("def main():"), 0U) << screen;
  EXPECT_NE(screen.find("--- choice 1 (length)"), std::string::npos) << screen;
  EXPECT_NE(screen.find("most likely"), std::string::npos) << screen;
}

TEST_F(DaemonTest, control_calls_report_what_is_there) {
  Client client = daemon_->client();
  const auto plugins = client.plugins();
  ASSERT_TRUE(plugins.ok());
  int loaded = 0;
  for (const v1::Plugin& plugin : plugins.value().plugins())
    if (plugin.id() == "specd.drafter.prompt_lookup" || plugin.id() == "specd.verifier.match") {
      EXPECT_EQ(plugin.state(), v1::PLUGIN_STATE_LOADED) << plugin.reason();
      EXPECT_EQ(plugin.sha256().size(), 64U);
      EXPECT_EQ(plugin.factories_size(), 1);
      ++loaded;
    }
  EXPECT_EQ(loaded, 2);
  const auto routes = client.routes();
  ASSERT_TRUE(routes.ok());
  bool has_off = false, has_lookup = false;
  for (const v1::Route& route : routes.value().routes()) {
    has_off = has_off || route.name() == "off";
    if (route.name() != "lookup") continue;
    has_lookup = true;
    EXPECT_TRUE(route.is_default());
    EXPECT_EQ(route.guarantee(), v1::GUARANTEE_IDENTICAL);
  }
  EXPECT_TRUE(has_off && has_lookup);
  const auto models = client.models();
  ASSERT_TRUE(models.ok());
  ASSERT_EQ(models.value().models_size(), 1);
  EXPECT_EQ(models.value().models(0).name(), "pico");
  EXPECT_EQ(models.value().models(0).vocab_size(), 4096);
  EXPECT_EQ(models.value().models(0).parameters(), 14162304U);
  EXPECT_EQ(models.value().models(0).weight_format(), "bf16");
  EXPECT_EQ(models.value().models(0).weight_bits(), 16);
  EXPECT_EQ(models.value().models(0).eos_tokens_size(), 1);
  EXPECT_EQ(models.value().models(0).default_sampling().temperature(), 0);
  const auto status = client.status();
  ASSERT_TRUE(status.ok());
  EXPECT_EQ(status.value().state(), v1::ENGINE_STATE_READY);
  EXPECT_EQ(status.value().pid(), daemon_->pid());
  EXPECT_EQ(status.value().threads(), 2);
  EXPECT_GT(status.value().memory_size(), 0);
}

TEST_F(DaemonTest, a_route_tells_what_its_drafter_holds) {
  Client client = daemon_->client();
  const auto lookup = [&] {
    const auto routes = client.routes();
    for (const v1::Route& route : routes.value().routes()) {
      if (route.name() == "lookup") return route;
    }
    return v1::Route();
  };
  const auto stub = v1::Inference::NewStub(daemon_->channel());
  grpc::ClientContext context;
  const auto reader = stub->Generate(&context, make_request("lookup", 1500, 0.9F));
  v1::GenerateResponse message;
  ASSERT_TRUE(reader->Read(&message));
  ASSERT_TRUE(reader->Read(&message));
  v1::Route route;
  EXPECT_TRUE(eventually([&] { return (route = lookup()).memory_bytes() > 0; }));
  EXPECT_LE(route.memory_bytes(), route.memory_bytes_max());
  context.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(eventually([&] { return lookup().memory_bytes() == 0; }));
}

// Peak of its resident memory in bytes.
uint64_t peak_memory(pid_t pid) {
  const std::string status = read_file("/proc/" + std::to_string(pid) + "/status");
  const size_t line = status.find("VmHWM:");
  return line == std::string::npos ? 0 : std::stoull(status.substr(line + 6)) << 10;
}

TEST_F(DaemonTest, compressed_messages_are_refused_and_never_inflated) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxSendMessageSize(-1);
  const auto channel = grpc::CreateCustomChannel(socket_uri(daemon_->socket()),
                                                 grpc::InsecureChannelCredentials(), arguments);
  const auto stub = v1::Inference::NewStub(channel);
  for (const auto algorithm : {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE}) {
    for (const size_t bytes : {size_t{10'000}, size_t{256} << 20}) {
      const uint64_t before = peak_memory(daemon_->pid());
      v1::GenerateRequest request = make_request("off", 2);
      request.set_text(std::string(bytes, ' '));
      grpc::ClientContext context;
      context.set_compression_algorithm(algorithm);
      const auto reader = stub->Generate(&context, request);
      v1::GenerateResponse message;
      EXPECT_FALSE(reader->Read(&message));
      const grpc::Status status = reader->Finish();
      EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED) << status.error_message();
      EXPECT_NE(status.error_message().find("ompression"), std::string::npos)
          << status.error_message();
      EXPECT_LT(peak_memory(daemon_->pid()), before + (32 << 20)) << bytes;
    }
  }
}

TEST_F(DaemonTest, health_says_serving) {
  EXPECT_EQ(health(daemon_->channel(), ""), "SERVING");
  EXPECT_EQ(health(daemon_->channel(), "specd.v1.Inference"), "SERVING");
  EXPECT_EQ(health(daemon_->channel(), "nothing"),
            "error " + std::to_string(grpc::StatusCode::NOT_FOUND));
}

TEST_F(DaemonTest, socket_belongs_to_its_owner_alone) {
  struct stat info {};
  ASSERT_EQ(stat(daemon_->socket().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
}

TEST_F(DaemonTest, second_instance_is_refused_naming_the_first) {
  const pid_t other = fork();
  if (other == 0) {
    const int log = open((daemon_->folder() / "second").c_str(), O_WRONLY | O_CREAT, 0600);
    dup2(log, STDERR_FILENO);
    execl(SPECD_BINARY, "specd", "serve", "--config", (daemon_->folder() / "c.yaml").c_str(),
          nullptr);
    _exit(127);
  }
  int status = 0;
  waitpid(other, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1);
  EXPECT_NE(
      read_file(daemon_->folder() / "second").find("process " + std::to_string(daemon_->pid())),
      std::string::npos);
  EXPECT_TRUE(daemon_->client().status().ok());
}

TEST_F(DaemonTest, compare_and_record_tell_the_routes_apart) {
  Client client = daemon_->client();
  ServerBackend backend(client);
  const auto model = backend.model();
  ASSERT_TRUE(model.ok()) << model.status().text();
  EXPECT_TRUE(
      fs::equivalent(model.value().path, fs::path(SPECD_SOURCE_DIR) / "configs/zoo/pico-target"));
  const std::atomic<bool> go = false;
  MeasureOptions options;
  options.routes = {"off", "lookup"};
  options.temperatures = {0, 0.8F};
  options.max_tokens = 16;
  const std::vector<Prompt> prompts = {{"a", kPrompt, std::nullopt, 0},
                                       {"b", "import os\n", std::nullopt, 0}};
  const Measurement measured = measure(backend, prompts, options, go, {});
  ASSERT_TRUE(measured.status.ok()) << measured.status.text();
  const std::vector<Row> rows = summarize(measured, false);
  ASSERT_EQ(rows.size(), 4U);
  for (const Row& row : rows) {
    EXPECT_TRUE(row.identical) << row.first_difference;
    EXPECT_EQ(row.requests, 2);
    EXPECT_GT(row.decode_tokens_per_s, 0);
    EXPECT_GT(row.ttft_ms.p50, 0);
    EXPECT_GE(row.tau, 1);
    if (row.route == "off" || row.accepted == 0) continue;
    double places = 0;  // the sum over places is what a draft gains
    for (const double share : row.accepted_at) places += share;
    EXPECT_GT(places, 0);
    EXPECT_LE(places, static_cast<double>(row.accepted));
  }
  const auto text = record(backend, {prompts[0]}, options, go);
  ASSERT_TRUE(text.ok()) << text.status().text();
  const auto json = parse_json(text.value(), "record");
  ASSERT_TRUE(json.ok());
  ASSERT_EQ(json.value()["sequences"].size(), 2U);
  EXPECT_EQ(json.value()["sequences"][1]["seed"], 1);
  EXPECT_EQ(json.value()["sequences"][0]["output"].size(), 16U);
  EXPECT_GT(json.value()["sequences"][0]["prompt"].size(), 16U);

  const std::atomic<bool> stop = true;
  Request long_one;
  long_one.prompt = kPrompt;
  long_one.max_tokens = 1500;
  long_one.ignore_eos = true;
  const auto stopped = backend.run(long_one, false, stop);
  ASSERT_FALSE(stopped.ok());
  EXPECT_EQ(stopped.status().code(), Code::kCancelled) << stopped.status().to_string();
}

TEST_F(DaemonTest, specctl_reads_a_prompt_from_a_file_a_pipe_or_standard_input) {
  const std::string file = (daemon_->folder() / "prompt.txt").string();
  std::ofstream(file) << kPrompt;
  const std::string render = "render --prompt-file ";
  const auto [code, expected] = run_specctl(*daemon_, render + file);
  ASSERT_EQ(code, 0) << expected;
  ASSERT_NE(expected.find("class Vector"), std::string::npos) << expected;
  EXPECT_EQ(run_specctl(*daemon_, render + "/dev/stdin < " + file).second, expected);
  EXPECT_EQ(run_specctl(*daemon_, "render < " + file).second, expected);
  const std::string fifo = (daemon_->folder() / "fifo").string();
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  std::thread writer([&] {  // in two pieces
    std::ofstream pipe(fifo);
    pipe << std::string(kPrompt).substr(0, 10) << std::flush;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    pipe << std::string(kPrompt).substr(10);
  });
  EXPECT_EQ(run_specctl(*daemon_, render + fifo).second, expected);
  writer.join();

  const std::string absent = (daemon_->folder() / "absent").string();
  const std::string binary = (daemon_->folder() / "binary").string();
  std::ofstream(binary) << "ab\xff";
  const std::pair<std::string, std::string> refused[] = {
      {"/dev/zero", "--prompt-file /dev/zero: expected a prompt of at most 1048576 bytes"},
      {"/", "--prompt-file /: cannot read: Is a directory"},
      {absent, "--prompt-file " + absent + ": cannot open: No such file"},
      {binary, "--prompt-file " + binary + ": expected UTF-8, found an ill-formed character at "},
  };
  for (const auto& [path, words] : refused) {
    const auto [refused_code, text] = run_specctl(*daemon_, render + path);
    EXPECT_EQ(refused_code, 1) << text;
    EXPECT_NE(text.find(words), std::string::npos) << text;
  }
  EXPECT_NE(run_specctl(*daemon_, "render < /dev/zero").second.find("standard input: expected"),
            std::string::npos);
}

TEST_F(DaemonTest, specctl_tells_as_what_weights_are_stored) {
  EXPECT_NE(run_specctl(*daemon_, "models").second.find("MiB bf16, 16.00 bits a weight  "),
            std::string::npos);
  const auto [code, memory] = run_specctl(*daemon_, "memory");
  EXPECT_NE(memory.find("weights of pico (bf16, 16.00 bits a weight)  "), std::string::npos)
      << memory;
  EXPECT_EQ(daemon_->client().memory().value().lines(0).detail(), "bf16, 16.00 bits a weight");
}

// `specd check` and specctl, of a quantized model with its cache in 8 bits.
TEST(QuantizedDaemon, tells_the_words_bits_and_bytes_of_its_weights_and_its_cache) {
  Daemon daemon;
  const fs::path reference = std::string(SPECD_SOURCE_DIR) + "/tests/reference",
                 model = daemon.folder() / "model";
  fs::copy(reference / "quantized/ct_int4_llama", model);
  fs::copy(reference / "models/tokenizer.json", model);
  daemon.write_config_text(
      "engine: {threads: 2, max_sequences: 8}\n"
      "model: {name: tiny, path: model, kv: {dtype: int8, pages: 100}}\n"
      "plugins: {directories: [PLUGINS], cache_directory: cache}\n");
  // 2 layers of 61,440 weights: 4 bits, a BF16 scale for each 32, and the shapes. A token has in each of 2 layers 2
  // rows of K and of V: 16 bytes and a scale of 4.
  const auto expect = [](const std::string& text) {
    EXPECT_NE(text.find("weights of tiny (W4A16 g32, 4.53 bits a weight)  "), std::string::npos)
        << text;
    EXPECT_NE(text.find("KV cache, 100 pages of 16 tokens (int8)"), std::string::npos) << text;
    EXPECT_NE(text.find("250.0 KiB"), std::string::npos) << text;
  };
  const auto [code, checked] = run_command(std::string(SPECD_BINARY) + " check --config " +
                                           (daemon.folder() / "c.yaml").string());
  EXPECT_EQ(code, 0);
  expect(checked);
  ASSERT_TRUE(daemon.start()) << daemon.output();
  const std::string models = run_specctl(daemon, "models").second;
  EXPECT_NE(models.find("KiB W4A16 g32, 4.53 bits a weight  "), std::string::npos) << models;
  EXPECT_NE(models.find(" int8 "), std::string::npos) << models;
  expect(run_specctl(daemon, "memory").second);
  EXPECT_EQ(daemon.stop(), 0) << daemon.output();
}

constexpr char kFullDisk[] = "specctl: cannot write to standard output: No space left on device\n";

TEST_F(DaemonTest, specctl_tells_that_its_output_cannot_be_written) {
  for (const char* command :
       {"routes", "routes -o json", "plugins", "models", "status", "status -o json", "memory",
        "memory -o json", "route get lookup", "render --prompt x"}) {
    const auto [code, text] = run_specctl(*daemon_, std::string(command) + " > /dev/full");
    EXPECT_EQ(code, 1) << command;
    EXPECT_EQ(text, kFullDisk) << command;
  }
}

TEST_F(DaemonTest, specctl_ends_a_generation_whose_text_cannot_be_written) {
  Client client = daemon_->client();
  const uint64_t before = client.status().value().cancelled();
  for (const char* output : {"table", "json"}) {
    const auto [code, text] = run_specctl(
        *daemon_, std::string("generate --route off --prompt 'def main():' --ignore-eos "
                              "--max-tokens 1500 > /dev/full -o ") +
                      output);
    EXPECT_EQ(code, 1) << output;
    EXPECT_EQ(text, kFullDisk) << output;
  }
  EXPECT_TRUE(eventually([&] { return client.status().value().cancelled() == before + 2; }));
}

TEST_F(DaemonTest, routes_show_version_and_hash_of_their_plugins_and_off_counts_its_requests) {
  Client client = daemon_->client();
  const auto requests_of = [&](const std::string& name) {
    const auto all = client.routes();
    for (const v1::Route& route : all.value().routes())
      if (route.name() == name) return route.requests();
    return uint64_t{0};
  };
  const uint64_t before = requests_of("off"), lookups = requests_of("lookup");
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(client.generate(make_request("off", 2), {}).ok());
  EXPECT_EQ(requests_of("off"), before + 3);
  EXPECT_EQ(requests_of("lookup"), lookups);

  const auto routes = client.routes();
  ASSERT_TRUE(routes.ok());
  const v1::Route& lookup = routes.value().routes(1);
  ASSERT_EQ(lookup.name(), "lookup");
  const auto [code, table] = run_specctl(*daemon_, "routes");
  EXPECT_EQ(code, 0) << table;
  const std::string log = daemon_->output();
  for (const auto& [id, version, sha256] :
       {std::tuple(lookup.drafter(), lookup.drafter_version(), lookup.drafter_sha256()),
        std::tuple(lookup.verifier(), lookup.verifier_version(), lookup.verifier_sha256())}) {
    ASSERT_EQ(sha256.size(), 64U);
    const std::string shown = id + "  " + version + " (" + sha256.substr(0, 8) + ")";
    EXPECT_NE(table.find(shown), std::string::npos) << shown << "\n" << table;
    // The operator's log says what code runs.
    const size_t line = log.find("plugin " + id + " " + version + " loaded from ");
    ASSERT_NE(line, std::string::npos) << log;
    EXPECT_NE(log.substr(line, log.find('\n', line) - line).find("sha256:" + sha256),
              std::string::npos)
        << log;
  }
}

}  // namespace
}  // namespace specd::host
