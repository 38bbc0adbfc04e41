#include "host/daemon/metrics_text.h"

#include <gtest/gtest.h>

#include "tests/host/daemon/prometheus_text.h"

namespace specd::host {
namespace {

MetricFamily family(const std::string& name, MetricFamily::Type type,
                    std::vector<MetricSeries> series) {
  return {.name = name, .help = "Help.", .type = type, .bounds = {}, .series = std::move(series)};
}
MetricSeries number(std::vector<std::pair<std::string, std::string>> labels, double value) {
  return {.labels = std::move(labels), .value = value, .counts = {}, .sum = 0};
}

TEST(MetricsText, what_is_written_reads_back) {
  const std::string nasty = "a\\b\"c\nd{e=\"f\"},} 1 # HELP \xc3\xa9";
  std::vector<MetricFamily> families{
      family("specd_a_total", MetricFamily::Type::kCounter,
             {number({{"route", nasty}, {"x", ""}}, 12345678901234.0), number({}, 0)}),
      family("specd_b", MetricFamily::Type::kGauge, {number({{"route", "r"}}, -0.1)}),
      {.name = "specd_c_seconds",
       .help = "Two lines\nand a \\ backslash.",
       .type = MetricFamily::Type::kHistogram,
       .bounds = {0.0001, 0.1, 1000},
       .series = {{.labels = {{"model", nasty}}, .value = 0, .counts = {3, 0, 2, 1}, .sum = 2.5}}},
  };
  const std::string text = metrics_text(families);
  const PrometheusText read(text);
  ASSERT_EQ(read.error(), "") << text;
  EXPECT_EQ(read.value("specd_a_total", {{"route", nasty}, {"x", ""}}), 12345678901234.0);
  EXPECT_EQ(read.value("specd_a_total", {}), 0);
  EXPECT_EQ(read.value("specd_b", {{"route", "r"}}), -0.1);
  EXPECT_EQ(read.help_of("specd_c_seconds"), "Two lines\nand a \\ backslash.");
  const auto bucket = [&](const char* le) {
    return read.value("specd_c_seconds_bucket", {{"model", nasty}, {"le", le}});
  };
  EXPECT_EQ(bucket("0.0001"), 3) << text;
  EXPECT_EQ(bucket("0.1"), 3);
  EXPECT_EQ(bucket("1000"), 5);
  EXPECT_EQ(bucket("+Inf"), 6);
  EXPECT_EQ(read.value("specd_c_seconds_count", {{"model", nasty}}), 6);
  EXPECT_EQ(read.value("specd_c_seconds_sum", {{"model", nasty}}), 2.5);
}

// The reader is worth nothing if it takes everything.
TEST(MetricsText, the_strict_reader_refuses_what_is_wrong) {
  const std::string head = "# HELP a_total x\n# TYPE a_total counter\n";
  EXPECT_EQ(PrometheusText(head + "a_total 1\n").error(), "");
  const std::string histogram = "# HELP h x\n# TYPE h histogram\n";
  EXPECT_EQ(PrometheusText(histogram + "h_bucket{le=\"1\"} 1\nh_bucket{le=\"+Inf\"} 2\nh_sum 3\n"
                                       "h_count 2\n")
                .error(),
            "");
  for (const std::string& bad : {
           head + "a_total 1",
           head + "a_total 1\na_total 2\n",
           head + "a_total{x=\"1\"} 1\na_total{x=\"1\"} 2\n",
           head + "a_total{x=\"\\q\"} 1\n",
           head + "a_total{x=\"1\" y=\"2\"} 1\n",
           head + "a_total{x-y=\"1\"} 1\n",
           head + "a_total one\n",
           head + "a_total -1\n",
           head + "b_total 1\n",
           head + head + "a_total 1\n",
           std::string("a_total 1\n"),
           std::string("# TYPE a_total counter\na_total 1\n"),
           std::string("# HELP a x\n# TYPE a counter\na 1\n"),
           std::string("# HELP a_total x\n# TYPE a_total gauge\na_total 1\n"),
           head + "a_total 1\n# HELP b x\n# TYPE b gauge\nb 1\na_total{x=\"1\"} 1\n",
           histogram + "h_bucket{le=\"1\"} 3\nh_bucket{le=\"+Inf\"} 2\nh_sum 3\nh_count 2\n",
           histogram + "h_bucket{le=\"1\"} 1\nh_sum 3\nh_count 1\n",
           histogram + "h_bucket{le=\"+Inf\"} 2\nh_sum 3\nh_count 3\n",
           histogram + "h_bucket{le=\"+Inf\"} 2\nh_count 2\n",
       }) {
    EXPECT_NE(PrometheusText(bad).error(), "") << bad;
  }
}

}  // namespace
}  // namespace specd::host
