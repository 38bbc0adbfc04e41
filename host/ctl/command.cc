#include "host/ctl/command.h"

#include <cstdio>

#include "host/base/table.h"

namespace specd::host {

int ctl_fail(const Status& status) {
  std::fprintf(stderr, "specctl: %s: %s\n", code_name(status.code()),
               printable(status.text()).c_str());
  return kCtlFailed;
}

int ctl_usage(const std::string& problem) {
  std::fprintf(stderr, "specctl: %s\nTry: specctl --help\n", printable(problem).c_str());
  return kCtlUsage;
}

}  // namespace specd::host
