// Prints a measurement: a table for people, JSON for programs.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "host/bench/measure.h"

namespace specd::host {

struct Drafter {
  PluginUse use;  // as configured
  int32_t draft_nodes_max = 0;
};

// The conditions of a measurement.
struct RunFacts {
  std::string command;         // as a shell takes it
  std::string version;         // of the specd that computed
  std::string program_sha256;  // of this program; empty: a daemon computed
  std::string device;          // "cpu (cpu-avx2)"
  std::string processor;       // the operating system's name for it; empty: not known
  std::string model;           // ends in "(ballast)" for a ballast
  uint64_t weight_bytes = 0;
  int32_t threads = 0;  // 0: not known
  std::string isa;
  size_t prompts = 0;
  int repeat = 0;
  float top_p = 1;                          // 1: off
  int32_t top_k = 0;                        // 0: off
  bool fresh_drafters = true;               // at the start of every pass over the prompts
  std::map<int, double> verify_cost;        // V(n) by n; empty: not measured
  std::map<std::string, int> draft_tokens;  // K of the routes where it is known
  std::map<std::string, Drafter> drafters;  // by route; empty: a daemon's, not known
};

// Columns, then one line a row.
std::string rows_table(const std::vector<Row>& rows);
// One sentence a line: drafters that were not fresh, the noise by the control, eta of one request
// at a time against 1 / V(K + 1), texts that differ, V(n).
std::string findings(const RunFacts& facts, const std::vector<Row>& rows);
Json rows_json(const std::vector<Row>& rows);
Json facts_json(const RunFacts& facts);

}  // namespace specd::host
