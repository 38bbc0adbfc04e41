// Plays the host for one drafter in unit tests.
#ifndef SPECD_SDK_FAKE_DRAFTER_H
#define SPECD_SDK_FAKE_DRAFTER_H

#include <specd/sdk/fake_batch.h>
#include <specd/sdk/fake_config.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

namespace specd::sdk {

struct FakeDraft {
  specd_status call_status = SPECD_OK;  // of propose()
  specd_status status = SPECD_OK;       // of the sequence
  // As the plugin wrote it, cut at the first SPECD_NO_TOKEN.
  int32_t count = 0;
  std::vector<int32_t> token, parent, flags;  // the first min(count, capacity) nodes
  // With SPECD_FEATURE_Q granted: log q of the children of the root, then of those of each node;
  // empty where the drafter hands on none.
  std::vector<std::vector<float>> q;
};

// Plays the host for one drafter instance. The constructor calls describe, create and activate; the
// destructor calls destroy and checks that all memory was returned.
class FakeDrafter {
 public:
  struct Options {
    uint32_t max_nodes = 0;  // 0 = as in the caps
    uint32_t max_batch = 64;
    uint32_t max_rows = 4096;  // of a step; update() is granted no more, and at most what it needs
    bool wants_q = true;       // grants SPECD_FEATURE_Q to a drafter that has it
  };

  FakeDrafter(FakeHost& host, const specd_factory& factory, const FakeConfig& config)
      : FakeDrafter(host, factory, config, Options()) {}
  FakeDrafter(FakeHost& host, const specd_factory& factory, const FakeConfig& config,
              Options options)
      : host_(host), api_(factory.drafter) {
    if (api_ == nullptr) throw std::runtime_error("not a drafter factory");
    const specd_config view = config.view();
    Guarded<specd_drafter_caps> caps;
    caps.value.struct_size = sizeof caps.value;
    status_ = api_->describe(&factory, host.host(), &host.target(), &view, &caps.value);
    host.check(caps.intact(), "describe() wrote past the caps");
    if (status_ != SPECD_OK) return;
    caps_ = caps.value;
    for (uint32_t t = 0; t < caps_.n_taps; ++t) {
      const bool good = t < SPECD_MAX_TAPS && caps_.taps[t] <= host.target().n_layers + 1;
      if (!good) throw std::runtime_error("describe(): a tap that the target does not have");
    }

    FakeHost::Call call{&host, nullptr, 0, {}};
    Guarded<specd_create_args> args;
    args.value.struct_size = sizeof args.value;
    args.value.target = &host.target();
    args.value.config = &view;
    args.value.owner = host.owner();
    args.value.call = call.handle();
    args.value.instance_name = "fake";
    args.value.data_dir = ".";
    status_ = api_->create(&factory, host.host(), &args.value, &self_);
    if (status_ != SPECD_OK) {
      self_ = nullptr;
      return;
    }
    grant_.struct_size = sizeof grant_;
    grant_.device_type = SPECD_DEV_CPU;
    grant_.max_nodes = options.max_nodes == 0 ? caps_.max_nodes : options.max_nodes;
    grant_.max_depth = caps_.max_depth;
    grant_.max_batch = options.max_batch;
    const uint64_t decoded = uint64_t{grant_.max_batch} * (uint64_t{grant_.max_depth} + 1);
    grant_.max_rows = static_cast<uint32_t>(
        std::min<uint64_t>(std::max<uint64_t>(caps_.rows_max, decoded), options.max_rows));
    grant_.needs = caps_.needs;
    if (options.wants_q && caps_.draft_rule != SPECD_RULE_POINT_MASS) {
      grant_.features = caps_.features & SPECD_FEATURE_Q;
    }
    grant_.memory_bytes_max = UINT64_MAX;
    host.set_active(true);
    status_ = api_->activate(self_, &grant_);
    active_ = status_ == SPECD_OK;
    if (active_ && caps_.tree_mode == SPECD_TREE_STATIC) {
      static_parent_.resize(grant_.max_nodes);
      static_parent_.resize(api_->static_tree(self_, static_parent_.data(), grant_.max_nodes));
    }
  }
  ~FakeDrafter() {
    if (self_ == nullptr) return;
    if (active_) {
      for (int s = 0; s < static_cast<int>(sequences_.size()); ++s) end(s, SPECD_END_CANCELLED);
      api_->deactivate(self_);
    }
    api_->destroy(self_);
    host_.set_active(false);
    host_.expect_no_memory_held();
  }
  FakeDrafter(const FakeDrafter&) = delete;
  FakeDrafter& operator=(const FakeDrafter&) = delete;

  specd_status status() const { return status_; }  // of describe(), create() or activate()
  const specd_drafter_caps& caps() const { return caps_; }
  const specd_drafter_grant& grant() const { return grant_; }

  // Returns a handle. The last token of `tokens` is the root of a propose() without a commit().
  int begin(const std::vector<int32_t>& tokens, uint32_t attach_mode = SPECD_ATTACH_FRESH,
            specd_sampling sampling = greedy_sampling(), uint64_t tenant = 0) {
    return begin_batch({tokens}, attach_mode, sampling, tenant)[0];
  }
  // Begins several sequences in one call.
  std::vector<int> begin_batch(const std::vector<std::vector<int32_t>>& texts,
                               uint32_t attach_mode = SPECD_ATTACH_FRESH,
                               specd_sampling sampling = greedy_sampling(), uint64_t tenant = 0) {
    const auto first = static_cast<int>(sequences_.size());
    std::vector<int> handles;
    std::vector<FakeBatch::Item> items;
    std::vector<uint64_t> offsets = {0};
    std::vector<int32_t> tokens;
    for (const std::vector<int32_t>& text : texts) {
      handles.push_back(first + static_cast<int>(handles.size()));
      const uint32_t slot = free_slot();
      sequences_.push_back(std::make_unique<Sequence>(
          Sequence{seq_id(handles.back()), nullptr, text, sampling, SPECD_OK, true}));
      sequences_.back()->slot = slot;
      const bool comes_as_rows = reads_hidden() && attach_mode == SPECD_ATTACH_FRESH;
      sequences_.back()->n_rows = comes_as_rows || text.empty() ? 0 : text.size() - 1;
      items.push_back(item(handles.back()));
      tokens.insert(tokens.end(), text.begin(), text.end());
      offsets.push_back(tokens.size());
    }
    FakeBatch batch(host_, items);
    std::vector<void*> states(texts.size(), nullptr);
    Guarded<specd_begin_args> args;
    args.value.struct_size = sizeof args.value;
    args.value.attach_mode = attach_mode;
    args.value.batch = batch.get();
    args.value.token_offsets = offsets.data();
    args.value.tokens = tokens.data();
    args.value.sampling = batch.sampling();
    args.value.seq_state = states.data();
    const std::vector<uint64_t> tenants(texts.size(), tenant);
    args.value.tenant = tenants.data();
    const specd_status status = api_->begin(self_, &args.value);
    for (std::size_t i = 0; i < texts.size(); ++i) {
      Sequence& s = *sequences_[static_cast<std::size_t>(handles[i])];
      s.state = states[i];
      s.status = status != SPECD_OK ? status : batch.status(i);
      s.begun = s.status == SPECD_OK;
      if (!s.begun) host_.end_sequence(s.id);
    }
    host_.check(args.intact(), "begin() wrote past its arguments");
    host_.check_blocks();
    return handles;
  }

  // What the target says after the root and after each node of the last proposal, in this order: its
  // top_k tokens, or fewer when it says nothing there.
  using Top = std::vector<std::vector<int32_t>>;
  // For a drafter whose top_k is 1: nothing after the root, and one token after each node; -1 =
  // nothing.
  static Top top_of_nodes(const std::vector<int32_t>& tokens) {
    Top top(1);
    for (const int32_t token : tokens) {
      top.push_back(token < 0 ? std::vector<int32_t>() : std::vector<int32_t>{token});
    }
    return top;
  }

  // Sends the rows of one update(): newly committed tokens, the nodes they came from, and what the
  // target says. Like the host, keeps what it says after a probe that did not ask.
  specd_status commit(int handle, const std::vector<int32_t>& tokens,
                      const std::vector<int32_t>& nodes = {}, const Top& top = {}) {
    return commit_batch({{handle, tokens, nodes, top}});
  }
  struct Commit {
    int handle;
    std::vector<int32_t> tokens;
    std::vector<int32_t> nodes = {};  // empty: SPECD_NODE_NONE
    Top top = {};
  };
  specd_status commit_batch(const std::vector<Commit>& commits) {
    for (const Commit& c : commits) {
      const specd_status status = prefill(c.handle);
      if (status != SPECD_OK) return status;
    }
    for (const Commit& c : commits) {
      Sequence& s = *sequences_[static_cast<std::size_t>(c.handle)];
      s.tokens.insert(s.tokens.end(), c.tokens.begin(), c.tokens.end());
      s.sampling.tokens_left -= std::min<uint64_t>(s.sampling.tokens_left, c.tokens.size());
    }
    return update(commits, true);
  }

  // With SPECD_NEED_HIDDEN and SPECD_ATTACH_FRESH: sends the rows of the prompt before its last one,
  // in several calls if they are more than max_rows. The first commit() sends the last one. It calls
  // this when the test did not.
  specd_status prefill(int handle) {
    const Sequence& s = *sequences_[static_cast<std::size_t>(handle)];
    specd_status status = SPECD_OK;
    while (s.begun && status == SPECD_OK && s.n_rows + 1 < s.tokens.size()) {
      const std::size_t n = std::min<std::size_t>(grant_.max_rows, s.tokens.size() - 1 - s.n_rows);
      const auto next = s.tokens.begin() + static_cast<std::ptrdiff_t>(s.n_rows) + 1;
      status = update({{handle, {next, next + static_cast<std::ptrdiff_t>(n)}}}, false);
    }
    return status;
  }

  // The target's hidden state after the last of `tokens`, at a tap of the caps. By default it is
  // random, and the same after the same three tokens at the same position.
  using Hidden =
      std::function<std::vector<float>(uint32_t tap, const std::vector<int32_t>& tokens)>;
  void set_hidden(Hidden hidden) { hidden_ = std::move(hidden); }
  std::vector<float> hidden(uint32_t tap, const std::vector<int32_t>& tokens) const {
    std::vector<float> state;
    if (hidden_) {
      state = hidden_(tap, tokens);
    } else {
      uint64_t key = fake_hash({tap, tokens.size()});
      for (std::size_t i = tokens.size() < 3 ? 0 : tokens.size() - 3; i < tokens.size(); ++i) {
        key = fake_hash({key, static_cast<uint64_t>(tokens[i])});
      }
      for (uint64_t i = 0; i < host_.target().hidden_size; ++i) {
        state.push_back(2 * fake_unit(fake_hash({key, i})) - 1);
      }
    }
    if (state.size() == host_.target().hidden_size) return state;
    throw std::runtime_error("a hidden state has hidden_size elements");
  }

  FakeDraft propose(int handle, int32_t budget = -1) {
    return propose_batch({handle}, {budget})[0];
  }
  // Budget -1 means the whole capacity.
  std::vector<FakeDraft> propose_batch(const std::vector<int>& handles,
                                       std::vector<int32_t> budgets = {}) {
    const std::size_t n = handles.size(), capacity = grant_.max_nodes;
    budgets.resize(n, -1);
    std::vector<FakeBatch::Item> items;
    for (const int handle : handles) items.push_back(item(handle));
    FakeBatch batch(host_, items);
    for (const int handle : handles) {
      batch.call().text.push_back(&sequences_[static_cast<std::size_t>(handle)]->tokens);
    }
    GuardedColumn<int32_t> root_token(n, 1, 1), root_position(n, 1, 1), node_budget(n, 1, 1),
        n_nodes(n, 1, 1), token(n, capacity), parent(n, capacity), flags(n, capacity);
    const bool variable = caps_.tree_mode == SPECD_TREE_VARIABLE;
    for (std::size_t i = 0; i < n; ++i) {
      const Sequence& s = *sequences_[static_cast<std::size_t>(handles[i])];
      const std::size_t budget =
          budgets[i] < 0 ? capacity : std::min(capacity, static_cast<std::size_t>(budgets[i]));
      root_token.at(i) = s.tokens.back();
      root_position.at(i) = static_cast<int32_t>(s.tokens.size()) - 1;
      node_budget.at(i) = n_nodes.at(i) = static_cast<int32_t>(budget);
      for (std::size_t c = 0; c < capacity; ++c) token.at(i, c) = SPECD_NO_TOKEN;
      token.limit_row(i, budget);
      flags.limit_row(i, budget);
      if (variable) {
        parent.limit_row(i, budget);
        continue;
      }
      for (std::size_t c = 0; c < capacity; ++c) parent.at(i, c) = preset_parent(c);
    }
    const bool probes = (grant_.needs & SPECD_NEED_PROBES) != 0;
    Guarded<specd_proposal> out;
    out.value.struct_size = sizeof out.value;
    out.value.node_capacity = static_cast<uint32_t>(capacity);
    out.value.n_nodes = n_nodes.tensor();
    out.value.token = token.tensor();
    out.value.parent = parent.tensor();
    out.value.flags = probes ? flags.tensor() : nullptr;
    GuardedColumn<int32_t> q_row(n, capacity + 1);
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t c = 0; c <= capacity; ++c) q_row.at(i, c) = -1;
    }
    specd_tensor q{}, q_lse{};
    if ((grant_.features & SPECD_FEATURE_Q) != 0) {
      out.value.q_row = q_row.tensor();
      out.value.q = &q;
      out.value.q_lse = &q_lse;
    }
    Guarded<specd_propose_args> args;
    specd_propose_args& a = args.value;
    a.struct_size = sizeof a;
    a.batch = batch.get();
    a.root_token = root_token.tensor();
    a.root_position = root_position.tensor();
    a.node_budget = node_budget.tensor();
    a.host_root_token = root_token.data();
    a.host_root_position = root_position.data();
    a.host_node_budget = node_budget.data();
    a.sampling = batch.sampling();
    a.out = &out.value;
    const specd_status status = api_->propose(self_, &a);
    host_.check(args.intact() && out.intact() && root_token.intact() && root_position.intact() &&
                    node_budget.intact() && n_nodes.intact(),
                "propose() wrote past its arguments");
    host_.check(token.intact() && parent.intact() && flags.intact() && q_row.intact(),
                "propose() wrote past the budget of a row");
    host_.check_blocks();
    std::vector<FakeDraft> drafts(n);
    for (std::size_t i = 0; i < n; ++i) {
      FakeDraft& d = drafts[i];
      d.call_status = status;
      d.status = batch.status(i);
      d.count = n_nodes.at(i);
      // Like the host, end the nodes at the first SPECD_NO_TOKEN.
      for (int32_t c = 0; c < d.count && c < static_cast<int32_t>(capacity); ++c) {
        if (token.at(i, static_cast<std::size_t>(c)) == SPECD_NO_TOKEN) d.count = c;
      }
      for (std::size_t c = 0; c < capacity; ++c) {
        if (!variable && parent.at(i, c) != preset_parent(c)) {
          host_.violate("propose() changed a preset parent");
        }
        if (static_cast<int64_t>(c) >= d.count) continue;
        d.token.push_back(token.at(i, c));
        d.parent.push_back(parent.at(i, c));
        d.flags.push_back(flags.at(i, c));
      }
      for (std::size_t e = 0; e <= d.token.size() && out.value.q_row != nullptr; ++e) {
        d.q.push_back(log_q(q, q_lse, q_row.at(i, e)));
      }
      sequences_[static_cast<std::size_t>(handles[i])]->flags = d.flags;
    }
    return drafts;
  }

  void end(int handle, uint32_t reason = SPECD_END_FINISHED) {
    Sequence& s = *sequences_[static_cast<std::size_t>(handle)];
    if (!s.begun) return;
    s.begun = false;
    FakeBatch batch(host_, {item(handle)});
    Guarded<specd_end_args> args;
    args.value.struct_size = sizeof args.value;
    args.value.reason = reason;
    args.value.batch = batch.get();
    api_->end(self_, &args.value);
    s.state = nullptr;
    host_.end_sequence(s.id);
    host_.check_blocks();
  }

  // Status of the sequence in the last begin() or commit().
  specd_status sequence_status(int handle) const {
    return sequences_[static_cast<std::size_t>(handle)]->status;
  }
  const std::vector<int32_t>& tokens(int handle) const {
    return sequences_[static_cast<std::size_t>(handle)]->tokens;
  }
  // By which the host's services know a sequence.
  static uint64_t seq_id(int handle) { return static_cast<uint64_t>(handle) + 1; }

 private:
  std::vector<float> log_q(const specd_tensor& q, const specd_tensor& lse, int32_t row) {
    if (row < 0) return {};
    if (q.data == nullptr || lse.data == nullptr || row >= q.shape[0] || row >= lse.shape[0] ||
        q.shape[1] != host_.target().vocab_size || q.stride[1] != 1) {
      host_.violate("propose(): q_row is no row of q and q_lse");
      return {};
    }
    const float* values = static_cast<const float*>(q.data) + row * q.stride[0];
    std::vector<float> out(values, values + q.shape[1]);
    for (float& each : out) each -= static_cast<const float*>(lse.data)[row * lse.stride[0]];
    return out;
  }

  struct Sequence {
    uint64_t id;
    void* state;
    std::vector<int32_t> tokens;
    specd_sampling sampling;
    specd_status status;
    bool begun;
    std::size_t n_rows = 0;           // sent, or known from begin()
    std::vector<int32_t> flags = {};  // of the last proposal, until the next commit
    uint32_t slot = 0;
  };
  bool reads_hidden() const { return (grant_.needs & SPECD_NEED_HIDDEN) != 0; }
  // Sends the next rows of each sequence, one for each token that follows them. `ends_step`: these
  // are the last rows of the step.
  specd_status update(const std::vector<Commit>& commits, bool ends_step) {
    const std::size_t n = commits.size(), top_k = caps_.top_k, elements = grant_.max_nodes + 1;
    std::vector<FakeBatch::Item> items;
    std::vector<uint32_t> row_offsets{0};
    std::size_t n_top = 0;
    for (const Commit& c : commits) {
      items.push_back(item(c.handle));
      row_offsets.push_back(row_offsets.back() + static_cast<uint32_t>(c.tokens.size()));
      n_top += c.top.size();
    }
    const std::size_t n_rows = row_offsets.back();
    FakeBatch batch(host_, items);
    GuardedColumn<int32_t> seq_index(n_rows, 1, 1), position(n_rows, 1, 1), token(n_rows, 1, 1),
        next(n_rows, 1, 1), node(n_rows, 1, 1), last_row(n, 1, 1), top_row(n, elements),
        top_token(n_top, top_k);
    std::size_t row = 0, n_told = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const Commit& c = commits[i];
      Sequence& s = *sequences_[static_cast<std::size_t>(c.handle)];
      for (std::size_t e = 0; e < elements; ++e) {
        top_row.at(i, e) = -1;
        const bool is_there = e == 0 || e <= s.flags.size();
        if (!is_there || top_k == 0 || e >= c.top.size() || c.top[e].size() < top_k) continue;
        const int32_t flags = e == 0 ? 0 : s.flags[e - 1];
        if ((flags & SPECD_NODE_PROBE) != 0 && (flags & SPECD_NODE_WANT_TOP) == 0) continue;
        for (std::size_t k = 0; k < top_k; ++k) top_token.at(n_told, k) = c.top[e][k];
        top_row.at(i, e) = static_cast<int32_t>(n_told++);
      }
      if (ends_step) s.flags.clear();  // the nodes are those of one step
      last_row.at(i) = c.tokens.empty() ? -1 : static_cast<int32_t>(row + c.tokens.size()) - 1;
      for (std::size_t r = 0; r < c.tokens.size(); ++r, ++row, ++s.n_rows) {
        seq_index.at(row) = static_cast<int32_t>(i);
        position.at(row) = static_cast<int32_t>(s.n_rows);
        token.at(row) = s.tokens[s.n_rows];
        next.at(row) = c.tokens[r];
        node.at(row) = c.nodes.empty() ? SPECD_NODE_NONE : c.nodes[r];
      }
    }
    Guarded<specd_update_args> args;
    specd_update_args& a = args.value;
    a.struct_size = sizeof a;
    a.n_rows = static_cast<uint32_t>(n_rows);
    a.batch = batch.get();
    a.row_offsets = row_offsets.data();
    a.seq_index = seq_index.tensor();
    a.position = position.tensor();
    a.token = token.tensor();
    a.next_token = next.tensor();
    a.node = node.tensor();
    a.last_row = last_row.tensor();
    a.host_position = position.data();
    a.host_token = token.data();
    a.host_next_token = next.data();
    a.host_node = node.data();
    if (n_told > 0) {
      a.top_row = top_row.tensor();
      a.host_top_row = top_row.data();
      a.top_token = top_token.tensor();
      a.host_top_token = top_token.data();
    }
    HiddenRows states(n_rows, reads_hidden() ? caps_.n_taps : 0, host_.target().hidden_size);
    GuardedColumn<int32_t> hidden_row(n_rows, 1, 1), last_hidden_row(n, 1, 1);
    if (reads_hidden()) {
      for (std::size_t r = 0; r < n_rows; ++r) {
        const auto s = static_cast<std::size_t>(seq_index.at(r));
        const std::vector<int32_t>& text = tokens(commits[s].handle);
        const std::vector<int32_t> upto(text.begin(), text.begin() + position.at(r) + 1);
        hidden_row.at(r) = static_cast<int32_t>(states.place(r));
        for (uint32_t t = 0; t < caps_.n_taps; ++t) states.set(t, r, hidden(caps_.taps[t], upto));
      }
      for (std::size_t i = 0; i < n; ++i) {
        const int32_t last = last_row.at(i);
        last_hidden_row.at(i) = last < 0 ? -1 : hidden_row.at(static_cast<std::size_t>(last));
      }
      a.hidden_row = hidden_row.tensor();
      a.host_hidden_row = hidden_row.data();
      a.last_hidden_row = last_hidden_row.tensor();
      a.hidden = states.tensors();
    }
    const specd_status status = api_->update == nullptr ? SPECD_OK : api_->update(self_, &a);
    for (std::size_t i = 0; i < n; ++i) {
      sequences_[static_cast<std::size_t>(commits[i].handle)]->status =
          status != SPECD_OK ? status : batch.status(i);
    }
    host_.check(args.intact() && seq_index.intact() && position.intact() && token.intact() &&
                    next.intact() && node.intact() && last_row.intact() && top_row.intact() &&
                    top_token.intact() && hidden_row.intact() && last_hidden_row.intact(),
                "update() wrote past its arguments");
    host_.check(states.intact(), "update() wrote to the hidden states");
    host_.check_blocks();
    return status;
  }

  // The hidden states of one update(): row r is at place(r), far behind r and in falling order, with
  // rows of NaN around it, which are nobody's.
  class HiddenRows {
   public:
    HiddenRows(std::size_t n_rows, std::size_t n_taps, std::size_t width) : n_rows_(n_rows) {
      for (std::size_t t = 0; t < n_taps; ++t) {
        taps_.push_back(std::make_unique<GuardedColumn<float>>(3 * n_rows + 1, width));
        tensors_.push_back(taps_.back()->tensor());
        given_.emplace_back((3 * n_rows + 1) * width, NAN);
        std::copy(given_[t].begin(), given_[t].end(), taps_[t]->data());
      }
    }
    std::size_t place(std::size_t row) const { return 3 * n_rows_ - 1 - 2 * row; }
    void set(std::size_t tap, std::size_t row, const std::vector<float>& state) {
      const std::size_t at = place(row) * state.size();
      std::copy(state.begin(), state.end(), taps_[tap]->data() + at);
      std::copy(state.begin(), state.end(), given_[tap].data() + at);
    }
    const specd_tensor* const* tensors() const { return tensors_.data(); }
    bool intact() {
      for (std::size_t t = 0; t < taps_.size(); ++t) {
        const std::size_t bytes = given_[t].size() * sizeof(float);
        const bool same = std::memcmp(given_[t].data(), taps_[t]->data(), bytes) == 0;
        if (!same || !taps_[t]->intact()) return false;
      }
      return true;
    }

   private:
    const std::size_t n_rows_;
    std::vector<std::unique_ptr<GuardedColumn<float>>> taps_;
    std::vector<const specd_tensor*> tensors_;
    std::vector<std::vector<float>> given_;
  };

  FakeBatch::Item item(int handle) const {
    const Sequence& s = *sequences_[static_cast<std::size_t>(handle)];
    return {s.id, s.slot, s.state, &s.sampling};
  }
  // The lowest slot that no sequence has.
  uint32_t free_slot() const {
    uint32_t slot = 0;
    const auto is_taken = [&](const std::unique_ptr<Sequence>& each) {
      return each->begun && each->slot == slot;
    };
    while (std::any_of(sequences_.begin(), sequences_.end(), is_taken)) ++slot;
    host_.check(slot < grant_.max_batch, "the test begins more sequences than Options::max_batch");
    return slot;
  }
  int32_t preset_parent(std::size_t node) const {
    if (caps_.tree_mode == SPECD_TREE_STATIC && node < static_parent_.size()) {
      return static_parent_[node];
    }
    return static_cast<int32_t>(node) - 1;
  }

  FakeHost& host_;
  const specd_drafter_api* api_;
  specd_status status_ = SPECD_OK;
  specd_drafter* self_ = nullptr;
  specd_drafter_caps caps_{};
  specd_drafter_grant grant_{};
  bool active_ = false;
  std::vector<int32_t> static_parent_;
  std::vector<std::unique_ptr<Sequence>> sequences_;
  Hidden hidden_;  // empty = by default
};

}  // namespace specd::sdk

#endif
