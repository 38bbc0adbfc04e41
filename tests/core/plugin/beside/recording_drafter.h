// A drafter that writes down what it is called with, in words that do not depend on where the arguments lie
// or on which sequences share a call; and that fails, waits and proposes as it is told.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/plugin/instance/instance.h"

namespace specd {

struct RecordingDrafter {
  std::map<uint64_t, std::string> log{};  // by sequence
  int n_begun = 0;
  std::atomic<int> n_ended{0};
  std::atomic<bool> holds{false};        // the next propose() waits while this is true
  std::atomic<bool> is_inside{false};    // it waits
  std::atomic<bool> begin_waits{false};  // while this is true
  uint64_t begin_fails = 0;              // of sequences whose id is a multiple; 0 = none
  uint64_t update_fails = 0;             // the same, from their second update on
  bool call_fails = false;               // every update() as a whole
  std::map<uint64_t, int> n_updates{};
  uint32_t n_taps = 0, top_k = 0;

  static RecordingDrafter& of(specd_drafter* self) {
    return *reinterpret_cast<RecordingDrafter*>(self);
  }
  static const int32_t* ints(const specd_tensor* tensor) {
    return static_cast<const int32_t*>(tensor->data);
  }
  static std::string slot_text(const specd_batch& batch, uint32_t s) {
    return " in slot " + std::to_string(batch.slot[s]) + "/" + std::to_string(ints(batch.slots)[s]);
  }

  static specd_status activate(specd_drafter*, const specd_drafter_grant*) noexcept {
    return SPECD_OK;
  }
  static specd_status begin(specd_drafter* self, const specd_begin_args* args) noexcept {
    RecordingDrafter& me = of(self);
    while (me.begin_waits) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const specd_batch& batch = *args->batch;
    for (uint32_t s = 0; s < batch.n_seqs; ++s) {
      const uint64_t id = batch.seq_id[s];
      std::string& log = me.log[id];
      log += "begin " + std::to_string(args->attach_mode) + slot_text(batch, s) + ", seed " +
             std::to_string(args->sampling[s]->seed) + ", tenant " +
             std::to_string(args->tenant[s]) + ":";
      for (uint64_t i = args->token_offsets[s]; i < args->token_offsets[s + 1]; ++i)
        log += " " + std::to_string(args->tokens[i]);
      log += "\n";
      ++me.n_begun;
      args->seq_state[s] = &log;
      if (me.begin_fails != 0 && id % me.begin_fails == 0) {
        batch.seq_status[s] = SPECD_E_DATA;
        ++me.n_ended;  // it keeps nothing
      }
    }
    return SPECD_OK;
  }
  static specd_status update(specd_drafter* self, const specd_update_args* args) noexcept {
    RecordingDrafter& me = of(self);
    const specd_batch& batch = *args->batch;
    for (uint32_t s = 0; s < batch.n_seqs; ++s) {
      const uint64_t id = batch.seq_id[s];
      std::string& log = *static_cast<std::string*>(batch.seq_state[s]);
      const uint32_t end = args->row_offsets[s + 1];
      for (uint32_t r = args->row_offsets[s]; r < end; ++r) {
        const bool agrees = ints(args->seq_index)[r] == static_cast<int32_t>(s) &&
                            args->host_position[r] == ints(args->position)[r] &&
                            args->host_token[r] == ints(args->token)[r];
        log += "row " + std::to_string(ints(args->position)[r]) + ": " +
               std::to_string(ints(args->token)[r]) + " " +
               std::to_string(ints(args->next_token)[r]) + " " +
               std::to_string(ints(args->node)[r]) + (agrees ? "" : " MIRRORS DIFFER");
        for (uint32_t tap = 0; tap < me.n_taps; ++tap) {
          const specd_tensor& hidden = *args->hidden[tap];
          const auto* const row =
              static_cast<const float*>(hidden.data) + ints(args->hidden_row)[r] * hidden.stride[0];
          for (int64_t i = 0; i < hidden.shape[1]; ++i)
            log += " " + std::to_string(static_cast<int>(row[i]));
        }
        log += "\n";
      }
      const int32_t last = ints(args->last_row)[s];
      if (args->row_offsets[s] < end && last != static_cast<int32_t>(end) - 1) log += "BAD LAST\n";
      if (me.n_taps > 0 && last >= 0 &&
          ints(args->last_hidden_row)[s] != ints(args->hidden_row)[last])
        log += "BAD LAST HIDDEN\n";
      for (int64_t c = 0; args->top_row != nullptr && c < args->top_row->shape[1]; ++c) {
        const int64_t row = ints(args->top_row)[s * args->top_row->shape[1] + c];
        if (row < 0) continue;
        log += "top " + std::to_string(c) + ":";
        for (uint32_t k = 0; k < me.top_k; ++k)
          log += " " + std::to_string(ints(args->top_token)[row * args->top_token->stride[0] + k]);
        log += "\n";
      }
      if (me.update_fails != 0 && id % me.update_fails == 0 && ++me.n_updates[id] == 2)
        batch.seq_status[s] = SPECD_E_DATA;
    }
    return me.call_fails ? SPECD_E_INTERNAL : SPECD_OK;
  }
  static specd_status propose(specd_drafter* self, const specd_propose_args* args) noexcept {
    RecordingDrafter& me = of(self);
    while (me.holds) {
      me.is_inside = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    me.is_inside = false;
    const specd_batch& batch = *args->batch;
    const specd_proposal& out = *args->out;
    const size_t capacity = out.node_capacity;
    for (uint32_t s = 0; s < batch.n_seqs; ++s) {
      const int32_t root = ints(args->root_token)[s], budget = ints(args->node_budget)[s];
      *static_cast<std::string*>(batch.seq_state[s]) +=
          "propose " + std::to_string(root) + " at " +
          std::to_string(ints(args->root_position)[s]) + ", " + std::to_string(budget) +
          " nodes, seed " + std::to_string(args->sampling[s]->seed) + slot_text(batch, s) + "\n";
      if (root % 13 == 0) {
        batch.seq_status[s] = SPECD_E_DATA;
        continue;
      }
      static_cast<int32_t*>(out.n_nodes->data)[s] = budget / 2;
      for (int32_t i = 0; i < budget / 2; ++i) {
        const size_t cell = s * capacity + static_cast<size_t>(i);
        static_cast<int32_t*>(out.token->data)[cell] = root + i;
        static_cast<int32_t*>(out.parent->data)[cell] = i / 2 - 1;
        if (out.flags != nullptr) static_cast<int32_t*>(out.flags->data)[cell] = i % 2;
      }
    }
    return SPECD_OK;
  }
  static void end(specd_drafter* self, const specd_end_args* args) noexcept {
    RecordingDrafter& me = of(self);
    for (uint32_t s = 0; s < args->batch->n_seqs; ++s) {
      *static_cast<std::string*>(args->batch->seq_state[s]) +=
          "end " + std::to_string(args->reason) + slot_text(*args->batch, s) + "\n";
      ++me.n_ended;
    }
  }
  static void nothing(specd_drafter*) noexcept {}

  // Active, for 4 slots and 8 nodes.
  std::unique_ptr<Drafter> make(bool is_tree, bool with_probes) {
    static constexpr specd_drafter_api kApi = {sizeof(specd_drafter_api),
                                               0,
                                               nullptr,
                                               nullptr,
                                               &activate,
                                               nullptr,
                                               &begin,
                                               &update,
                                               &propose,
                                               &end,
                                               &nothing,
                                               &nothing};
    specd_drafter_caps caps{};
    caps.struct_size = sizeof(caps);
    caps.tree_mode = is_tree ? SPECD_TREE_VARIABLE : SPECD_TREE_CHAIN;
    caps.max_nodes = caps.max_depth = 8;
    caps.n_taps = n_taps;
    caps.top_k = top_k;
    specd_drafter_grant grant{};
    grant.struct_size = sizeof(grant);
    grant.device_type = SPECD_DEV_CPU;
    grant.max_nodes = grant.max_depth = 8;
    grant.max_batch = 4;
    grant.max_rows = 64;
    grant.needs = SPECD_NEED_HOST_TOKENS | (n_taps > 0 ? uint32_t{SPECD_NEED_HIDDEN} : 0u) |
                  (with_probes ? uint32_t{SPECD_NEED_PROBES} : 0u);
    auto owner = std::make_unique<specd_owner>();
    owner->plugin = "org.example.recording";
    auto drafter =
        std::make_unique<LoadedDrafter>(&kApi, reinterpret_cast<specd_drafter*>(this), caps,
                                        std::move(owner), "recording", std::vector<UsedPlugin>());
    return drafter->activate(grant).ok() ? std::move(drafter) : nullptr;
  }
};

}  // namespace specd
