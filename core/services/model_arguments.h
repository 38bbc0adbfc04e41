// Checks the arguments of model/1, and translates them to plain data for core/draft. What kv/1 shares
// with it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

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
// Checks offsets of rows by sequence; they end at n_rows.
std::string offsets_fault(const uint32_t* offsets, uint32_t n_seqs, uint32_t n_rows);
std::string keep_fault(const specd_call& call, const DraftUse& use, const uint32_t* kept,
                       const uint32_t* row_offsets, const uint32_t* rows);
// `function`: "model.keep"
specd_status refuse_capture(specd_call* call, const char* function, const char* what = "");

// REQUIRES valid arguments, which must outlive the result.
DraftRequest forward_request(const specd_forward_args& args, uint32_t n_seqs);
DraftRequest follow_request(const specd_forward_args& args);

// The sequences of a [step] call. `draws` gets their sampling; the result refers to both.
DraftBatch draft_batch(const specd_call& call, std::vector<kernels::DrawRow>& draws);
// The path of sequence s in the arguments of keep(). REQUIRES valid arguments.
std::span<const uint32_t> kept_path(const uint32_t* row_offsets, const uint32_t* rows, uint32_t s);
// Reports the results of a call and of its sequences to the plugin. `service`: "model".
specd_status finish_rows(specd_call* call, const char* service, const Status& status,
                         std::span<const Status> of, specd_status* seq_status);

}  // namespace specd
