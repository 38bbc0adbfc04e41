// Checks the arguments of model/1, and translates them to plain data for core/draft.
#pragma once

#include <cstdint>
#include <string>

#include "core/device/device.h"
#include "core/draft/draft_model.h"
#include "core/draft/feed.h"
#include "core/plugin/instance/host_context.h"
#include "specd/plugin_api/services/model.h"

namespace specd {

// Empty when the arguments are valid, else what is wrong with them.
std::string forward_fault(const specd_call& call, const specd_forward_args* args,
                          const DraftModel& model, const Device& device);
std::string follow_fault(const specd_call& call, const specd_forward_args* args,
                         const DraftModel& model, const Device& device);
std::string keep_fault(uint32_t n_seqs, const uint32_t* kept, const uint32_t* row_offsets,
                       const uint32_t* rows);

// REQUIRES valid arguments, which must outlive the result.
DraftRequest forward_request(const specd_forward_args& args, uint32_t n_seqs);
DraftRequest follow_request(const specd_forward_args& args);

}  // namespace specd
