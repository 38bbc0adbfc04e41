#include "core/ranks/step_input.h"

namespace specd {
namespace {

std::string fault_at(const std::string& column, size_t i, int64_t found, int64_t low,
                     int64_t high) {
  return column + "[" + std::to_string(i) + "] is " + std::to_string(found) + ", expected " +
         std::to_string(low) + ".." + std::to_string(high);
}

std::string fault_of_size(const std::string& column, size_t found, size_t expected) {
  return column + " has " + std::to_string(found) + " entries, expected " +
         std::to_string(expected);
}

// Checks that every value is in [low, high] and, if `increasing`, above the one before.
std::string values_fault(const std::string& column, const std::vector<int32_t>& values, int64_t low,
                         int64_t high, bool increasing = false) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] < low || values[i] > high) return fault_at(column, i, values[i], low, high);
    if (increasing) low = int64_t{values[i]} + 1;
  }
  return std::string();
}

// Checks the tokens of structs.
template <typename T>
std::string tokens_fault(const std::string& column, const std::vector<T>& values,
                         int32_t vocab_size) {
  for (size_t i = 0; i < values.size(); ++i) {
    const int32_t token = values[i].token;
    if (token < 0 || token >= vocab_size) {
      return fault_at(column, i, token, 0, int64_t{vocab_size} - 1);
    }
  }
  return std::string();
}

std::string rows_fault(const ForwardRows& rows, const StepLimits& limits) {
  const auto n = static_cast<size_t>(rows.n_rows());
  if (n < 1 || n > static_cast<size_t>(limits.rows_max)) {
    return "rows.token has " + std::to_string(n) + " entries, expected 1.." +
           std::to_string(limits.rows_max);
  }
  struct Named {
    const char* name;
    const std::vector<int32_t>& values;
    int64_t high;
  };
  const int64_t slot_max = int64_t{limits.n_pages} * kernels::kPageTokens - 1;
  const Named per_row[] = {
      {"rows.token", rows.token, int64_t{limits.vocab_size} - 1},
      {"rows.position", rows.position, int64_t{limits.positions_end} - 1},
      {"rows.slot", rows.slot, slot_max},
      {"rows.span", rows.span, limits.positions_end},
      {"rows.table", rows.table, static_cast<int64_t>(rows.pages.size())},
      {"rows.tail_begin", rows.tail_begin, static_cast<int64_t>(rows.tail.size())},
  };
  for (const Named& each : per_row) {
    if (each.values.size() != n) return fault_of_size(each.name, each.values.size(), n);
    std::string fault = values_fault(each.name, each.values, 0, each.high);
    if (!fault.empty()) return fault;
  }
  const auto last_row = static_cast<int64_t>(n) - 1;
  std::string fault = values_fault("rows.pages", rows.pages, 0, int64_t{limits.n_pages} - 1);
  if (fault.empty()) fault = values_fault("rows.tail", rows.tail, 0, slot_max);
  if (fault.empty()) fault = values_fault("rows.logits_rows", rows.logits_rows, 0, last_row, true);
  if (fault.empty()) fault = values_fault("rows.tap_rows", rows.tap_rows, 0, last_row, true);
  if (!fault.empty()) return fault;
  // A row attends to `span` positions through its pages and to the rest of its context in the tail.
  for (size_t i = 0; i < n; ++i) {
    const int64_t in_tail = int64_t{rows.position[i]} + 1 - rows.span[i];
    if (in_tail < 0)
      return fault_at("rows.span", i, rows.span[i], 0, int64_t{rows.position[i]} + 1);
    const int64_t pages = (int64_t{rows.span[i]} + kernels::kPageTokens - 1) / kernels::kPageTokens;
    const auto n_pages = static_cast<int64_t>(rows.pages.size());
    if (rows.table[i] + pages > n_pages) {
      return fault_at("rows.table", i, rows.table[i], 0, n_pages - pages);
    }
    const auto n_tail = static_cast<int64_t>(rows.tail.size());
    if (rows.tail_begin[i] + in_tail > n_tail) {
      return fault_at("rows.tail_begin", i, rows.tail_begin[i], 0, n_tail - in_tail);
    }
  }
  std::vector<bool> written(static_cast<size_t>(slot_max + 1));
  for (size_t i = 0; i < n; ++i) {
    const auto slot = static_cast<size_t>(rows.slot[i]);
    if (written[slot]) return "rows.slot[" + std::to_string(i) + "] repeats that of an earlier row";
    written[slot] = true;
  }
  return std::string();
}

std::string penalties_fault(const StepInput& input, const StepLimits& limits) {
  if (input.penalty_row.empty()) return std::string();
  const size_t n_logits = input.rows.logits_rows.size();
  if (input.penalty_row.size() != n_logits) {
    return fault_of_size("penalty_row", input.penalty_row.size(), n_logits);
  }
  const auto range_fault = [](const char* what, size_t i, int32_t begin, int32_t end, size_t size) {
    const bool good = begin >= 0 && begin <= end && static_cast<size_t>(end) <= size;
    return good
               ? std::string()
               : "penalty_row[" + std::to_string(i) + "]." + what + " is " + std::to_string(begin) +
                     ".." + std::to_string(end) + ", expected within 0.." + std::to_string(size);
  };
  for (size_t i = 0; i < n_logits; ++i) {
    const kernels::PenaltyRow& row = input.penalty_row[i];
    std::string fault =
        range_fault("seen", i, row.seen_begin, row.seen_end, input.penalty_seen.size());
    if (fault.empty()) {
      fault = range_fault("path", i, row.path_begin, row.path_end, input.penalty_path.size());
    }
    if (fault.empty()) {
      fault = range_fault("bias", i, row.bias_begin, row.bias_end, input.penalty_bias.size());
    }
    if (!fault.empty()) return fault;
  }
  std::string fault = tokens_fault("penalty_seen.token", input.penalty_seen, limits.vocab_size);
  if (fault.empty()) {
    fault = tokens_fault("penalty_bias.token", input.penalty_bias, limits.vocab_size);
  }
  if (!fault.empty()) return fault;
  return values_fault("penalty_path", input.penalty_path, 0, int64_t{input.rows.n_rows()} - 1);
}

std::string picks_fault(const StepInput& input, std::span<const size_t> part_tokens) {
  if (input.picks.size() > part_tokens.size()) {
    return "picks has " + std::to_string(input.picks.size()) + " entries, expected at most " +
           std::to_string(part_tokens.size());
  }
  std::vector<bool> picked(part_tokens.size());
  for (size_t i = 0; i < input.picks.size(); ++i) {
    const TokenPick& pick = input.picks[i];
    const std::string name = "picks[" + std::to_string(i) + "]";
    const auto part = static_cast<size_t>(pick.part);
    if (pick.part < 0 || part >= part_tokens.size()) {
      return name + ".part is " + std::to_string(pick.part) + ", expected 0.." +
             std::to_string(part_tokens.size() - 1);
    }
    if (picked[part]) return name + ".part repeats that of an earlier pick";
    picked[part] = true;
    if (pick.from.size() != pick.to.size()) {
      return fault_of_size(name + ".from", pick.from.size(), pick.to.size());
    }
    std::string fault =
        values_fault(name + ".from", pick.from, 0, static_cast<int64_t>(part_tokens[part]) - 1);
    if (fault.empty()) {
      fault = values_fault(name + ".to", pick.to, 0, int64_t{input.rows.n_rows()} - 1, true);
    }
    if (!fault.empty()) return fault;
  }
  return std::string();
}

}  // namespace

void StepInput::clear() {
  rows.clear();
  draws.clear();
  top_k = 0;
  taps_to_host = false;
  law_to_host.clear();
  raw_to_host.clear();
  penalty_row.clear();
  penalty_seen.clear();
  penalty_path.clear();
  penalty_bias.clear();
  picks.clear();
}

std::string step_input_fault(const StepInput& input, const StepLimits& limits,
                             std::span<const size_t> part_tokens) {
  std::string fault = rows_fault(input.rows, limits);
  if (!fault.empty()) return fault;
  const size_t n_logits = input.rows.logits_rows.size();
  if (n_logits > static_cast<size_t>(limits.logits_rows_max)) {
    return "rows.logits_rows has " + std::to_string(n_logits) + " entries, expected at most " +
           std::to_string(limits.logits_rows_max);
  }
  if (input.top_k < 0 || input.top_k > limits.vocab_size) {
    return "top_k is " + std::to_string(input.top_k) + ", expected 0.." +
           std::to_string(limits.vocab_size);
  }
  if (input.draws.size() != n_logits) return fault_of_size("draws", input.draws.size(), n_logits);
  const auto last_logits = static_cast<int64_t>(n_logits) - 1;
  fault = values_fault("law_to_host", input.law_to_host, 0, last_logits, true);
  if (fault.empty()) fault = values_fault("raw_to_host", input.raw_to_host, 0, last_logits, true);
  if (!fault.empty()) return fault;
  for (size_t i = 0; i < input.law_to_host.size(); ++i) {
    if (input.draws[static_cast<size_t>(input.law_to_host[i])].law) continue;
    return "law_to_host[" + std::to_string(i) + "] is a row whose draw gives no law";
  }
  fault = penalties_fault(input, limits);
  return fault.empty() ? picks_fault(input, part_tokens) : fault;
}

}  // namespace specd
