#include "core/plugin/instance/caps.h"

#include <algorithm>
#include <cstring>

#include "core/base/log.h"
#include "core/base/quote.h"
#include "core/model/model_config.h"
#include "core/plugin/instance/host_context.h"

namespace specd {
namespace {

static_assert(kDraftDepthMax == SPECD_MAX_TREE_DEPTH);

constexpr uint32_t kServicesMax = 32;
constexpr size_t kServiceBytesMax = 128;
constexpr uint32_t kKnownDevices = (1u << SPECD_DEV_CPU) | (1u << SPECD_DEV_CUDA);
constexpr uint32_t kKnownModes =
    (1u << SPECD_TREE_CHAIN) | (1u << SPECD_TREE_STATIC) | (1u << SPECD_TREE_VARIABLE);

Status bad(const std::string& where, const std::string& field, uint64_t found,
           const std::string& expected) {
  return Status(Code::kUnsupported, where + ": describe() returned " + field + " = " +
                                        std::to_string(found) + ", expected " + expected);
}

void mask_unknown(uint32_t& bits, uint32_t known, const char* field, const std::string& where) {
  if ((bits & ~known) == 0) return;
  log(LogLevel::kWarn,
      where + ": unknown bits of " + field + " ignored: " + std::to_string(bits & ~known));
  bits &= known;
}

Status check_devices(uint32_t& devices, const std::string& where) {
  mask_unknown(devices, kKnownDevices, "device_types", where);
  if (devices != 0) return Status();
  return bad(where, "device_types", devices, "a bit (1 << SPECD_DEV_*)");
}

Status check_services(uint32_t n, const char* const* services, const specd_host& host,
                      const std::string& where) {
  if (n > kServicesMax) return bad(where, "n_services", n, "at most 32");
  if (n != 0 && services == nullptr) return bad(where, "n_services", n, "a list of them, not null");
  for (uint32_t i = 0; i < n; ++i) {
    const char* id = services[i];
    if (id == nullptr || strnlen(id, kServiceBytesMax + 1) > kServiceBytesMax) {
      return bad(where, "services", i, "ids of at most 128 bytes");
    }
    std::string reason;
    const PluginScope scope(where, &reason);
    if (host.get_service(&host, id) != nullptr) continue;
    if (reason.empty()) {
      reason = "needs the host service " + quote(id) + ", which this host does not offer";
    }
    return Status(Code::kUnsupported, where + ": " + reason);
  }
  return Status();
}

Status check_taps(const specd_drafter_caps& caps, const specd_target_info& target,
                  const std::string& where) {
  if (caps.n_taps > SPECD_MAX_TAPS) {
    return bad(where, "n_taps", caps.n_taps, "at most " + std::to_string(SPECD_MAX_TAPS));
  }
  if (((caps.needs & SPECD_NEED_HIDDEN) != 0) != (caps.n_taps != 0)) {
    return bad(where, "n_taps", caps.n_taps, "taps exactly when SPECD_NEED_HIDDEN is set");
  }
  for (uint32_t i = 0; i < caps.n_taps; ++i) {
    if (caps.taps[i] > target.n_layers + 1) {
      return bad(where, "taps[" + std::to_string(i) + "]", caps.taps[i],
                 "0.." + std::to_string(target.n_layers + 1) + " for this model");
    }
  }
  return Status();
}

}  // namespace

Status check_caps(specd_drafter_caps& caps, const specd_target_info& target, const specd_host& host,
                  const std::string& where) {
  if (caps.struct_size != sizeof(caps)) {
    return bad(where, "struct_size", caps.struct_size, std::to_string(sizeof(caps)));
  }
  if (caps.tree_mode > SPECD_TREE_VARIABLE) {
    return bad(where, "tree_mode", caps.tree_mode, "one of SPECD_TREE_*");
  }
  if (caps.draft_rule >= SPECD_RULE_COUNT) {
    return bad(where, "draft_rule", caps.draft_rule, "one of SPECD_RULE_*");
  }
  mask_unknown(caps.needs, SPECD_NEED_HOST_TOKENS | SPECD_NEED_HIDDEN | SPECD_NEED_PROBES, "needs",
               where);
  mask_unknown(caps.attach_modes, SPECD_ATTACH_FRESH | SPECD_ATTACH_TOKENS | SPECD_ATTACH_COLD,
               "attach_modes", where);
  if ((caps.attach_modes & SPECD_ATTACH_FRESH) == 0) {
    return bad(where, "attach_modes", caps.attach_modes, "SPECD_ATTACH_FRESH among them");
  }
  mask_unknown(caps.features, SPECD_FEATURE_CAPTURE | SPECD_FEATURE_Q, "features", where);
  SPECD_OK_OR_RETURN(check_devices(caps.device_types, where));
  if (caps.max_nodes < 1 || caps.max_nodes > SPECD_MAX_TREE_NODES) {
    return bad(where, "max_nodes", caps.max_nodes, "1..1024");
  }
  if (caps.max_depth < 1 || caps.max_depth > SPECD_MAX_TREE_DEPTH) {
    return bad(where, "max_depth", caps.max_depth, "1..64");
  }
  if (caps.tree_mode == SPECD_TREE_CHAIN && caps.max_nodes > caps.max_depth) {
    log(LogLevel::kInfo, where + ": a chain of depth " + std::to_string(caps.max_depth) +
                             " has no room for max_nodes = " + std::to_string(caps.max_nodes));
    caps.max_nodes = caps.max_depth;
  }
  const uint32_t top_k_max = std::min<uint32_t>(SPECD_MAX_TOP_K, target.vocab_size);
  if (caps.top_k > top_k_max) {
    return bad(where, "top_k", caps.top_k, "at most " + std::to_string(top_k_max));
  }
  SPECD_OK_OR_RETURN(check_taps(caps, target, where));
  return check_services(caps.n_services, caps.services, host, where);
}

Status check_caps(specd_verifier_caps& caps, const specd_host& host, const std::string& where) {
  if (caps.struct_size != sizeof(caps)) {
    return bad(where, "struct_size", caps.struct_size, std::to_string(sizeof(caps)));
  }
  mask_unknown(caps.tree_modes, kKnownModes, "tree_modes", where);
  if (caps.tree_modes == 0) return bad(where, "tree_modes", 0, "a bit (1 << SPECD_TREE_*)");
  SPECD_OK_OR_RETURN(check_devices(caps.device_types, where));
  mask_unknown(caps.features, SPECD_FEATURE_CAPTURE, "features", where);
  mask_unknown(caps.needs, SPECD_NEED_LAW | SPECD_NEED_Q, "needs", where);
  for (uint32_t rule = 0; rule < SPECD_RULE_COUNT; ++rule) {
    if (caps.guarantee[rule] > SPECD_GUARANTEE_IDENTICAL) {
      return bad(where, "guarantee[" + std::to_string(rule) + "]", caps.guarantee[rule],
                 "one of SPECD_GUARANTEE_*");
    }
  }
  return check_services(caps.n_services, caps.services, host, where);
}

bool requires_service(const specd_drafter_caps& caps, std::string_view id) {
  return std::any_of(caps.services, caps.services + caps.n_services,
                     [&](std::string_view each) { return each == id; });
}

uint64_t quota_of(const specd_drafter_caps& caps, uint64_t n_sequences) {
  uint64_t bytes = 0;
  if (__builtin_mul_overflow(caps.bytes_per_seq, n_sequences, &bytes) ||
      __builtin_add_overflow(bytes, caps.bytes_fixed, &bytes)) {
    return UINT64_MAX;
  }
  return bytes;
}

Status check_quota(const specd_drafter_caps& caps, uint64_t n_sequences, uint64_t memory_bytes,
                   const std::string& where) {
  if (quota_of(caps, n_sequences) <= memory_bytes) return Status();
  return Status(Code::kExhausted,
                where + ": describe() declared bytes_fixed = " + std::to_string(caps.bytes_fixed) +
                    " and bytes_per_seq = " + std::to_string(caps.bytes_per_seq) + "; for " +
                    std::to_string(n_sequences) +
                    " sequences that is more than "
                    "the " +
                    std::to_string(memory_bytes) +
                    " bytes of memory there are; lower engine.max_sequences, or "
                    "ask its author");
}

}  // namespace specd
