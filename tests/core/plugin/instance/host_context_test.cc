#include "core/plugin/instance/host_context.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/base/log.h"
#include "tests/core/plugin/bundle_fixture.h"

namespace specd {
namespace {

TEST(Host, services_come_and_go_while_its_pointer_stays) {
  auto first = std::make_unique<TestServices>();
  const specd_host* host = make_host(first.get());
  EXPECT_EQ(make_host(first.get()), host);
  EXPECT_NE(host->get_service(host, SPECD_SERVICE_MEMORY), nullptr);
  EXPECT_EQ(host->get_service(host, "org.example.absent/1"), nullptr);
  EXPECT_EQ(host->get_service(host, nullptr), nullptr);
  first.reset();
  EXPECT_EQ(host->get_service(host, SPECD_SERVICE_MEMORY), nullptr) << "gone, not dangling";
  EXPECT_GT(host->now_ns(host), 0u);
  TestServices second;
  make_host(&second);
  EXPECT_NE(host->get_service(host, SPECD_SERVICE_MEMORY), nullptr) << "the newest serves it";
}

TEST(Host, plugin_that_logs_without_end_is_cut_to_a_hundred_lines_a_second) {
  TestServices services;
  const specd_host* host = make_host(&services);
  const std::string loud = "org.example.loud", quiet = "org.example.quiet";
  const auto lines_of = [](const std::string& name, const std::string& logged) {
    size_t n = 0;
    for (size_t at = logged.find(name + ": x"); at != std::string::npos;
         at = logged.find(name + ": x", at + 1))
      ++n;
    return n;
  };
  testing::internal::CaptureStderr();
  const uint64_t start = host->now_ns(host);
  {
    const PluginScope scope(loud, nullptr);
    for (int i = 0; i < 5000; ++i) host->log(host, SPECD_LOG_INFO, "x", 1);
    for (int i = 0; i < 5000; ++i) host->report(host, nullptr, -1, "y", 1);
    for (int i = 0; i < 5000; ++i) host->get_service(host, SPECD_SERVICE_MEMORY "0");
  }
  {
    const PluginScope scope(quiet, nullptr);
    host->log(host, SPECD_LOG_INFO, "x", 1);
  }
  const uint64_t seconds = (host->now_ns(host) - start) / 1'000'000'000 + 2;  // begun ones
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  {
    const PluginScope scope(loud, nullptr);
    host->log(host, SPECD_LOG_INFO, "x", 1);
  }
  const std::string logged = testing::internal::GetCapturedStderr();
  EXPECT_GE(lines_of(loud, logged), 101u);
  EXPECT_LE(lines_of(loud, logged), 100 * seconds + 1);
  EXPECT_EQ(lines_of(quiet, logged), 1u) << "each plugin has a budget of its own";
  EXPECT_NE(logged.find("lines were dropped; a plugin may log 100 a second"), std::string::npos);
}

TEST(Host, instances_of_a_plugin_share_its_hundred_lines) {
  TestServices services;
  const specd_host* host = make_host(&services);
  const Activity activity{"org.example.many", "plugin org.example.many", "propose"};
  testing::internal::CaptureStderr();
  const uint64_t start = host->now_ns(host);
  for (int i = 0; i < 40; ++i) {
    const std::string name = "org.example.many (route" + std::to_string(i) + ".drafter)";
    const PluginScope scope(name, nullptr, activity);
    for (int line = 0; line < 100; ++line) host->log(host, SPECD_LOG_INFO, "x", 1);
    log_because_of(activity.plugin, LogLevel::kWarn, "route r: begin failed: x");
  }
  const uint64_t seconds = (host->now_ns(host) - start) / 1'000'000'000 + 2;  // begun ones
  const std::string logged = testing::internal::GetCapturedStderr();
  const auto lines = static_cast<uint64_t>(std::count(logged.begin(), logged.end(), '\n'));
  EXPECT_GE(lines, 100u);
  EXPECT_LE(lines, 101 * seconds);
}

TEST(Host, lines_that_were_dropped_are_told_by_another_plugin_or_at_the_end_of_an_instance) {
  TestServices services;
  const specd_host* host = make_host(&services);
  const std::string loud = "org.example.falls_silent", other = "org.example.speaks";
  const auto be_loud = [&] {
    const PluginScope scope(loud, nullptr);
    for (int i = 0; i < 1000; ++i) host->log(host, SPECD_LOG_INFO, "x", 1);
  };
  testing::internal::CaptureStderr();
  be_loud();
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  {
    const PluginScope scope(other, nullptr);
    host->log(host, SPECD_LOG_INFO, "x", 1);
  }
  const std::string first = testing::internal::GetCapturedStderr();
  EXPECT_NE(first.find("plugin " + loud + ": "), std::string::npos);
  EXPECT_NE(first.find(" lines were dropped; a plugin may log 100 a second"), std::string::npos)
      << first;
  testing::internal::CaptureStderr();
  be_loud();
  log_dropped_lines();
  const std::string second = testing::internal::GetCapturedStderr();
  EXPECT_NE(second.find(" lines were dropped"), std::string::npos) << second;
  testing::internal::CaptureStderr();
  log_dropped_lines();
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "") << "told twice";
}

TEST(Host, report_goes_to_call_then_scope_then_log) {
  TestServices services;
  const specd_host* host = make_host(&services);
  specd_batch batch{};
  batch.n_seqs = 2;
  specd_call call;
  call.batch = &batch;
  host->report(host, &call, -1, "whole", 5);
  host->report(host, &call, 1, "one", 3);
  host->report(host, &call, 2, "stray", 5);  // no such sequence
  EXPECT_EQ(call.text, "whole; stray");
  EXPECT_EQ(call.sequence_text.at(1), "one");
  const std::string name = "org.example.p";
  std::string text;
  {
    const PluginScope scope(name, &text);
    host->report(host, nullptr, -1, "early", 5);
  }
  EXPECT_EQ(text, "early");
  testing::internal::CaptureStderr();
  host->report(host, nullptr, -1, "late", 4);
  {
    const PluginScope scope(name, nullptr);
    host->log(host, SPECD_LOG_INFO, "two\nlines", 9);
  }
  const std::string logged = testing::internal::GetCapturedStderr();
  EXPECT_NE(logged.find("plugin reports: late"), std::string::npos) << logged;
  EXPECT_NE(logged.find("plugin org.example.p: two\\nlines"), std::string::npos) << logged;
}

TEST(Host, reported_text_is_bounded_and_valid_utf8) {
  TestServices services;
  const specd_host* host = make_host(&services);
  specd_call call;
  const std::string bad = "a\xff\xc0\x80\xed\xa0\x80\xf0\x9f\x99\x82z\x01\xf0\x9f";
  host->report(host, &call, -1, bad.data(), bad.size());
  EXPECT_EQ(call.text, "a??????\xf0\x9f\x99\x82z ??");
  const std::string page(5000, 'x');
  for (int i = 0; i < 10; ++i) host->report(host, &call, -1, page.data(), page.size());
  EXPECT_LE(call.text.size(), 4100u);
  host->report(host, &call, -1, nullptr, 5);
}

TEST(Host, a_report_that_is_repeated_is_told_once) {
  TestServices services;
  const specd_host* host = make_host(&services);
  specd_call call;
  for (const std::string text : {"ab", "ab", "b", "b", "ab"})
    host->report(host, &call, -1, text.data(), text.size());
  EXPECT_EQ(call.text, "ab; b; ab");
}

TEST(Host, reports_of_many_threads_do_not_race) {
  TestServices services;
  const specd_host* host = make_host(&services);
  specd_call call;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 100; ++i) {
        const std::string text = std::to_string(100 * (t + 1) + i);
        host->report(host, &call, -1, text.data(), text.size());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(call.text.size(), 3 * 400u + 2 * 399u);
}

}  // namespace
}  // namespace specd
