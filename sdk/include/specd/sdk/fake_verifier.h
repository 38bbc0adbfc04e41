// Plays the host for one verifier in unit tests.
#ifndef SPECD_SDK_FAKE_VERIFIER_H
#define SPECD_SDK_FAKE_VERIFIER_H

#include <specd/sdk/fake_batch.h>
#include <specd/sdk/fake_config.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <vector>

namespace specd::sdk {

// One sequence's proposal and the target's tokens: row_token[0] after the root, [i + 1] after
// node i. `law`: the same of processed logits, minus infinity for what cannot be drawn; for verifiers
// with SPECD_NEED_LAW, all of one vocabulary. `q`: the same of what children were drawn from, for
// verifiers with SPECD_NEED_Q. An empty row is one that a node does not have.
struct FakeTree {
  std::vector<int32_t> token, parent, flags, row_token;
  int64_t state = 0;
  std::vector<std::vector<float>> law = {}, q = {};
  specd_sampling sampling = greedy_sampling();
  std::vector<int32_t> text = std::vector<int32_t>(11, 0);  // the root last, at position 10
};
struct FakeVerdict {
  specd_status call_status = SPECD_OK;
  specd_status status = SPECD_OK;
  int32_t n_accepted = 0;     // as the plugin wrote it
  std::vector<int32_t> path;  // the first min(n_accepted, capacity) entries
  int32_t next_token = 0;
  int64_t state = 0;
};

// Plays the host for one verifier instance.
class FakeVerifier {
 public:
  // `draft_rule`, `tree_mode`: of the drafter whose proposals are judged.
  FakeVerifier(FakeHost& host, const specd_factory& factory, const FakeConfig& config,
               uint32_t draft_rule = SPECD_RULE_POINT_MASS,
               uint32_t tree_mode = SPECD_TREE_VARIABLE)
      : host_(host), api_(factory.verifier) {
    if (api_ == nullptr) throw std::runtime_error("not a verifier factory");
    const specd_config view = config.view();
    Guarded<specd_verifier_caps> caps;
    caps.value.struct_size = sizeof caps.value;
    status_ = api_->describe(&factory, host.host(), &host.target(), &view, &caps.value);
    host.check(caps.intact(), "describe() wrote past the caps");
    if (status_ != SPECD_OK) return;
    caps_ = caps.value;
    FakeHost::Call call{&host, nullptr, 0, {}};
    specd_create_args args{};
    args.struct_size = sizeof args;
    args.target = &host.target();
    args.config = &view;
    args.owner = host.owner();
    args.call = call.handle();
    args.instance_name = "fake";
    args.data_dir = ".";
    status_ = api_->create(&factory, host.host(), &args, &self_);
    if (status_ != SPECD_OK) {
      self_ = nullptr;
      return;
    }
    specd_verifier_grant grant{};
    grant.struct_size = sizeof grant;
    grant.device_type = SPECD_DEV_CPU;
    grant.max_nodes = SPECD_MAX_TREE_NODES;
    grant.max_depth = SPECD_MAX_TREE_DEPTH;
    grant.max_batch = 64;
    grant.tree_mode = tree_mode;
    grant.draft_rule = draft_rule;
    gives_q_ = draft_rule != SPECD_RULE_POINT_MASS && (caps_.needs & SPECD_NEED_Q) != 0;
    host.set_active(true);
    status_ = api_->activate(self_, &grant);
    active_ = status_ == SPECD_OK;
  }
  ~FakeVerifier() {
    if (self_ == nullptr) return;
    if (active_) api_->deactivate(self_);
    api_->destroy(self_);
    host_.set_active(false);
    host_.expect_no_memory_held();
  }
  FakeVerifier(const FakeVerifier&) = delete;
  FakeVerifier& operator=(const FakeVerifier&) = delete;

  specd_status status() const { return status_; }
  const specd_verifier_caps& caps() const { return caps_; }

  FakeVerdict verify(const FakeTree& tree) { return verify_batch({tree})[0]; }
  std::vector<FakeVerdict> verify_batch(const std::vector<FakeTree>& trees) {
    const std::size_t n = trees.size();
    std::size_t capacity = 1;
    for (const FakeTree& t : trees) capacity = std::max(capacity, t.token.size());
    std::vector<FakeBatch::Item> items;
    std::vector<const int32_t*> text;
    std::vector<uint32_t> text_len;
    std::size_t vocab = 1;
    for (std::size_t i = 0; i < n; ++i) {
      items.push_back({i + 1, static_cast<uint32_t>(i), nullptr, &trees[i].sampling});
      text.push_back(trees[i].text.data());
      text_len.push_back(static_cast<uint32_t>(trees[i].text.size()));
      for (const auto* rows : {&trees[i].law, &trees[i].q}) {
        for (const std::vector<float>& row : *rows) vocab = std::max(vocab, row.size());
      }
    }
    FakeBatch batch(host_, items);
    GuardedColumn<int32_t> n_nodes(n, 1, 1), token(n, capacity), parent(n, capacity),
        flags(n, capacity), row_token(n, capacity + 1), root_token(n, 1, 1), root_position(n, 1, 1),
        n_accepted(n, 1, 1), path(n, capacity), next_token(n, 1, 1);
    GuardedColumn<int64_t> state(n, 1, 1);
    std::vector<const std::vector<std::vector<float>>*> law_of, q_of;
    for (const FakeTree& t : trees) law_of.push_back(&t.law), q_of.push_back(&t.q);
    Laws law(law_of, capacity, vocab), q(q_of, capacity, vocab);
    for (std::size_t i = 0; i < n; ++i) {
      const FakeTree& t = trees[i];
      n_nodes.at(i) = static_cast<int32_t>(t.token.size());
      for (std::size_t c = 0; c < t.token.size(); ++c) {
        token.at(i, c) = t.token[c];
        parent.at(i, c) = t.parent[c];
        flags.at(i, c) = t.flags.empty() ? 0 : t.flags[c];
      }
      for (std::size_t c = 0; c < t.row_token.size(); ++c) row_token.at(i, c) = t.row_token[c];
      root_position.at(i) = static_cast<int32_t>(t.text.size()) - 1;
      root_token.at(i) = t.text.back();
      state.at(i) = t.state;
      path.limit_row(i, t.token.size());
    }
    specd_proposal proposal{};
    proposal.struct_size = sizeof proposal;
    proposal.node_capacity = static_cast<uint32_t>(capacity);
    proposal.n_nodes = n_nodes.tensor();
    proposal.token = token.tensor();
    proposal.parent = parent.tensor();
    proposal.flags = flags.tensor();
    specd_tensor q_law = *q.law.tensor(), q_lse = *q.lse.tensor();
    if (gives_q_) {
      proposal.q_row = q.row.tensor();
      proposal.q = &q_law;
      proposal.q_lse = &q_lse;
    }
    Guarded<specd_verdict> out;
    out.value.struct_size = sizeof out.value;
    out.value.path_capacity = static_cast<uint32_t>(capacity);
    out.value.n_accepted = n_accepted.tensor();
    out.value.path = path.tensor();
    out.value.next_token = next_token.tensor();
    Guarded<specd_verify_args> args;
    specd_verify_args& a = args.value;
    a.struct_size = sizeof a;
    a.batch = batch.get();
    a.proposal = &proposal;
    a.root_token = root_token.tensor();
    a.root_position = root_position.tensor();
    a.row_token = row_token.tensor();
    if ((caps_.needs & SPECD_NEED_LAW) != 0) {
      a.row = law.row.tensor();
      a.law = law.law.tensor();
      a.law_lse = law.lse.tensor();
    }
    a.text = text.data();
    a.text_len = text_len.data();
    a.state = state.tensor();
    a.sampling = batch.sampling();
    a.out = &out.value;
    const specd_status status = api_->verify(self_, &a);
    host_.check(args.intact() && out.intact() && n_accepted.intact() && path.intact() &&
                    next_token.intact() && state.intact() && token.intact() && parent.intact() &&
                    flags.intact() && row_token.intact() && n_nodes.intact() &&
                    root_token.intact() && root_position.intact() && law.intact() && q.intact(),
                "verify() wrote past its arguments");
    std::vector<FakeVerdict> verdicts(n);
    for (std::size_t i = 0; i < n; ++i) {
      FakeVerdict& v = verdicts[i];
      v.call_status = status;
      v.status = batch.status(i);
      v.n_accepted = n_accepted.at(i);
      for (std::size_t c = 0; c < capacity && static_cast<int64_t>(c) < v.n_accepted; ++c) {
        v.path.push_back(path.at(i, c));
      }
      v.next_token = next_token.at(i);
      v.state = state.at(i);
    }
    return verdicts;
  }

 private:
  // Rows of all trees in one tensor, and which of them a node has.
  struct Laws {
    Laws(const std::vector<const std::vector<std::vector<float>>*>& of, std::size_t capacity,
         std::size_t vocab)
        : row(of.size(), capacity + 1), law(count(of), vocab), lse(count(of), 1, 1) {
      std::size_t next = 0;
      const auto add = [&](const std::vector<float>& logits) {
        double sum = 0;
        for (std::size_t t = 0; t < vocab; ++t) {
          law.at(next, t) = t < logits.size() ? logits[t] : NAN;
          sum += t < logits.size() ? std::exp(double{logits[t]}) : 0;
        }
        lse.at(next) = static_cast<float>(std::log(sum));
        return static_cast<int32_t>(next++);
      };
      add({});  // the first row is nobody's
      for (std::size_t i = 0; i < of.size(); ++i) {
        for (std::size_t c = 0; c < capacity + 1; ++c) {
          const bool is_there = c < of[i]->size() && !(*of[i])[c].empty();
          row.at(i, c) = is_there ? add((*of[i])[c]) : -1;
        }
      }
    }
    bool intact() { return row.intact() && law.intact() && lse.intact(); }

    GuardedColumn<int32_t> row;
    GuardedColumn<float> law, lse;

   private:
    static std::size_t count(const std::vector<const std::vector<std::vector<float>>*>& of) {
      std::size_t n = 1;
      for (const auto* rows : of) {
        for (const std::vector<float>& each : *rows) n += each.empty() ? 0 : 1;
      }
      return n;
    }
  };

  FakeHost& host_;
  const specd_verifier_api* api_;
  specd_status status_ = SPECD_OK;
  specd_verifier* self_ = nullptr;
  specd_verifier_caps caps_{};
  bool active_ = false, gives_q_ = false;
};

}  // namespace specd::sdk

#endif
