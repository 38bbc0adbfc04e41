// Who may connect to the daemon, beside its own user and root: a user of the machine, on the sockets, or the owner of
// a certificate, over TCP.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace specd::host {

enum class Right : uint8_t {
  kInfer,    // texts of one's own
  kRead,     // reports, events and the list of requests, which has no texts
  kOperate,  // changes; whoever has it may read, too
};
constexpr std::array<const char*, 3> kRightNames = {"infer", "read", "operate"};
constexpr const char* right_name(Right right) { return kRightNames[static_cast<size_t>(right)]; }

struct UserOptions {
  std::string name;              // as given: a name, or a number; empty with a certificate
  std::optional<uid_t> id = {};  // none with a certificate
  std::string certificate = {};  // a name in the client's certificate; empty with a name
  std::vector<Right> rights;
  int32_t requests_max = 0;  // calls of Generate and RenderChat at a time; 0 = no limit
  int32_t waiting_max = 0;   // of these, those that have had no output yet; 0 = no limit
  uint64_t bytes_max = 0;    // of their messages together; 0 = no limit

  bool operator==(const UserOptions&) const = default;
};

}  // namespace specd::host
