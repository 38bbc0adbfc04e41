// Exchanges between ranks as NCCL has them, stricter than NCCL and without a GPU: the ranks are threads or
// processes of one machine, which meet in a file in shared memory.
//
// NCCL leaves it to the caller that ranks do the same in the same order. Here every rank tells every other one
// what it is at, and the first difference fails the group, with both in words on stderr: another exchange,
// count, type, root, or number of exchanges before. Likewise a device that two ranks have, and a rank that
// joins twice.
//
// Environment: SPECD_STRICT_NCCL, words separated by commas, read when a rank joins:
//   hang_rank=R, hang_after=N   rank R of a group takes part in N exchanges and in no other
//   fail_join=N                 the N-th join of this process fails, counted since the setting is there
//   fail_join_is_seen=1         the others' joins fail with it (kOtherFailed), 200 ms before its own does
//   join_seconds=N              the others are waited for so long; 20 if it is not there
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace specd::strict_nccl {

struct GroupId {
  char bytes[128] = {};
};
inline constexpr char kOtherFailed[] = "another rank's join has failed";

// A name that no other group has; makes the file.
bool make_group(GroupId& id, std::string& why);

struct Operation {
  enum class Kind : int32_t { kAllGather, kBroadcast, kSend, kReceive };
  Kind kind = Kind::kAllGather;
  const void* from = nullptr;
  void* to = nullptr;
  uint64_t count = 0;  // of a part
  int32_t type = 0;    // ncclDataType_t
  uint64_t bytes = 0;  // of a part
  int32_t other = 0;   // the root, or the other rank of a send or receive
};

class Rank {
 public:
  // Waits until all have joined, while `goes_on` says so. Null and the reason.
  static std::unique_ptr<Rank> join(const GroupId& id, int32_t rank, int32_t n_ranks,
                                    const std::string& device, const std::function<bool()>& goes_on,
                                    std::string& why);
  virtual ~Rank() = default;

  enum class State { kDone, kWaits, kFailed };
  // What one call of NCCL submits: an operation, or several that are grouped and end together. Waits for
  // nobody; call it again, with the same, until it is done. Never done after abort().
  virtual State advance(const std::vector<Operation>& operations) = 0;
  virtual void abort() = 0;
  virtual bool is_aborted() const = 0;
  // Why the group has failed; "" = it has not.
  virtual std::string failure() const = 0;
};

}  // namespace specd::strict_nccl
