#include "host/daemon/metrics_text.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <utility>

namespace specd::host {
namespace {

// The serializer writes HELP as it is; the format wants these two escaped.
std::string escaped_help(const std::string& help) {
  std::string text;
  for (const char c : help) {
    if (c == '\\') {
      text += "\\\\";
    } else if (c == '\n') {
      text += "\\n";
    } else {
      text += c;
    }
  }
  return text;
}

prometheus::ClientMetric::Histogram histogram(const MetricFamily& family,
                                              const MetricSeries& series) {
  prometheus::ClientMetric::Histogram result;
  result.sample_sum = series.sum;
  for (size_t i = 0; i < series.counts.size(); ++i) {
    result.sample_count += series.counts[i];
    // The last bucket has no bound: the serializer writes it as +Inf from the count of all.
    if (i < family.bounds.size()) result.bucket.push_back({result.sample_count, family.bounds[i]});
  }
  return result;
}

prometheus::MetricFamily converted(const MetricFamily& family) {
  prometheus::MetricFamily result;
  result.name = family.name;
  result.help = escaped_help(family.help);
  for (const MetricSeries& series : family.series) {
    prometheus::ClientMetric metric;
    for (const auto& [name, value] : series.labels) metric.label.push_back({name, value});
    switch (family.type) {
      case MetricFamily::Type::kCounter:
        result.type = prometheus::MetricType::Counter;
        metric.counter.value = series.value;
        break;
      case MetricFamily::Type::kGauge:
        result.type = prometheus::MetricType::Gauge;
        metric.gauge.value = series.value;
        break;
      case MetricFamily::Type::kHistogram:
        result.type = prometheus::MetricType::Histogram;
        metric.histogram = histogram(family, series);
        break;
    }
    result.metric.push_back(std::move(metric));
  }
  return result;
}

}  // namespace

std::string metrics_text(const std::vector<MetricFamily>& families) {
  std::vector<prometheus::MetricFamily> all;
  all.reserve(families.size());
  for (const MetricFamily& family : families) all.push_back(converted(family));
  return prometheus::TextSerializer().Serialize(all);
}

}  // namespace specd::host
