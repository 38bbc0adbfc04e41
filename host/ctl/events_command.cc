// specctl events.
#include <cstdio>
#include <ctime>
#include <string>

#include "host/base/output.h"
#include "host/base/table.h"
#include "host/ctl/command.h"
#include "host/rpc/proto_text.h"

namespace specd::host {
namespace {

constexpr int64_t kSecondNs = 1'000'000'000;

// "2026-11-28T09:37:09.123Z"
std::string time_text(int64_t unix_ns) {
  const time_t seconds = unix_ns / kSecondNs;
  tm parts{};
  gmtime_r(&seconds, &parts);
  char date[32], text[48];
  std::strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%S", &parts);
  std::snprintf(text, sizeof(text), "%s.%03dZ", date,
                static_cast<int>(unix_ns % kSecondNs / 1'000'000));
  return text;
}

std::string line_of(const v1::Event& event) {
  std::string line = std::to_string(event.number()) + "  " + time_text(event.unix_ns()) + "  " +
                     enum_word(event.kind()) + "  " + event.text();
  if (!event.request_id().empty()) line += " (request " + event.request_id() + ")";
  return printable(line) + "\n";
}

}  // namespace

int run_events(Client& client, const Values& values, Format format) {
  v1::WatchEventsRequest request;
  request.set_after(values["after"].as<uint64_t>());
  request.set_follow(values["follow"].as<bool>());
  // Before the first one there may be older ones that the daemon does not hold any more.
  uint64_t last = request.after();
  const Status ended = client.watch_events(request, [&](const v1::Event& event) {
    if (format == Format::kTable && event.number() > last + 1)
      write_output("(" + std::to_string(event.number() - last - 1) + " older events are lost)\n");
    last = event.number();
    return write_output(format != Format::kTable ? object_text(report_to_json(event), format)
                                                 : line_of(event)) == 0;
  });
  return ended.ok() ? kCtlOk : ctl_fail(ended);
}

}  // namespace specd::host
