// A strict reader of the text format 0.0.4, written from its description and independent of the
// library that writes it. Refuses what promtool refuses: HELP and TYPE once and before the samples,
// families in one piece, counters that do not end in _total, duplicate series, buckets that go
// down, labels or values that do not read back.
#pragma once

#include <cmath>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace specd::host {

class PrometheusText {
 public:
  using Labels = std::map<std::string, std::string>;

  explicit PrometheusText(const std::string& text) {
    if (text.empty() || text.back() != '\n') {
      fail("the text does not end with a newline");
      return;
    }
    size_t begin = 0;
    while (begin < text.size() && error_.empty()) {
      const size_t end = text.find('\n', begin);
      line_ = text.substr(begin, end - begin);
      begin = end + 1;
      if (line_.rfind("# HELP ", 0) == 0) {
        help();
      } else if (line_.rfind("# TYPE ", 0) == 0) {
        type();
      } else if (line_.empty() || line_[0] == '#') {
        fail("a line that is no HELP, TYPE or sample");
      } else {
        sample();
      }
    }
    if (error_.empty()) check_histograms();
  }

  const std::string& error() const { return error_; }  // "" = good
  std::string type_of(const std::string& family) const {
    const auto found = types_.find(family);
    return found == types_.end() ? "" : found->second;
  }
  std::string help_of(const std::string& family) const {
    const auto found = helps_.find(family);
    return found == helps_.end() ? "" : found->second;
  }
  // NaN when there is no such series.
  double value(const std::string& name, const Labels& labels) const {
    const auto found = samples_.find({name, labels});
    return found == samples_.end() ? std::nan("") : found->second;
  }
  // Whether a series of `name` carries labels of all these names.
  bool has(const std::string& name, const std::set<std::string>& labels) const {
    for (const auto& [key, value] : samples_) {
      if (key.first != name) continue;
      bool has_all = true;
      for (const std::string& label : labels) has_all = has_all && key.second.contains(label);
      if (has_all) return true;
    }
    return false;
  }
  // The sum of all series of `name` that carry `labels`; NaN when there is none.
  double sum(const std::string& name, const Labels& labels = {}) const {
    double total = 0;
    bool found = false;
    for (const auto& [key, value] : samples_) {
      if (key.first != name) continue;
      bool carries = true;
      for (const auto& label : labels) {
        const auto has = key.second.find(label.first);
        carries = carries && has != key.second.end() && has->second == label.second;
      }
      if (!carries) continue;
      total += value;
      found = true;
    }
    return found ? total : std::nan("");
  }
  size_t size() const { return samples_.size(); }

 private:
  using Key = std::pair<std::string, Labels>;

  void fail(const std::string& why) {
    if (error_.empty()) error_ = why + ": " + line_;
  }
  static bool is_name(std::string_view name, bool colon) {
    if (name.empty() || (name[0] >= '0' && name[0] <= '9')) return false;
    for (const char c : name) {
      const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
      if (!letter && !(c >= '0' && c <= '9') && !(colon && c == ':')) return false;
    }
    return true;
  }
  // Undoes \\ and \n, and \" where quotes are; anything else after a backslash is an error.
  bool unescape(std::string_view from, bool quotes, std::string& to) {
    for (size_t i = 0; i < from.size(); ++i) {
      if (from[i] != '\\') {
        to += from[i];
        continue;
      }
      if (++i == from.size()) return false;
      if (from[i] == '\\') {
        to += '\\';
      } else if (from[i] == 'n') {
        to += '\n';
      } else if (quotes && from[i] == '"') {
        to += '"';
      } else {
        return false;
      }
    }
    return true;
  }

  void begin_family(const std::string& name) {
    if (name == family_) return;
    if (!seen_.insert(name).second) fail("a family in two pieces");
    family_ = name;
  }
  void help() {
    const size_t space = line_.find(' ', 7);
    if (space == std::string::npos) return fail("HELP without a text");
    const std::string name = line_.substr(7, space - 7);
    if (!is_name(name, true)) return fail("a bad name");
    begin_family(name);
    std::string text;
    if (!unescape(line_.substr(space + 1), false, text)) return fail("a bad escape");
    if (text.empty()) return fail("an empty HELP");
    if (types_.count(name) != 0) return fail("HELP behind TYPE");
    if (!helps_.emplace(name, text).second) fail("HELP twice");
  }
  void type() {
    const size_t space = line_.find(' ', 7);
    if (space == std::string::npos) return fail("TYPE without a type");
    const std::string name = line_.substr(7, space - 7), kind = line_.substr(space + 1);
    if (!is_name(name, true)) return fail("a bad name");
    begin_family(name);
    static const std::set<std::string> kKinds{"counter", "gauge", "histogram"};
    if (kKinds.count(kind) == 0) return fail("an unknown type");
    if (helps_.count(name) == 0) return fail("TYPE without HELP");
    const bool total = name.size() > 6 && name.compare(name.size() - 6, 6, "_total") == 0;
    // vLLM has a histogram of that name, and its dashboards look for it.
    const bool is_theirs = name == "vllm:iteration_tokens_total";
    if (total != (kind == "counter") && !is_theirs)
      return fail("_total is for counters, and for all of them");
    if (!types_.emplace(name, kind).second) fail("TYPE twice");
  }
  void sample() {
    const size_t name_end = line_.find_first_of("{ ");
    if (name_end == std::string::npos) return fail("a sample without a value");
    const std::string name = line_.substr(0, name_end);
    if (!is_name(name, true)) return fail("a bad name");
    if (types_.count(family_) == 0) return fail("a sample without TYPE");
    const std::string& kind = types_[family_];
    const std::string rest = name.rfind(family_, 0) == 0 ? name.substr(family_.size()) : "?";
    const bool belongs = kind == "histogram"
                             ? rest == "_bucket" || rest == "_sum" || rest == "_count"
                             : rest.empty();
    if (!belongs) return fail("a sample of another family");

    Labels labels;
    size_t at = name_end;
    if (line_[at] == '{') {
      ++at;
      while (at < line_.size() && line_[at] != '}') {
        const size_t equals = line_.find("=\"", at);
        if (equals == std::string::npos) return fail("a label without a value");
        const std::string label = line_.substr(at, equals - at);
        if (!is_name(label, false)) return fail("a bad label");
        size_t close = equals + 2;
        while (close < line_.size() && line_[close] != '"') close += line_[close] == '\\' ? 2 : 1;
        if (close >= line_.size()) return fail("an open label");
        std::string value;
        if (!unescape(line_.substr(equals + 2, close - equals - 2), true, value))
          return fail("a bad escape");
        if (!labels.emplace(label, value).second) return fail("a label twice");
        at = close + 1;
        if (at < line_.size() && line_[at] == ',') {
          ++at;
        } else if (at >= line_.size() || line_[at] != '}') {
          return fail("no comma between labels");
        }
      }
      ++at;
    }
    if (at >= line_.size() || line_[at] != ' ') return fail("no blank before the value");
    const std::string number = line_.substr(at + 1);
    char* end = nullptr;
    const double value = std::strtod(number.c_str(), &end);
    if (number.empty() || *end != '\0') return fail("a value that is no number");
    if (kind == "counter" && !(value >= 0)) return fail("a counter below zero");
    if (!samples_.emplace(Key{name, labels}, value).second) fail("a series twice");
  }

  void check_histograms() {
    struct Histogram {
      std::map<double, double> buckets;
      std::map<std::string, int> parts;
      double count = -1;
    };
    std::map<Key, Histogram> histograms;
    for (const auto& [key, value] : samples_) {
      for (const auto& [family, kind] : types_) {
        if (kind != "histogram" || key.first.rfind(family + "_", 0) != 0) continue;
        Labels labels = key.second;
        const std::string part = key.first.substr(family.size());
        if (part == "_bucket") {
          if (labels.count("le") == 0) return fail("a bucket without le in " + family);
          const std::string le = labels["le"];
          labels.erase("le");
          histograms[{family, labels}]
              .buckets[le == "+Inf" ? INFINITY : std::strtod(le.c_str(), nullptr)] = value;
        } else if (part == "_count") {
          histograms[{family, labels}].count = value;
        }
        ++histograms[{family, labels}].parts[part];
      }
    }
    for (const auto& [key, histogram] : histograms) {
      line_ = key.first;
      if (histogram.parts.size() != 3) return fail("a histogram without all of its parts");
      double last = 0;
      for (const auto& [le, n] : histogram.buckets) {
        if (n < last) return fail("buckets that go down");
        last = n;
      }
      if (histogram.buckets.rbegin()->first != INFINITY) return fail("no +Inf bucket");
      if (last != histogram.count) return fail("+Inf is not the count");
    }
  }

  std::string line_, error_, family_;
  std::set<std::string> seen_;
  std::map<std::string, std::string> types_, helps_;
  std::map<Key, double> samples_;
};

}  // namespace specd::host
