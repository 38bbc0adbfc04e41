// What describe() returned, checked before the host plans with it.
#pragma once

#include <string>

#include "core/base/status.h"
#include "specd/plugin_api/drafter.h"
#include "specd/plugin_api/host.h"
#include "specd/plugin_api/target_info.h"
#include "specd/plugin_api/verifier.h"

namespace specd {

// Bits that this host does not know are cleared and logged; everything else that is out of range
// refuses (kUnsupported), naming `where`, the field, what was expected and found. Every required
// service must be there, and the CPU among the devices. A chain deeper than its max_depth is
// shortened to it.
Status check_caps(specd_drafter_caps& caps, const specd_target_info& target, const specd_host& host,
                  const std::string& where);
Status check_caps(specd_verifier_caps& caps, const specd_host& host, const std::string& where);

// Quota before activate(): fixed bytes and those of max_batch sequences (one when there is no
// limit).
uint64_t quota_of(const specd_drafter_caps& caps);

}  // namespace specd
