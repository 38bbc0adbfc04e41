// What describe() returned, checked before the host plans with it.
#pragma once

#include <string>
#include <string_view>

#include "core/base/status.h"
#include "specd/plugin_api/drafter.h"
#include "specd/plugin_api/host.h"
#include "specd/plugin_api/target_info.h"
#include "specd/plugin_api/verifier.h"

namespace specd {

// Clears and logs bits that this host does not know. Anything else out of range is kUnsupported;
// the error names `where`, the field, what was expected and what was found. Every required service
// must exist, and at least one known device. For chains, max_nodes is lowered to max_depth.
Status check_caps(specd_drafter_caps& caps, const specd_target_info& target, const specd_host& host,
                  const std::string& where);
Status check_caps(specd_verifier_caps& caps, const specd_host& host, const std::string& where);

// Whether it requires this service.
bool requires_service(const specd_drafter_caps& caps, std::string_view id);

// The fixed bytes and those of `n_sequences`; UINT64_MAX when the sum is larger than that.
uint64_t quota_of(const specd_drafter_caps& caps, uint64_t n_sequences);
// kExhausted when that is more than the memory where the drafter works.
Status check_quota(const specd_drafter_caps& caps, uint64_t n_sequences, uint64_t memory_bytes,
                   const std::string& where);

}  // namespace specd
