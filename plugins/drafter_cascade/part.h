// One drafter of the cascade: forwards the calls of its table, with separate columns in place of
// the host's. services/parts.h states the rules.
#pragma once

#include <specd/plugin_api/entry.h>
#include <specd/plugin_api/services/parts.h>
#include <specd/sdk/error.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace specd::cascade {

// An int32 array of [rows, columns] in host memory, with its tensor.
class Grid {
 public:
  void shape(std::size_t rows, std::size_t columns, int32_t value, uint32_t rank) {
    columns_ = columns;
    values_.assign(rows * columns, value);
    tensor_ = {};
    tensor_.struct_size = sizeof tensor_;
    tensor_.dtype_code = SPECD_DT_INT;
    tensor_.dtype_bits = 32;
    tensor_.dtype_lanes = 1;
    tensor_.device_type = SPECD_DEV_CPU;
    tensor_.rank = rank;
    tensor_.data = values_.data();
    tensor_.byte_capacity = values_.size() * sizeof(int32_t);
    tensor_.shape[0] = static_cast<int64_t>(rows);
    tensor_.stride[0] = static_cast<int64_t>(columns);
    if (rank == 2) {
      tensor_.shape[1] = static_cast<int64_t>(columns);
      tensor_.stride[1] = 1;
    }
  }
  // Only the first n rows.
  void keep(std::size_t n) { tensor_.shape[0] = static_cast<int64_t>(n); }
  int32_t* row(std::size_t r) { return values_.data() + r * columns_; }
  const int32_t* row(std::size_t r) const { return values_.data() + r * columns_; }
  const int32_t* data() const { return values_.data(); }
  const specd_tensor* tensor() const { return &tensor_; }

 private:
  std::vector<int32_t> values_;
  std::size_t columns_ = 1;
  specd_tensor tensor_{};
};

// The cascade's state of a sequence.
struct Sequence {
  std::vector<void*> state;  // one per part
  int32_t n_begun = 0;       // tokens at begin()
  int32_t chosen = -1;       // the part whose proposal was used, until the next propose()
};

class Part {
 public:
  // [control] Called in describe() and create().
  Part(const specd_host* host, const specd_target_info* target, const specd_part& found,
       std::string where)
      : host_(host), api_(found.factory->drafter), found_(found), where_(std::move(where)) {
    caps_.struct_size = sizeof caps_;
    const specd_status status = api_->describe(found.factory, host, target, found.config, &caps_);
    if (status != SPECD_OK) throw sdk::Error(status, where_ + ": describe() refused");
    const auto need = [&](bool good, const char* text) {
      if (!good) throw sdk::Error(SPECD_E_UNSUPPORTED, where_ + ": " + text);
    };
    need(caps_.struct_size == sizeof caps_, "describe() changed struct_size");
    need((caps_.n_services == 0 || caps_.services != nullptr) &&
             ((caps_.needs & SPECD_NEED_HIDDEN) != 0) == (caps_.n_taps != 0),
         "describe() returned services without a list, or taps without SPECD_NEED_HIDDEN");
    need(caps_.max_nodes >= 1 && caps_.max_nodes <= SPECD_MAX_TREE_NODES && caps_.max_depth >= 1 &&
             caps_.max_depth <= SPECD_MAX_TREE_DEPTH && caps_.tree_mode <= SPECD_TREE_VARIABLE &&
             caps_.n_taps <= SPECD_MAX_TAPS && caps_.top_k <= SPECD_MAX_TOP_K,
         "describe() returned nodes, depth, tree mode, taps or top_k out of range");
    need((caps_.device_types & (1u << SPECD_DEV_CPU)) != 0, "it cannot work in host memory");
    need(caps_.tree_mode != SPECD_TREE_STATIC || api_->static_tree != nullptr,
         "its tree is fixed, but static_tree is null");
    need(((caps_.needs & (SPECD_NEED_HIDDEN | SPECD_NEED_PROBES)) == 0 && caps_.top_k == 0) ||
             api_->update != nullptr,
         "hidden states, probes and top_k come in update(), but update is null");
    for (uint32_t i = 0; i < caps_.n_services; ++i) {
      need(caps_.services[i] != nullptr, "describe() returned a service without a name");
      if (host->get_service(host, caps_.services[i]) == nullptr) {
        throw sdk::Error(SPECD_E_UNSUPPORTED, where_ + ": needs the host service '" +
                                                  caps_.services[i] + "', which is not offered");
      }
    }
    // A chain has as many nodes as levels.
    if (caps_.tree_mode == SPECD_TREE_CHAIN) {
      caps_.max_nodes = std::min(caps_.max_nodes, caps_.max_depth);
    }
  }
  ~Part() {
    if (self_ == nullptr) return;
    if (active_) api_->deactivate(self_);
    api_->destroy(self_);
  }
  Part(Part&& other) noexcept
      : host_(other.host_),
        api_(other.api_),
        found_(other.found_),
        where_(std::move(other.where_)),
        caps_(other.caps_),
        self_(std::exchange(other.self_, nullptr)) {}
  Part& operator=(Part&&) = delete;

  const specd_drafter_caps& caps() const { return caps_; }
  const std::string& where() const { return where_; }
  uint32_t capacity() const { return grant_.max_nodes; }

  void create(specd_create_args args) {
    args.config = found_.config;
    args.data_dir = found_.data_dir;
    specd_drafter* made = nullptr;
    check(api_->create(found_.factory, host_, &args, &made), "create");
    if (made == nullptr) throw sdk::Error(SPECD_E_INTERNAL, where_ + ": create() gave no instance");
    self_ = made;
    found_ = {};  // its configuration is not valid after this call
  }

  // taps: for each tap of the part, its index among the cascade's taps.
  void activate(specd_drafter_grant grant, std::vector<uint32_t> taps) {
    grant.max_nodes = std::min(grant.max_nodes, caps_.max_nodes);
    grant.max_depth = std::min({grant.max_depth, caps_.max_depth, grant.max_nodes});
    grant.needs = caps_.needs;
    check(api_->activate(self_, &grant), "activate");
    active_ = true;
    grant_ = grant;
    taps_ = std::move(taps);
    if (caps_.tree_mode != SPECD_TREE_STATIC) return;
    static_parents_.assign(grant.max_nodes, -1);
    const uint32_t n = api_->static_tree(self_, static_parents_.data(), grant.max_nodes);
    if (n == 0 || n > grant.max_nodes) {
      throw sdk::Error(SPECD_E_INTERNAL, where_ + ": static_tree() gave " + std::to_string(n) +
                                             " nodes, expected 1.." +
                                             std::to_string(grant.max_nodes));
    }
    static_parents_.resize(n);
    for (uint32_t i = 0; i < n; ++i) {
      if (static_parents_[i] >= -1 && static_parents_[i] < static_cast<int32_t>(i)) continue;
      throw sdk::Error(SPECD_E_INTERNAL, where_ + ": static_tree() gave node " + std::to_string(i) +
                                             " the parent " + std::to_string(static_parents_[i]) +
                                             ", expected -1 or an earlier node");
    }
  }
  void deactivate() {
    if (std::exchange(active_, false)) api_->deactivate(self_);
  }

  // [step] Stores the states and statuses of the batch's sequences in `states` and `statuses`,
  // which must have room. Allocates nothing.
  specd_status begin(const specd_begin_args& args, std::vector<void*>& states,
                     std::vector<specd_status>& statuses) const {
    specd_batch batch = *args.batch;
    batch.seq_status = statuses.data();
    specd_begin_args own = args;
    own.batch = &batch;
    own.seq_state = states.data();
    return api_->begin(self_, &own);
  }

  // [step] Allocates nothing.
  void end(const specd_end_args& args, const std::vector<void*>& states) const {
    specd_batch batch = *args.batch;
    batch.seq_state = states.data();
    specd_end_args own = args;
    own.batch = &batch;
    api_->end(self_, &own);
  }

  // [step] index: the part's index in the cascade.
  specd_status update(const specd_update_args& args, const std::vector<Sequence*>& sequences,
                      std::size_t index, std::vector<specd_status>& statuses) {
    statuses.assign(sequences.size(), SPECD_OK);
    if (api_->update == nullptr) return SPECD_OK;
    const std::size_t n = sequences.size();
    for (Grid* grid : {&seq_index_, &position_, &token_, &next_token_, &node_, &hidden_row_}) {
      grid->shape(args.n_rows, 1, 0, 1);
    }
    last_row_.shape(n, 1, -1, 1);
    last_hidden_row_.shape(n, 1, -1, 1);
    row_offsets_.assign(1, 0);
    for (std::size_t s = 0; s < n; ++s) {
      copy_rows(args, s, *sequences[s], sequences[s]->chosen == static_cast<int32_t>(index));
    }
    const uint32_t n_rows = row_offsets_.back();
    for (Grid* grid : {&seq_index_, &position_, &token_, &next_token_, &node_, &hidden_row_}) {
      grid->keep(n_rows);
    }
    std::vector<void*> states;
    states.reserve(n);
    for (const Sequence* sequence : sequences) states.push_back(sequence->state[index]);
    std::vector<const specd_tensor*> hidden;
    hidden.reserve(taps_.size());
    for (const uint32_t tap : taps_) hidden.push_back(args.hidden[tap]);
    specd_batch batch = *args.batch;
    batch.seq_state = states.data();
    batch.seq_status = statuses.data();
    specd_update_args own = args;
    own.n_rows = n_rows;
    own.batch = &batch;
    own.row_offsets = row_offsets_.data();
    own.seq_index = seq_index_.tensor();
    own.position = position_.tensor();
    own.token = token_.tensor();
    own.next_token = next_token_.tensor();
    own.node = node_.tensor();
    own.last_row = last_row_.tensor();
    own.host_position = position_.data();
    own.host_token = token_.data();
    own.host_next_token = next_token_.data();
    own.host_node = node_.data();
    own.hidden_row = hidden.empty() ? nullptr : hidden_row_.tensor();
    own.host_hidden_row = hidden.empty() ? nullptr : hidden_row_.data();
    own.last_hidden_row = hidden.empty() ? nullptr : last_hidden_row_.tensor();
    own.hidden = hidden.empty() ? nullptr : hidden.data();
    specd_tensor top_token{};
    own.top_row = own.top_token = nullptr;
    own.host_top_row = own.host_top_token = nullptr;
    if (args.top_row != nullptr && caps_.top_k > 0) {
      copy_top_rows(args, sequences, index);
      top_token = *args.top_token;
      top_token.shape[1] = caps_.top_k;  // the first of each row
      own.top_row = top_row_.tensor();
      own.host_top_row = top_row_.data();
      own.top_token = &top_token;
      own.host_top_token = args.host_top_token;
    }
    return api_->update(self_, &own);
  }

  // [step] budgets: one per sequence, 0 = do not propose. The proposal is in n_nodes() and the
  // columns until the next call.
  specd_status propose(const specd_propose_args& args, const std::vector<Sequence*>& sequences,
                       std::size_t index, const std::vector<int32_t>& budgets) {
    const std::size_t n = sequences.size();
    const auto most = static_cast<int32_t>(
        caps_.tree_mode == SPECD_TREE_STATIC ? static_parents_.size() : capacity());
    budget_.shape(n, 1, 0, 1);
    n_nodes_.shape(n, 1, 0, 1);
    token_.shape(n, capacity(), SPECD_NO_TOKEN, 2);
    parent_.shape(n, capacity(), 0, 2);
    flags_.shape(n, capacity(), 0, 2);
    std::vector<void*> states;
    for (std::size_t s = 0; s < n; ++s) {
      int32_t budget = std::min(budgets[s], most);
      // Like the host for a chain: the step itself adds a token.
      const uint64_t left = args.sampling[s]->tokens_left;
      if (caps_.tree_mode == SPECD_TREE_CHAIN && static_cast<uint64_t>(budget) >= left) {
        budget = left == 0 ? 0 : static_cast<int32_t>(left - 1);
      }
      *budget_.row(s) = *n_nodes_.row(s) = budget;
      preset_parents(s);
      states.push_back(sequences[s]->state[index]);
    }
    statuses_.assign(n, SPECD_OK);
    specd_batch batch = *args.batch;
    batch.seq_state = states.data();
    batch.seq_status = statuses_.data();
    specd_proposal out{};
    out.struct_size = sizeof out;
    out.node_capacity = capacity();
    out.n_nodes = n_nodes_.tensor();
    out.token = token_.tensor();
    out.parent = parent_.tensor();
    out.flags = (caps_.needs & SPECD_NEED_PROBES) != 0 ? flags_.tensor() : nullptr;
    specd_propose_args own = args;
    own.batch = &batch;
    own.node_budget = budget_.tensor();
    own.host_node_budget = budget_.data();
    own.out = &out;
    return api_->propose(self_, &own);
  }

  specd_status status(std::size_t s) const { return statuses_[s]; }
  // Number of nodes proposed for sequence s, up to its budget.
  int32_t n_nodes(std::size_t s) const {
    const int32_t n = std::clamp(*n_nodes_.row(s), 0, *budget_.row(s));
    const int32_t* end = std::find(token_.row(s), token_.row(s) + n, int32_t{SPECD_NO_TOKEN});
    return static_cast<int32_t>(end - token_.row(s));
  }
  // Those of them that can be accepted.
  int32_t n_acceptable(std::size_t s) const {
    const auto probe = [](int32_t flags) { return (flags & SPECD_NODE_PROBE) != 0; };
    const int32_t n = n_nodes(s);
    return n - static_cast<int32_t>(std::count_if(flags_.row(s), flags_.row(s) + n, probe));
  }
  const int32_t* tokens(std::size_t s) const { return token_.row(s); }
  const int32_t* flags(std::size_t s) const { return flags_.row(s); }
  // For a chain or a fixed tree the preset parents, whatever the part wrote.
  const int32_t* parents(std::size_t s) {
    preset_parents(s);
    return parent_.row(s);
  }

 private:
  void check(specd_status status, const char* function) const {
    if (status != SPECD_OK) throw sdk::Error(status, where_ + ": " + function + "() failed");
  }

  void preset_parents(std::size_t s) {
    if (caps_.tree_mode == SPECD_TREE_VARIABLE) return;
    int32_t* parents = parent_.row(s);
    for (uint32_t i = 0; i < capacity(); ++i) {
      parents[i] = caps_.tree_mode == SPECD_TREE_STATIC && i < static_parents_.size()
                       ? static_parents_[i]
                       : static_cast<int32_t>(i) - 1;
    }
  }

  // Rows from before begin() are only for parts with hidden states, nodes only for the part that
  // proposed them.
  void copy_rows(const specd_update_args& args, std::size_t s, const Sequence& sequence,
                 bool mine) {
    const uint32_t end = args.row_offsets[s + 1];
    uint32_t to = row_offsets_.back();
    for (uint32_t from = args.row_offsets[s]; from < end; ++from) {
      const bool has_hidden = (caps_.needs & SPECD_NEED_HIDDEN) != 0;
      if (!has_hidden && args.host_position[from] < sequence.n_begun - 1) continue;
      *seq_index_.row(to) = static_cast<int32_t>(s);
      *position_.row(to) = args.host_position[from];
      *token_.row(to) = args.host_token[from];
      *next_token_.row(to) = args.host_next_token[from];
      const int32_t node = args.host_node[from];
      *node_.row(to) = node >= 0 && !mine ? int32_t{SPECD_NODE_NONE} : node;
      if (has_hidden) {
        *hidden_row_.row(to) = *last_hidden_row_.row(s) = args.host_hidden_row[from];
      }
      *last_row_.row(s) = static_cast<int32_t>(to++);
    }
    row_offsets_.push_back(to);
  }

  // Rows of the root are for every part, those of nodes for the part that proposed them.
  void copy_top_rows(const specd_update_args& args, const std::vector<Sequence*>& sequences,
                     std::size_t index) {
    const auto elements = static_cast<std::size_t>(args.top_row->shape[1]);
    top_row_.shape(sequences.size(), capacity() + 1, -1, 2);
    for (std::size_t s = 0; s < sequences.size(); ++s) {
      const bool mine = sequences[s]->chosen == static_cast<int32_t>(index);
      std::copy_n(args.host_top_row + s * elements,
                  mine ? std::min<std::size_t>(capacity() + 1, elements) : 1, top_row_.row(s));
    }
  }

  const specd_host* host_;
  const specd_drafter_api* api_;
  specd_part found_;
  std::string where_;
  specd_drafter_caps caps_{};
  specd_drafter_grant grant_{};
  specd_drafter* self_ = nullptr;
  bool active_ = false;
  std::vector<uint32_t> taps_;
  std::vector<int32_t> static_parents_;
  // For the running call:
  Grid seq_index_, position_, token_, next_token_, node_, hidden_row_, last_row_, last_hidden_row_,
      top_row_;
  Grid budget_, n_nodes_, parent_, flags_;
  std::vector<uint32_t> row_offsets_;
  std::vector<specd_status> statuses_;
};

}  // namespace specd::cascade
