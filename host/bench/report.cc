#include "host/bench/report.h"

#include <cstdlib>

#include "host/base/table.h"

namespace specd::host {
namespace {

constexpr size_t kPlacesShown = 4;

std::string or_dash(double value, int digits) { return value > 0 ? fixed(value, digits) : "-"; }
std::string spread_text(const Row::Spread& spread) {
  return or_dash(spread.p50, 1) + "/" + or_dash(spread.p90, 1) + "/" + or_dash(spread.p99, 1);
}
// The first few places; the rest is in the JSON.
std::string places_text(const std::vector<double>& shares) {
  std::string text;
  for (size_t i = 0; i < shares.size() && i < kPlacesShown; ++i)
    text += (i == 0 ? "" : " ") + fixed(shares[i], 2);
  return text.empty() ? "-" : text + (shares.size() > kPlacesShown ? " .." : "");
}
std::string interval_text(const Interval& interval) {
  return "[" + fixed(interval.low, 2) + ", " + fixed(interval.high, 2) + "]";
}
std::string route_text(const Row& row) { return row.route + (row.is_control ? " (again)" : ""); }
std::string where_text(const Row& row) {
  return route_text(row) + ", " + sampling_text(row.temperature) + ", concurrency " +
         std::to_string(row.concurrency);
}
double acceptance_of(const Row& row) {
  return row.drafted > 0 ? static_cast<double>(row.accepted) / static_cast<double>(row.drafted) : 0;
}
// 0.8 of 0.8F, whose double is 0.800000011920929.
double shown(float value) { return std::strtod(shortest(value).c_str(), nullptr); }
Json spread_json(const Row::Spread& spread) {
  return {{"p50", spread.p50}, {"p90", spread.p90}, {"p99", spread.p99}};
}

}  // namespace

std::string rows_table(const std::vector<Row>& rows) {
  Table table({"sampling", "at once", "route", "requests", "tokens/s", "TTFT ms p50/p90/p99",
               "TPOT ms p50/p90/p99", "tau", "acceptance", "at 1, 2, ..", "drafting", "S", "95 %",
               "eta", "identical"});
  for (const Row& row : rows)
    table.add({sampling_text(row.temperature), std::to_string(row.concurrency), route_text(row),
               std::to_string(row.requests), or_dash(row.tokens_per_s, 1), spread_text(row.ttft_ms),
               spread_text(row.tpot_ms), or_dash(row.tau, 2),
               row.drafted > 0 ? percent(acceptance_of(row)) : "-", places_text(row.accepted_at),
               row.drafting > 0 ? percent(row.drafting) : "-",
               row.speedup > 0 ? fixed(row.speedup, 2) + "x" : "-",
               row.speedup > 0 ? interval_text(row.speedup_interval) : "-", or_dash(row.eta, 3),
               row.requests == 0   ? "-"
               : row.identical     ? "yes"
               : row.promises_text ? "no"
                                   : "not promised"});
  return table.text();
}

std::string findings(const RunFacts& facts, const std::vector<Row>& rows) {
  std::string text;
  if (!facts.fresh_drafters) text += kNoFreshDrafters;
  for (const Row& row : rows) {
    if (row.is_control && row.speedup > 0)
      text += "noise: " + where_text(row) + ": the same route measures " + fixed(row.speedup, 3) +
              "x " + interval_text(row.speedup_interval) + " of itself\n";
    const auto k = facts.draft_tokens.find(row.route);
    // More requests at a time share a forward, whose rows are those of all.
    if (k != facts.draft_tokens.end() && row.eta > 0 && row.concurrency == 1) {
      const auto cost = facts.verify_cost.find(k->second + 1);
      if (cost != facts.verify_cost.end() && cost->second > 0)
        text += where_text(row) + ": eta " + fixed(row.eta, 3) + ", 1 / V(" +
                std::to_string(cost->first) + ") = " + fixed(1 / cost->second, 3) + ", share " +
                fixed(row.eta * cost->second, 3) + "\n";
    }
    if (!row.identical && row.promises_text)
      text += "DIFFERENT TEXT: " + where_text(row) + ": " + row.first_difference + "\n";
  }
  for (const auto& [n, cost] : facts.verify_cost)
    text += "V(" + std::to_string(n) + ") = " + fixed(cost, 3) + "\n";
  return text;
}

Json rows_json(const std::vector<Row>& rows) {
  Json list = Json::array();
  for (const Row& row : rows)
    list.push_back({{"route", row.route},
                    {"is_control", row.is_control},
                    {"temperature", shown(row.temperature)},
                    {"concurrency", row.concurrency},
                    {"input_tokens", row.input_tokens},
                    {"requests", row.requests},
                    {"requests_with_loops", row.loops},
                    {"tokens", row.tokens},
                    {"tokens_per_s", row.tokens_per_s},
                    {"decode_tokens_per_s", row.decode_tokens_per_s},
                    {"ttft_ms", spread_json(row.ttft_ms)},
                    {"tpot_ms", spread_json(row.tpot_ms)},
                    {"tau", row.tau},
                    {"drafted", row.drafted},
                    {"accepted", row.accepted},
                    {"acceptance_rate", acceptance_of(row)},
                    {"acceptance_at", row.accepted_at},
                    {"drafting", row.drafting},
                    {"speedup", row.speedup},
                    {"speedup_low", row.speedup_interval.low},
                    {"speedup_high", row.speedup_interval.high},
                    {"eta", row.eta},
                    {"identical", row.identical},
                    {"promises_text", row.promises_text},
                    {"first_difference", row.first_difference}});
  return list;
}

Json facts_json(const RunFacts& facts) {
  Json cost = Json::object();
  for (const auto& [n, value] : facts.verify_cost) cost[std::to_string(n)] = value;
  Json drafters = Json::object();
  for (const auto& [route, drafter] : facts.drafters)
    drafters[route] = {{"plugin", drafter.use.plugin},
                       {"config", drafter.use.config},
                       {"draft_nodes_max", drafter.draft_nodes_max}};
  return {{"format", "specd-bench run"},
          {"format_version", 1},
          {"command", facts.command},
          {"version", facts.version},
          {"program_sha256", facts.program_sha256},
          {"device", facts.device},
          {"processor", facts.processor},
          {"model", facts.model},
          {"weight_bytes", facts.weight_bytes},
          {"threads", facts.threads},
          {"isa", facts.isa},
          {"prompts", facts.prompts},
          {"repeat", facts.repeat},
          {"top_p", shown(facts.top_p)},
          {"top_k", facts.top_k},
          {"fresh_drafters", facts.fresh_drafters},
          {"verify_cost", cost},
          {"draft_tokens", facts.draft_tokens},
          {"drafters", drafters}};
}

}  // namespace specd::host
