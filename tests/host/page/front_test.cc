// The live page's front on a real engine, without sockets.
#include "host/page/front.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/json.h"
#include "core/base/sha256.h"
#include "tests/host/http/front_rig.h"

namespace specd::host {
namespace {

class PageFrontTest : public FrontTest {
 protected:
  void SetUp() override {
    FrontTest::SetUp();
    start(front_options());
    front_.emplace(PageFront::Options{.sequences_max = 64, .queue_max = 256});
  }

  HttpAnswer ask(const std::string& method, const std::string& path) {
    return FrontTest::ask(front_->routes(), method, path)->answered();
  }
  // A state that is made now.
  Json state() {
    std::this_thread::sleep_for(PageFront::kStateAge);
    const HttpAnswer answer = ask("GET", "/page/state");
    EXPECT_EQ(answer.status, 200u) << answer.body;
    EXPECT_EQ(answer.content_type, "application/json");
    return json_of(answer.body);
  }
  static std::string header(const HttpAnswer& answer, const std::string& name) {
    for (const auto& [each, value] : answer.headers) {
      if (each == name) return value;
    }
    return "";
  }

  std::optional<PageFront> front_;
};

TEST_F(PageFrontTest, the_page_loads_nothing_from_elsewhere_and_runs_its_own_script_alone) {
  const HttpAnswer page = ask("GET", "/");
  EXPECT_EQ(page.status, 200u);
  EXPECT_EQ(page.content_type, "text/html; charset=utf-8");
  EXPECT_TRUE(page.body.starts_with("<!doctype html>"));
  EXPECT_TRUE(page.body.ends_with("</html>\n")) << "the whole file";
  // What a page could load by itself is in attributes and in url(); names of namespaces load nothing.
  for (const char* loads : {" src=", "url(", "@import", "<link rel=\"stylesheet"})
    EXPECT_EQ(page.body.find(loads), std::string::npos) << loads;
  for (const char* writes_html : {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write"})
    EXPECT_EQ(page.body.find(writes_html), std::string::npos) << "text as HTML: " << writes_html;
  const std::string policy = header(page, "content-security-policy");
  EXPECT_TRUE(policy.starts_with("default-src 'none'; script-src 'sha256-")) << policy;
  EXPECT_EQ(policy.find("unsafe"), std::string::npos) << policy;
  EXPECT_NE(policy.find("connect-src 'self'"), std::string::npos) << policy;
  EXPECT_NE(policy.find("frame-ancestors 'none'"), std::string::npos) << policy;
  EXPECT_EQ(header(page, "x-content-type-options"), "nosniff");
}

TEST_F(PageFrontTest, the_page_asks_for_a_key_where_one_is_needed) {
  EXPECT_NE(ask("GET", "/").body.find("<body data-key=\"no\">"), std::string::npos);
  front_.emplace(PageFront::Options{.needs_key = true});
  EXPECT_NE(ask("GET", "/").body.find("<body data-key=\"yes\">"), std::string::npos);
}

TEST_F(PageFrontTest, while_the_model_is_loaded_the_page_is_there_and_the_state_is_not) {
  EXPECT_EQ(ask("GET", "/").status, 200u);
  EXPECT_EQ(ask("GET", "/page/state").status, 503u);
  EXPECT_EQ(ask("POST", "/page/follow/1").status, 503u);
  front_->loaded(*engine_);
  EXPECT_EQ(ask("GET", "/page/state").status, 200u);
}

TEST_F(PageFrontTest, the_figures_are_the_engines) {
  front_->loaded(*engine_);
  run(request(prompts()[1], "lookup", 60));
  const Json state = this->state();
  const EngineReport status = engine_->status();
  EXPECT_EQ(state["state"], "ready");
  EXPECT_EQ(state["tokens"], 60);
  EXPECT_EQ(state["steps"], status.steps);
  EXPECT_EQ(state["running"], 0);
  EXPECT_EQ(state["sequences_max"], 64);
  EXPECT_EQ(state["queue_max"], 256);
  const ModelReport model = engine_->model();
  EXPECT_EQ(state["kv"]["pages"], model.kv_pages_total);
  EXPECT_EQ(state["kv"]["free"], model.kv_pages_free);
  EXPECT_EQ(state["kv"]["cached"], model.kv_pages_cached);
  ASSERT_EQ(state["routes"].size(), 2u);
  EXPECT_EQ(state["routes"][0]["name"], "off");
  const Json& lookup = state["routes"][1];
  const RouteCounts counts = report("lookup").counts;
  EXPECT_EQ(lookup["name"], "lookup");
  EXPECT_EQ(lookup["is_default"], true);
  EXPECT_EQ(lookup["drafted"], counts.drafted);
  EXPECT_EQ(lookup["accepted_at"], Json(counts.accepted_at));
  EXPECT_GT(counts.accepted, 0u);
}

TEST_F(PageFrontTest, the_trees_put_together_are_the_end_of_the_text) {
  front_->loaded(*engine_);
  EXPECT_TRUE(state()["followed"].is_null());
  const Outcome done = run(request(prompts()[1], "lookup", 60));
  const Json state = this->state();
  EXPECT_EQ(state["followed"]["output"], 60);
  EXPECT_EQ(state["followed"]["route"], "lookup");
  std::vector<int32_t> tokens;
  std::string text;
  const auto add = [&](const Json& token) {
    tokens.push_back(token.at(0).get<int32_t>());
    text += token.at(1).get<std::string>();
  };
  for (const Json& tree : state["trees"]) {
    for (const Json& node : tree["accepted"]) add(tree["nodes"].at(node.get<size_t>()).at(1));
    if (!tree["next"].is_null()) add(tree["next"]);
  }
  ASSERT_GE(tokens.size(), 16u);
  EXPECT_EQ(tokens, std::vector<int32_t>(done.tokens.end() - static_cast<ptrdiff_t>(tokens.size()),
                                         done.tokens.end()));
  EXPECT_TRUE(done.text.ends_with(text)) << text;
}

TEST_F(PageFrontTest, all_who_ask_within_a_tenth_of_a_second_get_the_same_state) {
  front_->loaded(*engine_);
  bool is_quick = false;  // a slow machine gets more tries
  for (int i = 0; i < 100 && !is_quick; ++i) {
    const auto start = std::chrono::steady_clock::now();
    const Json first = state();
    run(request(prompts()[0], "off", 1));
    const HttpAnswer second = ask("GET", "/page/state");
    is_quick = std::chrono::steady_clock::now() - start < 2 * PageFront::kStateAge;
    if (!is_quick) continue;
    EXPECT_EQ(parse_json(second.body, "state").value(), first) << "the request is in neither";
    EXPECT_EQ(state()["tokens"], i + 1) << "but in the next";
  }
  EXPECT_TRUE(is_quick);
}

TEST_F(PageFrontTest, a_request_is_followed_by_its_number_and_nothing_else) {
  front_->loaded(*engine_);
  (void)state();
  Pending pending;
  pending.hold_at(3);
  const auto ticket = engine_->submit(request(prompts()[0], "off", 8), pending.sink());
  ASSERT_TRUE(ticket.ok());
  pending.wait_for_tokens(3);
  const HttpAnswer answer = ask("POST", "/page/follow/" + std::to_string(ticket.value().number));
  EXPECT_EQ(answer.status, 204u);
  EXPECT_EQ(answer.body, "");
  pending.let_go();
  pending.wait();
  const Json state = this->state();
  EXPECT_EQ(state["is_picked"], true);
  EXPECT_EQ(state["followed"]["number"], ticket.value().number);
  EXPECT_EQ(state["trees"].size(), 5u) << "a token each";
  EXPECT_EQ(ask("POST", "/page/follow/0").status, 204u);
  EXPECT_EQ(this->state()["is_picked"], false);
  for (const char* wrong : {"-1", "1x", "x", "99999999999999999999", "0x1", " 1"}) {
    const HttpAnswer refused = ask("POST", std::string("/page/follow/") + wrong);
    EXPECT_EQ(refused.status, 400u) << wrong;
    EXPECT_NE(refused.body.find("expected the number of a request, found "), std::string::npos)
        << refused.body;
  }
}

}  // namespace
}  // namespace specd::host
