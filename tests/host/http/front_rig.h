// A front on a real engine, without sockets.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/json.h"
#include "host/serve/sessions.h"
#include "tests/core/engine_rig.h"
#include "tests/host/http/kept_reply.h"

namespace specd::host {

// The small model, with a route "lookup" that drafts.
class FrontTest : public EngineTest {
 protected:
  EngineOptions front_options() {
    EngineOptions o = options();
    o.routes = {route("lookup", plugin("specd.drafter.prompt_lookup"), 5)};
    o.default_route = "lookup";
    return o;
  }
  void serve(const EngineOptions& o) {
    sessions_.reset();
    start(o);
    sessions_.emplace(*engine_, o.default_route);
  }
  void TearDown() override {
    if (sessions_.has_value()) {
      EXPECT_TRUE(sessions_->wait_closed(std::chrono::minutes(1)));
    }
    sessions_.reset();
    EngineTest::TearDown();
  }

  // Calls the handler of the first route that fits.
  static std::shared_ptr<KeptReply> ask(const std::vector<HttpRoute>& routes,
                                        const std::string& method, const std::string& path,
                                        const std::string& body = "", HttpFields headers = {}) {
    const auto reply = std::make_shared<KeptReply>();
    for (const HttpRoute& each : routes) {
      HttpRequest request;
      if (each.method != method || !fits(each, path, request.parameters)) continue;
      request.method = method;
      request.path = path;
      request.body = body;
      request.headers = std::move(headers);
      each.handler(std::move(request), reply);
      return reply;
    }
    ADD_FAILURE() << "no route for " << path;
    reply->answer({.status = 0});
    return reply;
  }
  static Json json_of(const std::string& text) {
    auto json = parse_json(text, "answer");
    EXPECT_TRUE(json.ok()) << text;
    return json.ok() ? std::move(json).value() : Json();
  }

  std::optional<Sessions> sessions_;
};

}  // namespace specd::host
