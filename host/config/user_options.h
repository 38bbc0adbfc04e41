// A user of the machine who may connect to the daemon's sockets, beside its own and root.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "host/rpc/policy.h"

namespace specd::host {

struct UserOptions {
  std::string name;  // as given: a name, or a number
  uid_t id = 0;
  std::vector<Right> rights;
  int32_t requests_max = 0;  // calls of Generate and RenderChat at a time; 0 = no limit
  uint64_t bytes_max = 0;    // of their messages together; 0 = no limit

  bool operator==(const UserOptions&) const = default;
};

}  // namespace specd::host
