// specctl top: what changed between two looks at the daemon.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "core/base/json.h"
#include "host/base/output.h"
#include "host/base/table.h"
#include "host/ctl/command.h"
#include "host/rpc/proto_text.h"

namespace specd::host {
namespace {

using Clock = std::chrono::steady_clock;

struct Look {
  v1::GetStatusResponse status;
  v1::ListRoutesResponse routes;
  Clock::time_point at;
};

Result<Look> look(Client& client) {
  Look now;
  SPECD_TRY(now.status, client.status());
  SPECD_TRY(now.routes, client.routes());
  now.at = Clock::now();
  return now;
}

double ratio(double part, double whole) { return whole > 0 ? part / whole : 0; }

// Of the same version in the earlier look; empty if it was not there.
v1::Route before(const Look& earlier, const v1::Route& route) {
  for (const v1::Route& each : earlier.routes.routes()) {
    if (each.name() == route.name() && each.generation() == route.generation()) return each;
  }
  return {};
}

double since(uint64_t later, uint64_t sooner) {
  return static_cast<double>(later - std::min(later, sooner));
}

std::string text_of(const Look& earlier, const Look& now, Format format) {
  const double seconds = std::chrono::duration<double>(now.at - earlier.at).count();
  const double tokens = since(now.status.tokens(), earlier.status.tokens()) / seconds;
  Json all{{"tokens_per_s", tokens},
           {"running", now.status.running()},
           {"waiting", now.status.waiting()},
           {"routes", Json::array()}};
  Table table({"route", "state", "generation", "in use", "steps/s", "drafted/s", "accepted",
               "accepted a step"});
  for (const v1::Route& route : now.routes.routes()) {
    if (route.name() == "off") continue;  // it drafts nothing
    const v1::Route old = before(earlier, route);
    const double steps = since(route.steps(), old.steps());
    const double drafted = since(route.drafted(), old.drafted());
    const double accepted = since(route.accepted(), old.accepted());
    all["routes"].push_back({{"name", route.name()},
                             {"state", enum_word(route.state())},
                             {"suspended", route.suspended()},
                             {"generation", route.generation()},
                             {"in_use", route.in_use()},
                             {"steps_per_s", steps / seconds},
                             {"drafted_per_s", drafted / seconds},
                             {"acceptance", ratio(accepted, drafted)},
                             {"accepted_per_step", ratio(accepted, steps)}});
    table.add({route.name() + (route.suspended() ? " (suspended)" : ""), enum_word(route.state()),
               std::to_string(route.generation()), std::to_string(route.in_use()),
               fixed(steps / seconds, 1), fixed(drafted / seconds, 1),
               percent(ratio(accepted, drafted)), fixed(ratio(accepted, steps), 2)});
  }
  if (format != Format::kTable) return object_text(all.dump(), format);
  return printable(fixed(tokens, 1) + " tokens/s, " + std::to_string(now.status.running()) +
                   " run, " + std::to_string(now.status.waiting()) + " wait\n" + table.text());
}

}  // namespace

int run_top(Client& client, const Values& values, Format format) {
  const int32_t count = values["count"].as<int32_t>();
  const std::chrono::seconds interval(values["interval"].as<int32_t>());
  const bool is_terminal = isatty(STDOUT_FILENO) == 1 && format == Format::kTable;
  Result<Look> earlier = look(client);
  for (int32_t i = 0; earlier.ok() && (count == 0 || i < count); ++i) {
    std::this_thread::sleep_for(interval);
    Result<Look> now = look(client);
    if (!now.ok()) return ctl_fail(now.status());
    if (now.value().status.pid() !=
        earlier.value().status.pid()) {  // another daemon: from its start
      earlier.value().status.Clear();
      earlier.value().routes.Clear();
      earlier.value().at =
          now.value().at - std::chrono::duration_cast<Clock::duration>(
                               std::chrono::duration<double>(now.value().status.uptime_s()));
    }
    const std::string text = text_of(earlier.value(), now.value(), format);
    if (write_output((is_terminal ? "\033[H\033[J" : "") + text) != 0) return kCtlOk;
    earlier = std::move(now);
  }
  return earlier.ok() ? kCtlOk : ctl_fail(earlier.status());
}

}  // namespace specd::host
