// The trained heads of the zoo on the model that they were trained for, with the services of the
// engine: along 20 recorded texts of 30 steps each, what they draft is what a plain reference in
// float64 drafts. tests/reference/heads/make_plain.py records that, one file a head.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <numeric>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/base/to_size.h"
#include "core/model/model_facts.h"
#include "core/plugin/bundle/registry.h"
#include "core/plugin/instance/caps.h"
#include "core/plugin/instance/tensor.h"
#include "core/services/directory.h"
#include "core/services/model.h"
#include "tests/core/model/forward_rig.h"
#include "tests/plugins/token_list.h"

namespace specd {
namespace {

constexpr double kMarginMin = 1e-4;  // closer decisions may be taken otherwise in float32
constexpr double kStatesMayDiffer = 1e-4;
constexpr size_t kContexts = 20, kSteps = 30;  // of a recording
constexpr int32_t kTextMax = 400;
constexpr uint32_t kRowsMax = 150;  // of an update: the prompts come in several calls

// Folders pico-NAME.
const std::vector<std::string> kHeads = {"eagle2", "eagle3", "medusa", "redrafter"};
std::string recording_path(const std::string& head) {
  return SPECD_TEST_REFERENCE "/heads/zoo_" + head + ".json";
}
Json recording_of(const std::string& head) {
  std::ifstream file(recording_path(head));
  if (!file) throw std::runtime_error(recording_path(head) + " is missing; make_plain.py makes it");
  return Json::parse(file);
}
TokenList text_of(const Json& context) {
  TokenList text = context["prompt"];
  text.push_back(context["root"]);
  for (const Json& step : context["steps"]) {
    for (const Json& token : step["committed"]) text.push_back(token);
  }
  return text;
}

// The target's states of texts, in one table a tap.
class States {
 public:
  States(const std::vector<TokenList>& texts, const std::vector<uint32_t>& taps)
      : rows(taps.size()) {
    for (const uint32_t tap : taps) rig.model->add_tap(rig.model->make_tap(tap).value());
    for (const TokenList& text : texts) {
      first_row.push_back(n_rows);
      rig.add_span(text, 0);
      rig.rows.logits_rows.clear();
      for (size_t i = 0; i < text.size(); ++i) rig.rows.tap_rows.push_back(static_cast<int32_t>(i));
      rig.run();
      n_rows += static_cast<int32_t>(text.size());
      for (size_t t = 0; t < taps.size(); ++t) {
        rows[t].insert(rows[t].end(), rig.model->tap(t), rig.model->tap(t) + text.size() * width());
      }
    }
  }
  size_t width() const { return to_size(rig.config.hidden_size); }

  ForwardRig rig{"pico-target", "", 1, false, kernels::KvDType::kF32, kTextMax};
  std::vector<std::vector<float>> rows;  // by tap
  std::vector<int32_t> first_row;        // by text
  int32_t n_rows = 0;
};

struct Draft {
  TokenList token, parent;
};
std::multiset<TokenList> paths_of(const TokenList& token, const TokenList& parent) {
  std::vector<TokenList> paths;
  for (size_t i = 0; i < token.size(); ++i) {
    paths.push_back(parent[i] < 0 ? TokenList() : paths[to_size(parent[i])]);
    paths.back().push_back(token[i]);
  }
  return {paths.begin(), paths.end()};
}

// A head as an instance on the CPU, for sequences that begin together; sequence s has text s of the
// states.
class ZooHead {
 public:
  ZooHead(const std::string& plugin, Json settings, const std::string& head, States& states,
          size_t n_sequences)
      : states_(states), states_of_(n_sequences, nullptr) {
    const std::string target = std::string(SPECD_TEST_ZOO) + "/pico-target";
    tokenizer_ = Tokenizer::load(target + "/tokenizer.json").value();
    facts_.fill("pico-target", states_.rig.config, *tokenizer_);
    services_.set_models(&models_);
    services_.set_target(states_.rig.model.get());
    char pattern[] = "/tmp/specd_head_zoo_XXXXXX";
    folder_ = mkdtemp(pattern);
    registry_ = PluginRegistry::open(
                    {.directories = {SPECD_TEST_BUNDLES}, .cache_directory = folder_ + "/cache"},
                    make_host(&services_))
                    .value();
    settings["weights"] = std::string(SPECD_TEST_ZOO) + "/pico-" + head;
    drafter_ = registry_->make_drafter(plugin, "", settings, facts_.info, head).value();
    const specd_drafter_caps& caps = drafter_->caps();
    specd_drafter_grant grant{};
    grant.struct_size = sizeof(grant);
    grant.device_type = SPECD_DEV_CPU;
    grant.max_nodes = caps.max_nodes;
    grant.max_depth = caps.max_depth;
    grant.max_batch = static_cast<uint32_t>(n_sequences);
    grant.max_rows = kRowsMax;
    grant.needs = caps.needs;
    grant.memory_bytes_max = quota_of(caps, n_sequences);
    const Status status = drafter_->activate(grant);
    EXPECT_TRUE(status.ok()) << status.to_string();
  }
  ~ZooHead() {
    Call call(*this, all());
    specd_end_args args{};
    args.struct_size = sizeof(args);
    args.reason = SPECD_END_FINISHED;
    args.batch = &call.batch;
    drafter_->end(args, call.call);
    for (const uint64_t id : call.id) models_.end(id);
    EXPECT_EQ(pool_.n_free(), kPages) << "pages of ended sequences";
    drafter_.reset();
    registry_.reset();
    std::filesystem::remove_all(folder_);
  }
  ZooHead(const ZooHead&) = delete;
  ZooHead& operator=(const ZooHead&) = delete;

  std::vector<uint32_t> taps() const {
    return {drafter_->caps().taps, drafter_->caps().taps + drafter_->caps().n_taps};
  }
  // Every row gets the states of so many rows later.
  void shift_states(int32_t rows) { shift_ = rows; }

  void begin(const std::vector<TokenList>& prompts) {
    texts_ = prompts;
    Call call(*this, all());
    std::vector<uint64_t> offsets{0};
    TokenList tokens;
    for (const TokenList& each : prompts) {
      tokens.insert(tokens.end(), each.begin(), each.end());
      offsets.push_back(tokens.size());
    }
    call.batch.seq_state = nullptr;
    specd_begin_args args{};
    args.struct_size = sizeof(args);
    args.attach_mode = SPECD_ATTACH_FRESH;
    args.batch = &call.batch;
    args.token_offsets = offsets.data();
    args.tokens = tokens.data();
    args.sampling = call.call.sampling;
    args.seq_state = states_of_.data();
    const std::vector<uint64_t> tenants(prompts.size(), 0);
    args.tenant = tenants.data();
    call.expect_ok(drafter_->begin(args, call.call));
  }

  std::vector<Draft> propose() {
    Call call(*this, all());
    const specd_drafter_caps& caps = drafter_->caps();
    const size_t n = texts_.size(), capacity = caps.max_nodes;
    TokenList root, position, budget(n, static_cast<int32_t>(capacity)),
        n_nodes = budget, token(n * capacity, SPECD_NO_TOKEN), parent(n * capacity, -1);
    for (const TokenList& text : texts_) {
      root.push_back(text.back());
      position.push_back(static_cast<int32_t>(text.size()) - 1);
    }
    const std::vector<int32_t>& fixed = drafter_->static_parents();
    for (size_t i = 0; i < parent.size() && caps.tree_mode != SPECD_TREE_VARIABLE; ++i) {
      const size_t node = i % capacity;
      parent[i] = node < fixed.size() ? fixed[node] : static_cast<int32_t>(node) - 1;
    }
    const auto rows = static_cast<int64_t>(n), columns = static_cast<int64_t>(capacity);
    const specd_tensor root_t = host_i32(root.data(), {rows}),
                       position_t = host_i32(position.data(), {rows}),
                       budget_t = host_i32(budget.data(), {rows}),
                       n_nodes_t = host_i32(n_nodes.data(), {rows}),
                       token_t = host_i32(token.data(), {rows, columns}),
                       parent_t = host_i32(parent.data(), {rows, columns});
    specd_proposal out{};
    out.struct_size = sizeof(out);
    out.node_capacity = caps.max_nodes;
    out.n_nodes = &n_nodes_t;
    out.token = &token_t;
    out.parent = &parent_t;
    specd_propose_args args{};
    args.struct_size = sizeof(args);
    args.batch = &call.batch;
    args.root_token = &root_t;
    args.root_position = &position_t;
    args.node_budget = &budget_t;
    if ((caps.needs & SPECD_NEED_HOST_TOKENS) != 0) {
      args.host_root_token = root.data();
      args.host_root_position = position.data();
      args.host_node_budget = budget.data();
    }
    args.sampling = call.call.sampling;
    args.out = &out;
    call.expect_ok(drafter_->propose(args, call.call));
    drafts_.assign(n, {});
    for (size_t s = 0; s < n; ++s) {
      for (size_t i = s * capacity; i < s * capacity + to_size(n_nodes[s]); ++i) {
        if (token[i] == SPECD_NO_TOKEN) break;
        drafts_[s].token.push_back(token[i]);
        drafts_[s].parent.push_back(parent[i]);
      }
    }
    models_.passed();
    models_.step_is_over();
    return drafts_;
  }

  // Appends to each text what was committed, and tells the head: at first the roots.
  void commit(const std::vector<TokenList>& committed) {
    std::vector<Row> rows;
    for (size_t s = 0; s < committed.size(); ++s) {
      TokenList& text = texts_[s];
      const auto root = static_cast<int32_t>(text.size()) - 1;
      text.insert(text.end(), committed[s].begin(), committed[s].end());
      if (drafts_.empty()) {
        for (int32_t p = 0; p <= root; ++p) rows.push_back({s, p, SPECD_NODE_NONE});
        continue;
      }
      int32_t node = SPECD_NODE_ROOT;
      for (size_t i = 0; i < committed[s].size(); ++i) {
        rows.push_back({s, root + static_cast<int32_t>(i), node});
        if (node != SPECD_NODE_NONE) node = child_of(drafts_[s], node, committed[s][i]);
      }
    }
    for (size_t first = 0; first < rows.size(); first += kRowsMax) {
      const size_t n = std::min<size_t>(kRowsMax, rows.size() - first);
      update({rows.data() + first, n});
    }
  }

 private:
  static constexpr int32_t kPages = 600;
  struct Row {
    size_t sequence;
    int32_t position, node;
  };
  // What each function of the drafter gets.
  struct Call {
    Call(ZooHead& head, const std::vector<size_t>& members) : status(members.size(), SPECD_OK) {
      sampling.struct_size = sizeof(sampling);
      sampling.flags = SPECD_SAMPLE_GREEDY;
      sampling.top_p = 1;
      sampling.typical_p = 1;
      sampling.tokens_left = kTextMax;
      for (const size_t s : members) {
        id.push_back(s + 1);
        slot.push_back(static_cast<uint32_t>(s));
        slot_column.push_back(static_cast<int32_t>(s));
        state.push_back(head.states_of_[s]);
        sampling_of.push_back(&sampling);
      }
      slots = host_i32(slot_column.data(), {static_cast<int64_t>(members.size())});
      batch.struct_size = sizeof(batch);
      batch.n_seqs = static_cast<uint32_t>(members.size());
      batch.step_id = ++head.step_;
      batch.call = &call;
      batch.seq_id = id.data();
      batch.seq_state = state.data();
      batch.seq_status = status.data();
      batch.slot = slot.data();
      batch.slots = &slots;
      call.batch = &batch;
      call.sampling = sampling_of.data();
    }
    void expect_ok(const Status& returned) const {
      EXPECT_TRUE(returned.ok()) << returned.to_string();
      for (size_t i = 0; i < status.size(); ++i) {
        EXPECT_EQ(status[i], SPECD_OK) << "sequence " << id[i] << " of the call";
      }
    }
    specd_call call;
    specd_batch batch{};
    specd_sampling sampling{};
    std::vector<const specd_sampling*> sampling_of;
    std::vector<uint64_t> id;
    std::vector<uint32_t> slot;
    std::vector<int32_t> slot_column;
    std::vector<void*> state;
    std::vector<specd_status> status;
    specd_tensor slots{};
  };

  std::vector<size_t> all() const {
    std::vector<size_t> members(states_of_.size());
    std::iota(members.begin(), members.end(), size_t{0});
    return members;
  }
  // SPECD_NODE_NONE when the token was not drafted there.
  static int32_t child_of(const Draft& draft, int32_t node, int32_t token) {
    const int32_t parent = node == SPECD_NODE_ROOT ? -1 : node;
    for (size_t i = 0; i < draft.token.size(); ++i) {
      if (draft.parent[i] == parent && draft.token[i] == token) return static_cast<int32_t>(i);
    }
    return SPECD_NODE_NONE;
  }

  // Rows of the same sequence follow each other.
  void update(std::span<const Row> rows) {
    std::vector<size_t> members;
    std::vector<uint32_t> offsets{0};
    TokenList seq_index, position, token, next_token, node, last_row, hidden_row, last_hidden_row;
    for (const Row& row : rows) {
      if (members.empty() || members.back() != row.sequence) {
        members.push_back(row.sequence);
        offsets.push_back(0);
        last_row.push_back(0);
        last_hidden_row.push_back(0);
      }
      last_row.back() = static_cast<int32_t>(position.size());
      seq_index.push_back(static_cast<int32_t>(members.size()) - 1);
      position.push_back(row.position);
      token.push_back(texts_[row.sequence][to_size(row.position)]);
      next_token.push_back(texts_[row.sequence][to_size(row.position) + 1]);
      node.push_back(row.node);
      hidden_row.push_back(states_.first_row[row.sequence] + row.position + shift_);
      last_hidden_row.back() = hidden_row.back();
      offsets.back() = static_cast<uint32_t>(position.size());
    }
    Call call(*this, members);
    const auto n = static_cast<int64_t>(rows.size()), n_seqs = static_cast<int64_t>(members.size());
    const specd_tensor seq_index_t = host_i32(seq_index.data(), {n}),
                       position_t = host_i32(position.data(), {n}),
                       token_t = host_i32(token.data(), {n}),
                       next_token_t = host_i32(next_token.data(), {n}),
                       node_t = host_i32(node.data(), {n}),
                       last_row_t = host_i32(last_row.data(), {n_seqs}),
                       hidden_row_t = host_i32(hidden_row.data(), {n}),
                       last_hidden_row_t = host_i32(last_hidden_row.data(), {n_seqs});
    std::vector<specd_tensor> hidden;
    std::vector<const specd_tensor*> hidden_ptr;
    for (std::vector<float>& each : states_.rows) {
      hidden.push_back(host_tensor(each.data(), SPECD_DT_FLOAT, 32,
                                   {states_.n_rows, static_cast<int64_t>(states_.width())}));
    }
    for (const specd_tensor& each : hidden) hidden_ptr.push_back(&each);
    specd_update_args args{};
    args.struct_size = sizeof(args);
    args.n_rows = static_cast<uint32_t>(n);
    args.batch = &call.batch;
    args.row_offsets = offsets.data();
    args.seq_index = &seq_index_t;
    args.position = &position_t;
    args.token = &token_t;
    args.next_token = &next_token_t;
    args.node = &node_t;
    args.last_row = &last_row_t;
    args.hidden_row = &hidden_row_t;
    args.last_hidden_row = &last_hidden_row_t;
    args.hidden = hidden_ptr.data();
    if ((drafter_->caps().needs & SPECD_NEED_HOST_TOKENS) != 0) {
      args.host_position = position.data();
      args.host_token = token.data();
      args.host_next_token = next_token.data();
      args.host_node = node.data();
      args.host_hidden_row = hidden_row.data();
    }
    call.expect_ok(drafter_->update(args, call.call));
    models_.passed();
  }

  States& states_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  ModelFacts facts_;
  KvStore kv_ =
      KvStore::create(*states_.rig.device, states_.rig.config, kernels::KvDType::kF32, kPages)
          .value();
  PagePool pool_{kPages};
  ModelService models_{*states_.rig.device, pool_, KvPages{&kv_, 2048}};
  Services services_{*states_.rig.device, *states_.rig.device, states_.rig.config.vocab_size};
  std::string folder_;
  std::unique_ptr<PluginRegistry> registry_;
  std::unique_ptr<Drafter> drafter_;
  std::vector<void*> states_of_;  // the plugin's, by sequence
  std::vector<TokenList> texts_;
  std::vector<Draft> drafts_;
  uint64_t step_ = 0;
  int32_t shift_ = 0;
};

// A step whose draft is another one than the recorded.
struct Difference {
  std::string text;
  double margin;
};
// Drafts the first steps of the first contexts along their recorded texts, as one batch.
std::vector<Difference> differences(const std::string& head, const Json& recording,
                                    size_t n_contexts, size_t n_steps, int32_t shift = 0) {
  const Json& contexts = recording["contexts"];
  std::vector<TokenList> texts, prompts, committed;
  for (size_t c = 0; c < n_contexts; ++c) {
    texts.push_back(text_of(contexts[c]));
    prompts.push_back(contexts[c]["prompt"]);
    committed.push_back({contexts[c]["root"]});
  }
  States states(texts, recording["taps"]);
  ZooHead drafter(recording["plugin"], recording["settings"], head, states, n_contexts);
  EXPECT_EQ(drafter.taps(), recording["taps"].get<std::vector<uint32_t>>());
  drafter.shift_states(shift);
  drafter.begin(prompts);
  std::vector<Difference> found;
  for (size_t number = 0; number < n_steps; ++number) {
    drafter.commit(committed);
    const std::vector<Draft> drafts = drafter.propose();
    for (size_t c = 0; c < n_contexts; ++c) {
      const Json& step = contexts[c]["steps"][number];
      committed[c] = step["committed"].get<TokenList>();
      const Json& parent = recording.contains("parent") ? recording["parent"] : step["parent"];
      const auto expected = paths_of(step["token"], parent);
      const auto got = paths_of(drafts[c].token, drafts[c].parent);
      if (got == expected) continue;
      std::vector<TokenList> missing;
      std::set_difference(expected.begin(), expected.end(), got.begin(), got.end(),
                          std::back_inserter(missing));
      found.push_back(
          {head + ", context " + std::to_string(c) + ", step " + std::to_string(number) + ": " +
               std::to_string(got.size()) + " nodes, expected " + std::to_string(expected.size()) +
               "; not proposed: " + Json(missing).dump() + "; margin " + step["margin"].dump(),
           step["margin"]});
    }
  }
  return found;
}

class HeadZoo : public testing::TestWithParam<std::string> {};

TEST_P(HeadZoo, drafts_are_those_of_the_reference_along_the_targets_own_text) {
  const Json recording = recording_of(GetParam());
  ASSERT_EQ(recording["contexts"].size(), kContexts);
  size_t n_nodes = 0, n_accepted = 0;
  for (const Json& context : recording["contexts"]) {
    ASSERT_EQ(context["steps"].size(), kSteps);
    for (const Json& step : context["steps"]) {
      n_nodes += step["token"].size();
      n_accepted += step["committed"].size() - 1;
    }
  }
  const std::vector<Difference> found = differences(GetParam(), recording, kContexts, kSteps);
  for (const Difference& each : found) {
    std::cout << each.text << "\n";
    EXPECT_LT(each.margin, kMarginMin) << each.text;
  }
  std::cout << GetParam() << ": " << kContexts * kSteps << " steps, " << n_nodes << " nodes, "
            << n_accepted << " of them accepted, " << found.size() << " steps differ\n";
  EXPECT_LE(100 * found.size(), kContexts * kSteps) << "more than 1 %";
  EXPECT_GT(n_accepted, kContexts * kSteps / 2)
      << "steps in which a draft goes on from accepted nodes";
}

// Negative control.
TEST_P(HeadZoo, states_of_the_next_row_draft_something_else) {
  const auto found = differences(GetParam(), recording_of(GetParam()), 4, 10, 1);
  EXPECT_GT(found.size(), 30u);
}

TEST_P(HeadZoo, taps_are_the_states_of_the_reference) {
  const Json recording = recording_of(GetParam());
  ASSERT_GE(recording["states"].size(), 2u);
  std::vector<TokenList> texts;
  for (const Json& each : recording["states"]) {
    texts.push_back(text_of(recording["contexts"][each["context"].get<size_t>()]));
  }
  const States states(texts, recording["taps"]);
  double most = 0, largest = 0;
  size_t n = 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    const Json& each = recording["states"][i];
    const std::vector<int32_t> positions = each["positions"];
    const std::vector<size_t> columns = each["columns"];
    ASSERT_EQ(each["values"].size(), states.rows.size());
    for (size_t tap = 0; tap < states.rows.size(); ++tap) {
      const std::vector<double> values = each["values"][tap];
      ASSERT_GE(values.size(), 64u);
      for (size_t v = 0; v < values.size(); ++v, ++n) {
        const size_t row = to_size(states.first_row[i] + positions[v]);
        const double got = states.rows[tap][row * states.width() + columns[v]];
        EXPECT_NEAR(got, values[v], kStatesMayDiffer)
            << "tap " << recording["taps"][tap] << ", context " << each["context"] << ", position "
            << positions[v] << ", column " << columns[v];
        most = std::max(most, std::abs(got - values[v]));
        largest = std::max(largest, std::abs(values[v]));
      }
    }
  }
  std::cout << GetParam() << ": " << n << " values up to " << largest << ", differences up to "
            << most << "\n";
  EXPECT_GT(largest, 0.5) << "the values are too small to compare";
}

INSTANTIATE_TEST_SUITE_P(, HeadZoo, testing::ValuesIn(kHeads),
                         [](const auto& name) { return name.param; });

TEST(HeadZooFolders, are_all_tested_and_recorded) {
  std::vector<std::string> names;
  for (const auto& each : std::filesystem::directory_iterator(SPECD_TEST_ZOO)) {
    const std::string name = each.path().filename();
    const bool is_model = name == "pico-target" || name == "pico-draft";
    if (name.starts_with("pico-") && !is_model) names.push_back(name.substr(5));
  }
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, kHeads);
  for (const std::string& name : names) {
    EXPECT_TRUE(std::filesystem::exists(recording_path(name))) << recording_path(name);
  }
}

}  // namespace
}  // namespace specd
