// specctl compare and record: the same prompts on one or several routes.
#include <atomic>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "core/base/json.h"
#include "host/base/command_line.h"
#include "host/base/output.h"
#include "host/base/table.h"
#include "host/bench/measure.h"
#include "host/bench/server_backend.h"
#include "host/ctl/command.h"

namespace specd::host {
namespace {

Result<MeasureOptions> read_measure_options(const Values& values, std::vector<std::string> routes) {
  MeasureOptions options;
  options.routes = std::move(routes);
  SPECD_TRY(const std::vector<double> temperatures,
            parse_list("--temperature", values["temperature"].as<std::string>(), 0, 100,
                       /*whole=*/false));
  options.temperatures.assign(temperatures.begin(), temperatures.end());
  options.top_p = values["top-p"].as<float>();
  options.top_k = values["top-k"].as<int32_t>();
  options.seed = values["seed"].as<uint64_t>();
  options.max_tokens = values["max-tokens"].as<int32_t>();
  options.repeat = values["repeat"].as<int>();
  if (values.count("prompts") == 0)
    return Status(Code::kInvalidArgument, "--prompts: expected a file or a folder");
  return options;
}

// Only a signal stops these commands, and it ends the process.
const std::atomic<bool> kNoStop = false;

}  // namespace

int run_compare(Client& client, const Values& values, Format format) {
  const std::vector<std::string> routes = split(values["routes"].as<std::string>());
  const auto options = read_measure_options(values, routes);
  if (!options.ok()) return ctl_usage(options.status().message());
  const auto prompts = read_prompts(values["prompts"].as<std::vector<std::string>>());
  if (!prompts.ok()) return ctl_fail(prompts.status());
  ServerBackend backend(client);
  const Measurement measured =
      measure(backend, prompts.value(), options.value(), kNoStop, /*between_rounds=*/{});
  if (!measured.status.ok()) return ctl_fail(measured.status);

  bool all_identical = true;
  Table table(
      {"sampling", "route", "tokens/s", "speedup", "accepted/step", "acceptance", "identical"});
  for (const Row& row : summarize(measured, /*skip_loops=*/false)) {
    all_identical = all_identical && row.identical;
    const double acceptance =
        row.drafted > 0 ? static_cast<double>(row.accepted) / static_cast<double>(row.drafted) : 0;
    const double length = row.tau > 1 ? row.tau - 1 : 0;
    if (format != Format::kTable) {
      const Json object{{"route", row.route},
                        {"temperature", row.temperature},
                        {"requests", row.requests},
                        {"tokens", row.tokens},
                        {"tokens_per_s", row.decode_tokens_per_s},
                        {"speedup", row.speedup},
                        {"mean_accepted_length", length},
                        {"acceptance_rate", acceptance},
                        {"identical", row.identical},
                        {"first_difference", row.first_difference}};
      write_output(object_text(object.dump(), format));
      continue;
    }
    table.add({sampling_text(row.temperature), row.route, fixed(row.decode_tokens_per_s, 1),
               fixed(row.speedup, 2) + "x", fixed(length, 2),
               row.drafted > 0 ? percent(acceptance) : "-",
               row.identical ? "identical: yes" : "identical: no (" + row.first_difference + ")"});
  }
  if (format == Format::kTable) write_output(printable(table.text()));
  if (format == Format::kTable && !measured.fresh_drafters) write_output(kNoFreshDrafters);
  return all_identical ? kCtlOk : kCtlDifferent;
}

int run_record(Client& client, const Values& values) {
  const std::string route = values["route"].as<std::string>();
  const auto options = read_measure_options(values, {route.empty() ? "off" : route});
  if (!options.ok()) return ctl_usage(options.status().message());
  const auto prompts = read_prompts(values["prompts"].as<std::vector<std::string>>());
  if (!prompts.ok()) return ctl_fail(prompts.status());
  const std::string path = values["output"].as<std::string>();
  const bool to_stdout = path == "table" || path == "json" || path == "-";
  // Before the work, and without cutting the file.
  if (!to_stdout && !std::ofstream(path, std::ios::binary | std::ios::app))
    return ctl_fail(Status(Code::kFailedPrecondition, "cannot write " + path));
  ServerBackend backend(client);
  const auto text = record(backend, prompts.value(), options.value(), kNoStop);
  if (!text.ok()) return ctl_fail(text.status());
  if (to_stdout) {
    write_output(text.value());
    return kCtlOk;
  }
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text.value();
  file.close();
  if (!file) return ctl_fail(Status(Code::kFailedPrecondition, "cannot write " + path));
  return kCtlOk;
}

}  // namespace specd::host
