// Every family through the engine: texts, penalties and defaults are those of transformers, and a
// number that is none ends the request that met it.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "core/base/utf8.h"
#include "core/text/detokenizer.h"
#include "core/text/tokenizer.h"
#include "tests/core/engine_rig.h"
#include "tests/core/family_models.h"

namespace specd {
namespace {

class FamilyEngine : public EngineTest, public testing::WithParamInterface<std::string> {
 protected:
  EngineOptions family(const std::string& name) {
    EngineOptions o = options();
    o.model.name = name;
    o.model.path = family_folder(folder_, name);
    return o;
  }
  static Request tokens(const std::vector<int32_t>& ids) {
    Request r;
    r.prompt_tokens = ids;
    r.max_tokens = 64;
    r.route = "off";
    r.ignore_eos = true;
    return r;
  }
  // Replaces `n` values of a float32 tensor from `from` on.
  static void poison(const std::string& folder, const std::string& name, size_t from, size_t n,
                     float value) {
    const std::string path = folder + "/model.safetensors";
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    uint64_t length = 0;
    file.read(reinterpret_cast<char*>(&length), 8);
    std::string header(length, '\0');
    file.read(header.data(), static_cast<std::streamsize>(length));
    const Json tensor = Json::parse(header).at(name);
    ASSERT_EQ(tensor.at("dtype"), "F32");
    const std::vector<float> bad(n, value);
    file.seekp(static_cast<std::streamoff>(8 + length + tensor.at("data_offsets")[0].get<size_t>() +
                                           from * sizeof(float)));
    file.write(reinterpret_cast<const char*>(bad.data()),
               static_cast<std::streamsize>(n * sizeof(float)));
  }
};

TEST_P(FamilyEngine, writes_what_transformers_writes_with_and_without_a_penalty) {
  start(family(GetParam()));
  std::vector<Request> requests;
  std::vector<std::vector<int32_t>> expected;
  for (const Json& each : family_goldens().at(GetParam())) {
    requests.push_back(tokens(each.at("prompt")));
    expected.push_back(each.at("greedy"));
    requests.push_back(requests.back());
    requests.back().sampling.repetition_penalty = 1.3f;
    expected.push_back(each.at("penalized"));
  }
  const std::vector<Outcome> outcomes = run_all(requests);
  for (size_t i = 0; i < outcomes.size(); ++i) EXPECT_EQ(outcomes[i].tokens, expected[i]) << i;
}

TEST_P(FamilyEngine, gives_tokens_the_log_probabilities_of_transformers) {
  start(family(GetParam()));
  for (const Json& each : family_goldens().at(GetParam())) {
    const auto logits = each.at("logits").get<std::vector<double>>();  // of the prompt's last row
    double mass = 0;
    for (const double logit : logits) mass += std::exp(logit);
    Request r = tokens(each.at("prompt"));
    r.max_tokens = 1;
    r.logprobs = 20;
    r.sampling.repetition_penalty = 1.3f;
    const Outcome outcome = run(r);
    std::vector<std::pair<int32_t, double>> found{
        {outcome.tokens.at(0), outcome.logprobs.token.at(0)}};
    for (size_t k = 0; k < 20; ++k) {
      found.emplace_back(outcome.logprobs.top_token.at(k), outcome.logprobs.top.at(k));
    }
    for (const auto& [token, logprob] : found) {
      EXPECT_NEAR(logprob, logits.at(static_cast<size_t>(token)) - std::log(mass), 1e-3);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, FamilyEngine, testing::ValuesIn(families()),
                         [](const auto& family) { return family.param; });

using FamilyEngineOnce = FamilyEngine;

TEST_F(FamilyEngineOnce, a_generation_config_holds_until_the_request_or_the_options_say_otherwise) {
  EngineOptions o = family("llama2");
  std::ofstream(o.model.path + "/generation_config.json")
      << R"({"do_sample": true, "temperature": 0.7, "top_p": 0.8, "top_k": 20,
             "repetition_penalty": 1.3, "eos_token_id": [257, 258], "no_repeat_ngram_size": 2})";
  start(o);
  const ModelReport model = engine_->model();
  EXPECT_FLOAT_EQ(model.sampling_defaults.temperature, 0.7f);
  EXPECT_FLOAT_EQ(model.sampling_defaults.repetition_penalty, 1.3f);
  EXPECT_EQ(model.generation_config_ignored, std::vector<std::string>{"no_repeat_ngram_size 2"});
  EXPECT_EQ(model.eos_tokens, (std::vector<int32_t>{257, 258}));
  const Json& golden = family_goldens().at("llama2").at(1);
  Request silent = tokens(golden.at("prompt"));
  Request explicit_same = silent;
  explicit_same.sampling = {};
  explicit_same.sampling.temperature = 0.7f;
  explicit_same.sampling.top_p = 0.8f;
  explicit_same.sampling.top_k = 20;
  explicit_same.sampling.repetition_penalty = 1.3f;
  Request greedy = silent;
  greedy.sampling.temperature = 0;
  Request plain = greedy;
  plain.sampling.repetition_penalty = 1;
  Pending pending;
  const Ticket ticket = engine_->submit(greedy, pending.sink()).value();
  EXPECT_EQ(ticket.sampling.temperature, 0);
  EXPECT_FLOAT_EQ(ticket.sampling.repetition_penalty, 1.3f);
  EXPECT_EQ(pending.wait().tokens, golden.at("penalized").get<std::vector<int32_t>>());
  EXPECT_EQ(run(plain).tokens, golden.at("greedy").get<std::vector<int32_t>>());
  EXPECT_EQ(run(silent).tokens, run(explicit_same).tokens);
  EXPECT_NE(run(silent).tokens, run(greedy).tokens);

  // Without a word for sampling the file is greedy; a request that samples keeps its top_p.
  std::ofstream(o.model.path + "/generation_config.json") << R"({"temperature": 5, "top_p": 1e-6})";
  start(o);
  Request sampled = silent;
  sampled.sampling.temperature = 1;
  EXPECT_EQ(run(silent).tokens, golden.at("greedy").get<std::vector<int32_t>>());
  EXPECT_EQ(run(sampled).tokens, run(silent).tokens) << "a top_p this small keeps the first alone";
  sampled.sampling.top_p = 1;
  EXPECT_NE(run(sampled).tokens, run(silent).tokens);

  o.model.generation_config = false;
  start(o);
  EXPECT_EQ(run(silent).tokens, golden.at("greedy").get<std::vector<int32_t>>());
}

// Plain, and where a draft goes past the end of the text.
TEST_F(FamilyEngineOnce,
       any_eos_of_the_generation_config_ends_the_text_unless_the_request_says_no) {
  EngineOptions o = family("llama2");
  const Json& golden = family_goldens().at("llama2").at(0);
  Request r = tokens(golden.at("prompt"));
  const auto greedy = golden.at("greedy").get<std::vector<int32_t>>();
  const auto first_of = [&](int32_t token) {
    return std::find(greedy.begin(), greedy.end(), token) - greedy.begin();
  };
  const std::string file = folder_ + "/golden.json";
  std::ofstream(file) << Json{
      {"sequences", {{{"prompt", golden.at("prompt")}, {"output", greedy}}}}};
  const int32_t near = greedy[9], far = greedy[30];
  ASSERT_LT(first_of(near), first_of(far));
  for (const std::vector<int32_t>& eos : {std::vector{far}, {far, near}, {near, far}}) {
    std::ofstream(o.model.path + "/generation_config.json") << Json{{"eos_token_id", eos}};
    o.routes = {route(
        "replay", plugin("specd.drafter.replay", Json{{"file", file}, {"draft_tokens", 8}}), 8)};
    start(o);
    ASSERT_EQ(report("replay").state, RouteState::kLive) << report("replay").refused.to_string();
    const auto tokenizer = Tokenizer::load(o.model.path + "/tokenizer.json").value();
    const int64_t end = eos.size() == 1 ? first_of(far) : first_of(near);
    for (const char* name : {"off", "replay"}) {
      r.route = name;
      r.ignore_eos = false;
      const Outcome outcome = run(r);
      EXPECT_EQ(outcome.finish, FinishReason::kStop) << name;
      EXPECT_EQ(outcome.tokens, std::vector(greedy.begin(), greedy.begin() + end + 1)) << name;
      EXPECT_EQ(outcome.text,
                tokenizer->decode(std::vector(greedy.begin(), greedy.begin() + end), true))
          << name << ": the end is no text";
      r.ignore_eos = true;
      EXPECT_EQ(run(r).tokens, greedy) << name;
    }
  }
  EXPECT_GT(report("replay").counts.accepted, 0u);
}

// Penalties over a text of our own count: the tokens of the output alone.
TEST_F(FamilyEngineOnce, a_least_length_needs_a_token_that_does_not_end_the_text) {
  start(family("llama2"));
  const int32_t vocab_size = engine_->model().vocab_size;
  Request r = tokens(family_goldens().at("llama2").at(0).at("prompt"));
  r.max_tokens = 3;
  r.min_tokens = 2;
  r.ignore_eos = false;
  const std::vector<int32_t> eos = engine_->model().eos_tokens;
  for (int32_t token = 0; token < vocab_size; ++token) {
    if (std::find(eos.begin(), eos.end(), token) == eos.end()) r.stop_tokens.push_back(token);
  }
  EXPECT_EQ(engine_->check(r).to_string(),
            "INVALID_ARGUMENT: min_tokens: every token ends the text, so none may be drawn; name "
            "fewer stop tokens");
  r.ignore_eos = true;
  const Outcome only_eos = run(r);
  ASSERT_EQ(only_eos.tokens.size(), 3u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_NE(std::find(eos.begin(), eos.end(), only_eos.tokens[i]), eos.end());
  }
  r.ignore_eos = false;
  const int32_t kept = r.stop_tokens.back();
  r.stop_tokens.pop_back();
  const Outcome one = run(r);
  ASSERT_EQ(one.tokens.size(), 3u);
  EXPECT_EQ(one.tokens[0], kept);
  EXPECT_EQ(one.tokens[1], kept);
}

TEST_F(FamilyEngineOnce, presence_and_frequency_count_the_output_alone) {
  start(family("llama2"));
  const Json& golden = family_goldens().at("llama2").at(0);
  Request r = tokens(golden.at("prompt"));
  const auto greedy = golden.at("greedy").get<std::vector<int32_t>>();
  // Nothing is out yet when the first token is drawn, so none of these can change it.
  for (const float penalty : {-2.0f, 2.0f}) {
    r.sampling.presence_penalty = penalty;
    r.sampling.frequency_penalty = penalty;
    EXPECT_EQ(run(r).tokens.front(), greedy.front());
  }
  // The more a token was said the further it falls: no text repeats one as often.
  const auto most = [](const std::vector<int32_t>& text) {
    int64_t n = 0;
    for (const int32_t t : text) n = std::max<int64_t>(n, std::count(text.begin(), text.end(), t));
    return n;
  };
  EXPECT_LT(most(run(r).tokens), most(greedy));
}

// G21. A checkpoint with a damaged row: only a request that reads that token fails.
TEST_F(FamilyEngineOnce, a_nan_ends_the_request_that_met_it_and_no_other) {
  EngineOptions o = family("llama_bias");
  poison(o.model.path, "model.embed_tokens.weight", 77 * 48, 48,
         std::numeric_limits<float>::quiet_NaN());
  o.routes = {route("prompt_lookup", plugin("specd.drafter.prompt_lookup"), 4)};
  start(o);
  std::vector<Request> requests;
  std::vector<std::vector<int32_t>> expected;
  for (const Json& each : family_goldens().at("llama_bias")) {
    auto prompt = each.at("prompt").get<std::vector<int32_t>>();
    const auto greedy = each.at("greedy").get<std::vector<int32_t>>();
    const auto meets = [](const std::vector<int32_t>& ids) {
      return std::find(ids.begin(), ids.end(), 77) != ids.end();
    };
    if (!meets(prompt) && !meets(greedy)) {
      requests.push_back(tokens(prompt));
      expected.push_back(greedy);
    }
    for (const char* route_name : {"off", "prompt_lookup"}) {
      for (const float temperature : {0.0f, 0.01f}) {
        auto poisoned = prompt;
        poisoned[poisoned.size() / 2] = 77;
        requests.push_back(tokens(poisoned));
        requests.back().route = route_name;
        requests.back().sampling.temperature = temperature;
        expected.emplace_back();
      }
    }
  }
  ASSERT_EQ(std::count_if(expected.begin(), expected.end(),
                          [](const auto& text) { return !text.empty(); }) > 0,
            true);
  const std::vector<Outcome> outcomes = run_all(requests);
  for (size_t i = 0; i < outcomes.size(); ++i) {
    EXPECT_EQ(outcomes[i].tokens, expected[i]) << i;
    if (!expected[i].empty()) continue;
    EXPECT_EQ(outcomes[i].finish, FinishReason::kError);
    EXPECT_NE(outcomes[i].error.message().find("are not finite"), std::string::npos)
        << outcomes[i].error.to_string();
  }
  EXPECT_TRUE(engine_->failure().ok());
}

// G21. Two infinite weights make one logit +inf and one -inf, among others that are finite.
TEST_F(FamilyEngineOnce, an_infinite_logit_is_no_answer) {
  EngineOptions o = family("llama_bias");
  const float inf = std::numeric_limits<float>::infinity();
  poison(o.model.path, "lm_head.weight", 77 * 48, 1, inf);
  poison(o.model.path, "lm_head.weight", 78 * 48, 1, -inf);
  start(o);
  const Outcome outcome = run(tokens(family_goldens().at("llama_bias").at(0).at("prompt")));
  EXPECT_EQ(outcome.finish, FinishReason::kError);
  EXPECT_TRUE(outcome.tokens.empty());
  EXPECT_NE(outcome.error.message().find("are not finite"), std::string::npos)
      << outcome.error.to_string();
}

// Where the characters of a text begin, and its end.
std::vector<size_t> characters(const std::string& text) {
  std::vector<size_t> starts;
  for (size_t at = 0; at <= text.size(); ++at) {
    if (at == text.size() || (static_cast<unsigned char>(text[at]) & 0xC0) != 0x80)
      starts.push_back(at);
  }
  return starts;
}

// A folder with the weights of the small model and another tokenizer; ids beyond its tokens are
// drawn too.
EngineOptions with_tokenizer(EngineOptions o, const std::string& folder, const std::string& kind) {
  std::filesystem::copy(o.model.path, folder + "/" + kind);
  o.model.path = folder + "/" + kind;
  const std::string golden =
      std::string(SPECD_TEST_REFERENCE) + "/tokenizer_kinds/" + kind + ".json";
  std::ofstream(o.model.path + "/tokenizer.json")
      << parse_json_file(golden, 1 << 26).value().at("tokenizer").dump();
  return o;
}

// G22 with a text whose spaces belong to the tokens after them, and bytes that are tokens.
TEST_F(FamilyEngineOnce, a_sentencepiece_text_goes_on_where_the_prompt_ends) {
  size_t held = 0;
  for (const char* kind : {"llama2_legacy", "metaspace_first", "metaspace_words"}) {
    EngineOptions o = with_tokenizer(options(), folder_, kind);
    const auto tokenizer = Tokenizer::load(o.model.path + "/tokenizer.json").value();
    start(o);
    size_t parted = 0;
    for (uint64_t seed = 0; seed < 12; ++seed) {
      const std::string prompt = prompts()[seed % prompts().size()];
      Request r = request(prompt, "off", 64, 1.5f, seed);
      const Outcome whole = run(r);
      std::vector<int32_t> all = engine_->encode(prompt).value();
      const std::string before = tokenizer->decode(all, true);
      all.insert(all.end(), whole.tokens.begin(), whole.tokens.end());
      EXPECT_EQ(before + whole.text, tokenizer->decode(all, true)) << kind << ", " << seed;
      EXPECT_EQ(utf8_error_offset(whole.text), std::string::npos);
      parted += whole.text.starts_with(' ') ? 1 : 0;
      const std::vector<size_t> starts = characters(whole.text);
      ASSERT_GT(starts.size(), 8u);
      const size_t middle = starts.size() / 2;
      r.stop = {whole.text.substr(starts[middle], starts[middle + 3] - starts[middle])};
      const Outcome stopped = run(r);
      EXPECT_EQ(stopped.text, whole.text.substr(0, whole.text.find(r.stop[0])));
      EXPECT_EQ(stopped.finish, FinishReason::kStop);
      // The end of a text may be a byte that was held back, as the next might belong to it.
      for (int32_t n = 1; seed < 3 && n <= 24; ++n) {
        Request cut = request(prompt, "off", n, 1.5f, seed);
        const Outcome open = run(cut);
        if (open.text.empty()) continue;
        const std::vector<size_t> parts = characters(open.text);  // and the end
        const std::string last = open.text.substr(parts[parts.size() - 2]);
        Detokenizer stream(tokenizer, true, true);
        for (const int32_t token : open.tokens) stream.push(token);
        held += stream.flush().empty() ? 0 : 1;
        cut.stop = {last};
        const Outcome ended = run(cut);
        EXPECT_EQ(ended.text, open.text.substr(0, open.text.find(last)));
        EXPECT_EQ(ended.finish, FinishReason::kStop) << kind << ", " << seed << ", " << n;
      }
    }
    EXPECT_GT(parted, 0u) << kind << ": no text begins with a space";
  }
  EXPECT_GT(held, 0u) << "no text ends in a byte that was held back";
}

TEST_F(FamilyEngineOnce, a_message_cannot_spell_a_token_that_is_not_special_either) {
  EngineOptions o = with_tokenizer(options(), folder_, "llama2_legacy");
  constexpr int32_t kTool = 1900;
  std::ofstream(o.model.path + "/chat_template.jinja")
      << "{% for m in messages %}<tool>{{ m.content }}{% endfor %}";
  start(o);
  Request r;
  r.chat = ChatPrompt{};
  r.chat->messages = {{.role = "user", .content = "a <tool> b", .extra_json = {}}};
  const auto tools = [&] {
    const RenderedPrompt made = engine_->render(r).value();
    EXPECT_EQ(made.text, "<tool>a <tool> b");
    return std::count(made.tokens.begin(), made.tokens.end(), kTool);
  };
  EXPECT_EQ(tools(), 1) << "the template's";
  r.chat->parse_special_tokens_in_messages = true;
  EXPECT_EQ(tools(), 2);
}

// G22. Random bytes as tokens: hardly a character is whole where a token ends.
TEST_P(FamilyEngine, text_is_that_of_all_tokens_and_stops_where_a_string_stops_it) {
  const EngineOptions o = family(GetParam());
  const auto tokenizer = Tokenizer::load(o.model.path + "/tokenizer.json").value();
  start(o);
  for (const Json& each : family_goldens().at(GetParam())) {
    const Request plain = tokens(each.at("prompt"));
    const Outcome whole = run(plain);
    EXPECT_EQ(whole.text, tokenizer->decode(whole.tokens, true));
    EXPECT_EQ(utf8_error_offset(whole.text), std::string::npos);
    // Stop strings of one to four characters from anywhere in it, so that they begin and end inside
    // of tokens.
    const std::vector<size_t> starts = characters(whole.text);
    std::vector<Request> requests;
    for (size_t i = 0; i + 4 < starts.size(); i += 5) {
      const size_t length = 1 + i % 4;
      requests.push_back(plain);
      requests.back().stop = {whole.text.substr(starts[i], starts[i + length] - starts[i])};
    }
    const std::vector<Outcome> stopped = run_all(requests);
    for (size_t i = 0; i < stopped.size(); ++i) {
      EXPECT_EQ(stopped[i].text, whole.text.substr(0, whole.text.find(requests[i].stop[0])));
      EXPECT_EQ(stopped[i].finish, FinishReason::kStop);
      EXPECT_EQ(utf8_error_offset(stopped[i].text), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace specd
