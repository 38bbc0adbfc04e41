// Drafting with a head that goes on from its own output: a row pairs a feature with the token after
// it, and gives the next feature. Committed rows have the target's features and stay in the KV; rows
// of a draft have the head's own, and are dropped with the round.
//
//   update:  taps ──net.features──> rows ──net.run──> KV, the last feature of each sequence
//   propose: last feature ──net.logits──> children ──net.run──> features ──net.logits──> ...
//
// Net has, all but the first three [step]:
//   int64_t width();                      // of a feature
//   int64_t columns();                    // of the logits
//   const std::vector<int32_t>& ids();    // the token of each column; empty = the column's number
//   const Kv& kv();
//   void features(const Ops&, const specd_update_args&, const specd_tensor& out);   // [n_rows, width]
//   // After Kv::rows(): features of `queries`, or of all rows, from [n, width] and [n] int32.
//   void run(const Ops&, const specd_batch&, const specd_tensor& feature, const specd_tensor& token,
//            const specd_tensor* queries, const specd_tensor& out);
//   void logits(const Ops&, const specd_batch&, const specd_tensor& feature, const specd_tensor& out);
#ifndef SPECD_SDK_FEATURE_TREE_H
#define SPECD_SDK_FEATURE_TREE_H

#include <specd/sdk/drafter.h>
#include <specd/sdk/kv.h>
#include <specd/sdk/layers.h>
#include <specd/sdk/tree.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

// Properties of a configuration schema, read by FeatureTreeShape::of_config().
#define SPECD_SDK_FEATURE_TREE_SCHEMA                                      \
  R"("mode": {"enum": ["dynamic", "static", "chain"]}, )"                  \
  R"("total_token": {"type": "integer", "minimum": 2, "maximum": 1025}, )" \
  R"("depth": {"type": "integer", "minimum": 1, "maximum": 63}, )"         \
  R"("top_k": {"type": "integer", "minimum": 1, "maximum": 64}, )"         \
  R"("choices": {"type": "array", "minItems": 1, "maxItems": 1024, )"      \
  R"("items": {"type": "array", "minItems": 1, "maxItems": 64, )"          \
  R"("items": {"type": "integer", "minimum": 0, "maximum": 63}}}, )"       \
  R"("draft_tokens": {"type": "integer", "minimum": 1, "maximum": 64}, )"  \
  R"("use_target_noise": {"type": "boolean"})"

namespace specd::sdk {

// What is drafted: a fixed tree, a chain being one, or a tree that grows.
struct FeatureTreeShape {
  std::optional<Choices> choices;  // without: grown
  uint32_t nodes = 0;              // grown: proposed, at most
  uint32_t depth = 0;              // grown: levels
  uint32_t top_k = 1;              // grown: children of a node, and nodes of a level that are run
  bool use_target_noise = true;

  // From the keys of SPECD_SDK_FEATURE_TREE_SCHEMA. fixed: the tree of mode "static" without choices.
  static FeatureTreeShape of_config(const Config& config, const char* default_mode,
                                    const char* fixed) {
    FeatureTreeShape shape;
    const std::string mode = config.string("mode", default_mode);
    const auto refuse = [&](std::initializer_list<const char*> keys) {
      for (const char* key : keys) {
        if (!config.has(key)) continue;
        throw Error(SPECD_E_CONFIG,
                    std::string(key) + ": not a key of mode '" + mode +
                        "'; remove it, or choose the mode that has it: total_token, "
                        "depth and top_k are of dynamic, choices is of static, "
                        "draft_tokens of chain");
      }
    };
    if (mode == "chain") {
      refuse({"total_token", "depth", "top_k", "choices.0"});
      const int64_t n = config.i64("draft_tokens", 4, 1, SPECD_MAX_TREE_DEPTH);
      shape.choices.emplace(
          std::vector<Choices::Path>{Choices::Path(static_cast<std::size_t>(n), 0)}, 1,
          "draft_tokens");
    } else if (mode == "static") {
      refuse({"total_token", "depth", "top_k", "draft_tokens"});
      shape.choices.emplace(config.has("choices.0") ? Choices::of_config(config, "choices")
                                                    : Choices::of_words(fixed),
                            SPECD_MAX_TOP_K, "choices");
    } else if (mode == "dynamic") {
      refuse({"choices.0", "draft_tokens"});
      shape.nodes =
          static_cast<uint32_t>(config.i64("total_token", 60, 2, SPECD_MAX_TREE_NODES + 1)) - 1;
      shape.depth = static_cast<uint32_t>(config.i64("depth", 7, 1, SPECD_MAX_TREE_DEPTH - 1)) + 1;
      shape.top_k = static_cast<uint32_t>(config.i64("top_k", 10, 1, SPECD_MAX_TOP_K));
    } else {
      throw Error(SPECD_E_CONFIG, "mode: '" + mode + "', expected dynamic, static or chain");
    }
    shape.use_target_noise = config.boolean("use_target_noise", true);
    return shape;
  }

  uint32_t levels() const { return choices ? static_cast<uint32_t>(choices->depth()) : depth; }
  uint32_t max_nodes() const {
    return choices ? static_cast<uint32_t>(choices->nodes().size()) : nodes;
  }
  // Children of a row.
  uint32_t width() const { return choices ? static_cast<uint32_t>(choices->width()) : top_k; }
  // Rows of a sequence in one call.
  uint32_t rows() const {
    if (!choices) return top_k;
    uint32_t most = 1;
    for (const std::vector<int32_t>& level : levels_with_children(SPECD_MAX_TREE_NODES)) {
      most = std::max(most, static_cast<uint32_t>(level.size()));
    }
    return most;
  }
  // The nodes of every level that have children among the first `limit` nodes.
  std::vector<std::vector<int32_t>> levels_with_children(std::size_t limit) const {
    std::vector<std::vector<int32_t>> by_depth(static_cast<std::size_t>(choices->depth()));
    const std::vector<Choices::Node>& all = choices->nodes();
    std::vector<bool> has_children(all.size());
    for (std::size_t i = 0; i < std::min(limit, all.size()); ++i) {
      if (all[i].parent >= 0) has_children[static_cast<std::size_t>(all[i].parent)] = true;
    }
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (!has_children[i]) continue;
      by_depth[static_cast<std::size_t>(all[i].depth)].push_back(static_cast<int32_t>(i));
    }
    return by_depth;
  }
};

template <class Net>
class FeatureTree {
 public:
  // Bytes of the buffers for one sequence, without those of the net.
  static uint64_t bytes_per_sequence(const FeatureTreeShape& shape, uint64_t width,
                                     uint64_t columns) {
    const uint64_t rows = shape.rows(), ranks = rows * shape.width();
    return SlotStates::bytes_per_sequence(width) +
           4 * ((shape.levels() + 2) * (width + 1) + rows * (2 * width + 2 * columns + 6) +
                5 * ranks + 3 * (shape.levels() + 1) * ranks + 4 * shape.max_nodes() + 4);
  }
  // For one update() of rows_max rows.
  static uint64_t bytes_fixed(uint64_t width, uint64_t columns, uint64_t rows_max) {
    return SlotStates::bytes_fixed(width) + 4 * (rows_max * (width + 1) + columns);
  }

  // [control & active] `net` must outlive this.
  FeatureTree(const Instance& instance, const specd_drafter_grant& grant, Net& net,
              FeatureTreeShape shape)
      : ops_(instance),
        net_(net),
        shape_(std::move(shape)),
        n_max_(grant.max_batch),
        capacity_(grant.max_nodes),
        rows_max_(static_cast<int64_t>(shape_.rows())),
        width_(static_cast<int64_t>(shape_.width())) {
    const Place place(instance, grant);
    const int64_t width = net.width(), columns = net.columns(), rows = n_max_ * rows_max_;
    states_.emplace(place, n_max_, width);
    incoming_ = Owned::make<float>(place, grant.max_rows, width);
    for (Owned* each : {&feature_, &next_feature_}) *each = Owned::make<float>(place, rows, width);
    logits_ = Owned::make<float>(place, rows, columns);
    if (shape_.use_target_noise) score_ = Owned::make<float>(place, rows, columns);
    if (!net.ids().empty()) {
      id_ = Owned::make<int32_t>(place, columns);
      token_of_rank_ = Owned::make<int32_t>(place, rows, width_);
    }
    rank_ = Owned::make<int32_t>(place, rows, width_);
    for (Owned* each : {&token_, &sequence_, &source_}) *each = Owned::make<int32_t>(place, rows);
    for (Owned* each : {&query_, &query_of_}) *each = Owned::make<int32_t>(place, n_max_);
    if (!shape_.choices) return;
    const int64_t cells = n_max_ * std::min<int64_t>(capacity_, shape_.max_nodes());
    const int64_t listed = net.ids().empty() ? cells : std::max(cells, rows * width_);
    if (listed > Ops::kRowsMax) {
      throw Error(SPECD_E_CONFIG, "choices: " + std::to_string(shape_.max_nodes()) +
                                      " nodes, a level with " + std::to_string(rows_max_) +
                                      " parents of up to " + std::to_string(width_) +
                                      " children, for " + std::to_string(n_max_) +
                                      " sequences; at most " + std::to_string(Ops::kRowsMax) +
                                      " nodes, or with d2t such children, together");
    }
    absent_cell_ = Owned::make<int32_t>(place, cells);
    absent_token_ = Owned::make<int32_t>(place, cells);
    plan(place);
  }

  void begin(const specd_batch& batch) {
    prepare(batch);
    states_->begin(ops_, batch);
  }

  // Feeds the committed rows. Their last feature is where drafts begin.
  void update(const specd_update_args& in) {
    const specd_batch& batch = *in.batch;
    prepare(batch);
    const std::vector<uint32_t> kept = net_.kv().lengths(batch);
    net_.kv().drop_round(batch, kept);
    if (in.n_rows == 0) return;
    rows_.clear(batch.n_seqs);
    std::vector<int32_t> query, query_of(batch.n_seqs, -1);
    for (uint32_t s = 0; s < batch.n_seqs; ++s) {
      const uint32_t n = in.row_offsets[s + 1] - in.row_offsets[s];
      if (n == 0) continue;
      rows_.add(s, n);
      const uint32_t last = in.row_offsets[s + 1] - 1;
      rows_.query(last);
      query_of[s] = static_cast<int32_t>(query.size());
      query.push_back(static_cast<int32_t>(last));
    }
    net_.kv().rows(batch, rows_);
    // The KV of a sequence without room for its rows begins again with the next ones. Its last row
    // attends to nothing, and yet drafts begin there: the feature before is of another position.
    const auto n_queries = static_cast<int64_t>(query.size());
    ops_.put(batch, query, *query_);
    ops_.put(batch, query_of, *query_of_);
    const specd_tensor incoming = incoming_.rows(in.n_rows), queries = query_.rows(n_queries),
                       last = feature_.rows(n_queries), from = query_of_.rows(batch.n_seqs);
    net_.features(ops_, in, incoming);
    net_.run(ops_, batch, incoming, *in.next_token, &queries, last);
    states_->keep(ops_, batch, last, &from);
    net_.kv().keep_all(batch, kept, rows_);
    // Beyond the head's context no later row would be kept either: the sequence goes on plainly.
    for (uint32_t s = 0; s < batch.n_seqs; ++s) {
      if (rows_.status(s) == SPECD_E_UNSUPPORTED) batch.seq_status[s] = SPECD_E_UNSUPPORTED;
    }
  }

  void propose(const specd_propose_args& in) {
    if (shape_.choices) {
      propose_fixed(in);
    } else {
      propose_grown(in);
    }
  }

 private:
  // A level of the fixed tree: where its rows and its nodes come from, for every sequence.
  struct Level {
    std::vector<int32_t> run;     // nodes whose children are at the next level
    std::vector<int32_t> parent;  // of `run`: rows of the round, for Kv::rows()
    Owned feature_from;           // [n_max * run] rows of the level before
    Owned token_from;             // [n_max * run] cells of its ranks
    Owned node_from, node_to;     // [n_max * nodes] the cells of all nodes of the level, and theirs
    std::vector<int32_t> nodes;
    Owned sequence;  // [n_max * run] of each row
  };

  // The tables of indexes, brought by the first call of a step.
  void prepare(const specd_batch& batch) {
    if (is_prepared_) return;
    if (!net_.ids().empty()) {
      std::vector<int32_t> ids = net_.ids();
      ops_.put(batch, ids, *id_);
    }
    std::vector<int32_t> sequence;
    for (int64_t s = 0; s < n_max_; ++s) sequence.push_back(static_cast<int32_t>(s));
    ops_.put(batch, sequence, *sequence_);
    for (std::size_t l = 0; l < levels_.size(); ++l) fill(batch, l);
    is_prepared_ = true;
  }

  // ---- a fixed tree: nothing is read, so a graph can repeat it --------------------------------

  void plan(const Place& place) {
    const auto run = shape_.levels_with_children(static_cast<std::size_t>(capacity_));
    const auto& nodes = shape_.choices->nodes();
    int32_t n_rows = 0;
    std::vector<int32_t> row_of(nodes.size(), -1);
    for (int32_t depth = 0; depth < shape_.choices->depth(); ++depth) {
      Level level;
      for (std::size_t i = 0; i < nodes.size() && i < static_cast<std::size_t>(capacity_); ++i) {
        if (nodes[i].depth == depth) level.nodes.push_back(static_cast<int32_t>(i));
      }
      level.run = run[static_cast<std::size_t>(depth)];
      for (const int32_t i : level.run) {
        const int32_t above = nodes[static_cast<std::size_t>(i)].parent;
        level.parent.push_back(above < 0 ? -1 : row_of[static_cast<std::size_t>(above)]);
        row_of[static_cast<std::size_t>(i)] = n_rows++;
      }
      const auto n_run = n_max_ * static_cast<int64_t>(level.run.size()),
                 n_nodes = n_max_ * static_cast<int64_t>(level.nodes.size());
      level.feature_from = Owned::make<int32_t>(place, n_run);
      level.token_from = Owned::make<int32_t>(place, n_run);
      level.node_from = Owned::make<int32_t>(place, n_nodes);
      level.node_to = Owned::make<int32_t>(place, n_nodes);
      level.sequence = Owned::make<int32_t>(place, n_run);
      levels_.push_back(std::move(level));
    }
  }
  // Rows of a level are by sequence and then by node; so are the rows of its parents.
  void fill(const specd_batch& batch, std::size_t l) {
    const auto& nodes = shape_.choices->nodes();
    const Level& level = levels_[l];
    // The level before: the root alone, or its nodes that were run.
    const std::vector<int32_t> root{-1};
    const std::vector<int32_t>& above = l == 0 ? root : levels_[l - 1].run;
    const auto row_of = [&](int64_t s, int32_t node) {
      const auto at =
          std::find(above.begin(), above.end(), nodes[static_cast<std::size_t>(node)].parent);
      return static_cast<int32_t>(s * static_cast<int64_t>(above.size()) + (at - above.begin()));
    };
    const auto cell_of = [&](int64_t s, int32_t node) {
      return row_of(s, node) * static_cast<int32_t>(width_) +
             nodes[static_cast<std::size_t>(node)].rank;
    };
    std::vector<int32_t> feature_from, token_from, node_from, node_to, sequence;
    for (int64_t s = 0; s < n_max_; ++s) {
      for (const int32_t i : level.run) {
        sequence.push_back(static_cast<int32_t>(s));
        feature_from.push_back(row_of(s, i));
        token_from.push_back(cell_of(s, i));
      }
      for (const int32_t i : level.nodes) {
        node_from.push_back(cell_of(s, i));
        node_to.push_back(static_cast<int32_t>(s * capacity_) + i);
      }
    }
    ops_.put(batch, feature_from, *level.feature_from);
    ops_.put(batch, token_from, *level.token_from);
    ops_.put(batch, node_from, *level.node_from);
    ops_.put(batch, node_to, *level.node_to);
    ops_.put(batch, sequence, *level.sequence);
  }

  void propose_fixed(const specd_propose_args& in) {
    const specd_batch& batch = *in.batch;
    const int64_t n = batch.n_seqs;
    const specd_tensor out = shaped(*in.out->token, n * capacity_, 1);
    states_->gather(ops_, batch, *batch.slots, feature_.rows(n));
    const int32_t budget = *std::max_element(in.host_node_budget, in.host_node_budget + n);
    int64_t n_rows = n;
    rows_failed_.assign(batch.n_seqs, false);
    absent_.clear();
    for (std::size_t l = 0; l < levels_.size(); ++l) {
      if (shape_.choices->first(static_cast<int32_t>(l)) >= budget) break;
      if (l > 0) n_rows = run_level(in, l, n_rows);
      const Level& level = levels_[l];
      const specd_tensor ranks = rank_.rows(n_rows);
      const specd_tensor sequence =
          l == 0 ? sequence_.rows(n) : levels_[l - 1].sequence.rows(n_rows);
      ops_.topk(batch, scores(in, feature_.rows(n_rows), sequence, static_cast<uint32_t>(l) + 1),
                ranks, nullptr);
      const specd_tensor tokens = tokens_of(batch, ranks);
      const auto n_nodes = n * static_cast<int64_t>(level.nodes.size());
      if (n_nodes > 0) {
        const specd_tensor from = level.node_from.rows(n_nodes), to = level.node_to.rows(n_nodes);
        ops_.copy(batch, tokens, &from, out, &to);
      }
    }
    end_drafts(batch, out);
  }
  // Runs the nodes above level l, which are among the children of the n_before rows run last. Returns
  // their number.
  int64_t run_level(const specd_propose_args& in, std::size_t l, int64_t n_before) {
    const specd_batch& batch = *in.batch;
    const Level& above = levels_[l - 1];
    const int64_t n_rows = batch.n_seqs * static_cast<int64_t>(above.run.size());
    const specd_tensor from = above.token_from.rows(n_rows),
                       source = above.feature_from.rows(n_rows);
    const specd_tensor token = token_.rows(n_rows), feature = next_feature_.rows(n_rows);
    ops_.copy(batch, last_tokens(n_before), &from, shaped(token, n_rows, 1));
    ops_.copy(batch, *feature_, &source, feature);
    // Rows of a sequence without room stay in the tensors. They do not fail while a graph is made.
    rows_.clear(batch.n_seqs);
    for (uint32_t s = 0; s < batch.n_seqs; ++s) {
      for (const int32_t parent : above.parent) rows_.add_child(s, rows_failed_[s] ? -1 : parent);
    }
    net_.kv().rows(batch, rows_);
    for (uint32_t s = 0; s < batch.n_seqs; ++s) {
      if (rows_.status(s) != SPECD_OK) end_draft(in, s, l);
    }
    net_.run(ops_, batch, feature, token, nullptr, feature_.rows(n_rows));
    return n_rows;
  }
  // The sequence proposes no node at level l or deeper.
  void end_draft(const specd_propose_args& in, uint32_t s, std::size_t l) {
    if (rows_failed_[s]) return;
    rows_failed_[s] = true;
    const auto& nodes = shape_.choices->nodes();
    const auto n = std::min<std::size_t>(nodes.size(), in.out->node_capacity);
    for (std::size_t i = 0; i < n; ++i) {
      if (static_cast<std::size_t>(nodes[i].depth) < l) continue;
      absent_.push_back(static_cast<int32_t>(s * in.out->node_capacity + i));
    }
  }
  // Writes that these cells have no token: no later node of the sequence is one either.
  void end_drafts(const specd_batch& batch, const specd_tensor& out) {
    if (absent_.empty()) return;
    std::vector<int32_t> none(absent_.size(), SPECD_NO_TOKEN);
    const auto n = static_cast<int64_t>(absent_.size());
    ops_.put(batch, none, *absent_token_);
    ops_.put(batch, absent_, *absent_cell_);
    const specd_tensor cells = absent_cell_.rows(n);
    ops_.copy(batch, shaped(*absent_token_, n, 1), nullptr, out, &cells);
  }

  // ---- a tree that grows: the host chooses ----------------------------------------------------

  struct Growing {
    uint32_t sequence, depth;
    std::size_t budget;
    std::vector<int32_t> run;  // nodes that the head is running; -1 = the root
  };
  // Levels that the text has room for: the step itself adds a token.
  uint32_t depth_of(const specd_propose_args& in, uint32_t s) const {
    const uint64_t left = in.sampling[s]->tokens_left;
    if (in.host_node_budget[s] <= 0 || left == 0) return 0;
    return static_cast<uint32_t>(std::min<uint64_t>(shape_.depth, left - 1));
  }

  void propose_grown(const specd_propose_args& in) {
    const specd_batch& batch = *in.batch;
    const int64_t n = batch.n_seqs;
    const Column<int32_t> token(in.out->token, n, capacity_, "token"),
        parent(in.out->parent, n, capacity_, "parent");
    grown_.resize(std::max(grown_.size(), std::size_t{batch.n_seqs}));
    output_of_.resize(grown_.size());
    rows_failed_.assign(batch.n_seqs, false);
    growing_.clear();
    std::vector<int32_t> sequence;
    for (uint32_t s = 0; s < batch.n_seqs; ++s) {
      grown_[s].clear();
      output_of_[s].clear();
      const uint32_t depth = depth_of(in, s);
      if (depth == 0) continue;
      growing_.push_back({s, depth, static_cast<std::size_t>(in.host_node_budget[s]), {-1}});
      sequence.push_back(static_cast<int32_t>(batch.slot[s]));
    }
    auto n_rows = static_cast<int64_t>(sequence.size());
    if (n_rows > 0) {
      ops_.put(batch, sequence, *source_);
      states_->gather(ops_, batch, source_.rows(n_rows), feature_.rows(n_rows));
    }
    for (uint32_t depth = 1; n_rows > 0; ++depth) {
      take_children(in, n_rows, depth);
      n_rows = run_level(batch, depth);
    }
    for (uint32_t s = 0; s < batch.n_seqs; ++s) {
      Proposal out(in, token, &parent, nullptr, s, in.out->node_capacity);
      grown_[s].propose(out);
    }
  }

  // Adds the likeliest tokens after each row as children of its node.
  void take_children(const specd_propose_args& in, int64_t n_rows, uint32_t depth) {
    std::vector<int32_t> sequence;
    for (const Growing& each : growing_) {
      sequence.insert(sequence.end(), each.run.size(), static_cast<int32_t>(each.sequence));
    }
    const specd_tensor sequences = token_.rows(n_rows);
    if (shape_.use_target_noise) ops_.put(*in.batch, sequence, *token_);
    ranks_.resize(static_cast<std::size_t>(n_rows * width_));
    logprobs_.resize(ranks_.size());
    const specd_tensor ranks = host_view(ranks_, n_rows, width_),
                       logprobs = host_view(logprobs_, n_rows, width_);
    ops_.topk(*in.batch, scores(in, feature_.rows(n_rows), sequences, depth), ranks, &logprobs);
    std::size_t cell = 0;
    for (const Growing& each : growing_) {
      GrownTree& grown = grown_[each.sequence];
      // Rows of a sequence without room stay in the tensors; it proposes what it has.
      const bool failed = rows_failed_[each.sequence];
      for (const int32_t node : each.run) {
        const float above = node < 0 ? 0 : grown.node(node).score;
        for (int64_t i = 0; i < width_; ++i, ++cell) {
          if (failed || ranks_[cell] < 0 || !std::isfinite(logprobs_[cell])) continue;
          grown.add(token_of(ranks_[cell]), node, above + std::min(0.0f, logprobs_[cell]));
        }
      }
    }
  }

  // Runs the likeliest nodes of the last level, for sequences that may grow deeper. Returns the rows.
  int64_t run_level(const specd_batch& batch, uint32_t depth) {
    std::vector<Growing> deeper;
    std::vector<int32_t> token, source;
    rows_.clear(batch.n_seqs);
    int32_t first = 0;  // the sequence's first row in the level before
    for (Growing& each : growing_) {
      GrownTree& grown = grown_[each.sequence];
      std::vector<int32_t>& output_of = output_of_[each.sequence];
      output_of.resize(grown.nodes().size(), -1);
      for (const int32_t node : each.run) {
        if (node >= 0) output_of[static_cast<std::size_t>(node)] = first;
        ++first;
      }
      const int32_t root = first - 1;  // when the root was run, it was alone
      if (depth >= each.depth || rows_failed_[each.sequence]) continue;
      each.run = grown.begin_level(shape_.top_k, each.budget);
      if (each.run.empty()) continue;
      for (const int32_t node : each.run) {
        const GrownTree::Node& run = grown.node(node);
        token.push_back(run.token);
        source.push_back(run.parent < 0 ? root : output_of[static_cast<std::size_t>(run.parent)]);
        rows_.add_child(each.sequence, grown.row_of(run.parent));
      }
      deeper.push_back(std::move(each));
    }
    growing_ = std::move(deeper);
    const auto n_rows = static_cast<int64_t>(token.size());
    rows_failed_.assign(batch.n_seqs, false);
    if (n_rows == 0) return 0;
    net_.kv().rows(batch, rows_);
    for (uint32_t s = 0; s < batch.n_seqs; ++s) rows_failed_[s] = rows_.status(s) != SPECD_OK;
    ops_.put(batch, token, *token_);
    ops_.put(batch, source, *source_);
    const specd_tensor from = source_.rows(n_rows), feature = next_feature_.rows(n_rows);
    ops_.copy(batch, *feature_, &from, feature);
    net_.run(ops_, batch, feature, token_.rows(n_rows), nullptr, feature_.rows(n_rows));
    return n_rows;
  }

  // ---- both -----------------------------------------------------------------------------------

  int32_t token_of(int32_t column) const {
    return net_.ids().empty() ? column : net_.ids()[static_cast<std::size_t>(column)];
  }
  // The tokens of ranks, as one column.
  specd_tensor tokens_of(const specd_batch& batch, const specd_tensor& ranks) const {
    const specd_tensor tokens = last_tokens(ranks.shape[0]);
    if (net_.ids().empty()) return tokens;
    const specd_tensor columns = shaped(ranks, tokens.shape[0]);
    ops_.copy(batch, shaped(*id_, net_.columns(), 1), &columns, tokens);
    return tokens;
  }
  // What tokens_of() returned last, for n_rows rows.
  specd_tensor last_tokens(int64_t n_rows) const {
    const Owned& from = net_.ids().empty() ? rank_ : token_of_rank_;
    return shaped(from.rows(n_rows), n_rows * width_, 1);
  }
  // What the children of rows are ranked by: the logits or, with the target's noise, what the
  // target's draw would take the largest of, `depth` tokens behind the root.
  specd_tensor scores(const specd_propose_args& in, const specd_tensor& feature,
                      const specd_tensor& sequence, uint32_t depth) const {
    const specd_batch& batch = *in.batch;
    const specd_tensor logits = logits_.rows(feature.shape[0]);
    net_.logits(ops_, batch, feature, logits);
    if (!shape_.use_target_noise) return logits;
    const specd_tensor out = score_.rows(feature.shape[0]);
    ops_.target_scores(in, logits, sequence, depth, net_.ids().empty() ? nullptr : &*id_, out);
    return out;
  }

  const Ops ops_;
  Net& net_;
  const FeatureTreeShape shape_;
  const int64_t n_max_, capacity_;
  const int64_t rows_max_, width_;  // rows of a sequence in a call, children of a row
  bool is_prepared_ = false;
  std::optional<SlotStates> states_;
  Owned incoming_, feature_, next_feature_, logits_, score_, id_, rank_, token_of_rank_, token_,
      sequence_, source_, query_, query_of_;
  std::vector<Level> levels_;
  std::vector<int32_t> absent_;  // cells of nodes that a failed sequence does not propose
  Owned absent_cell_, absent_token_;
  KvRows rows_;
  // Of the tree that grows, by sequence of the batch:
  std::vector<GrownTree> grown_;
  std::vector<std::vector<int32_t>> output_of_;  // by node: its row in the last level
  std::vector<bool> rows_failed_;
  std::vector<Growing> growing_;
  std::vector<int32_t> ranks_;
  std::vector<float> logprobs_;
};

// A drafter that is such a head and nothing else. Derive from it, with a kSchema that has "weights",
// "max_positions" and SPECD_SDK_FEATURE_TREE_SCHEMA. `Net` as above, and
//   Net(const Instance&, const specd_drafter_grant&, const Weights&, const Layout&,
//       int64_t rows_max, int64_t attending_max);  // rows of a call, and of those that attend
//   static uint64_t bytes(const Layout&, int64_t rows_max, int64_t attending_max);
// Layout has
//   Layout(Weights&, const specd_target_info&, const Config&);  // checks the files
//   std::vector<uint32_t> taps; int64_t width() const, columns() const; int64_t positions_max;
template <class Layout, class Net>
class FeatureDrafter : public Drafter {
 public:
  static void describe(const Context& context, specd_drafter_caps& caps) {
    static const char* const kServices[] = {SPECD_SERVICE_MEMORY, SPECD_SERVICE_OPS,
                                            SPECD_SERVICE_WEIGHTS, SPECD_SERVICE_TARGET,
                                            SPECD_SERVICE_KV};
    const Parts parts(context);
    const Layout& layout = parts.layout;
    const auto width = static_cast<uint64_t>(layout.width()),
               columns = static_cast<uint64_t>(layout.columns());
    caps.max_nodes = parts.shape.max_nodes();
    caps.max_depth = parts.shape.levels();
    caps.tree_mode = !parts.shape.choices               ? SPECD_TREE_VARIABLE
                     : caps.max_nodes == caps.max_depth ? SPECD_TREE_CHAIN
                                                        : SPECD_TREE_STATIC;
    caps.needs |= SPECD_NEED_HIDDEN;
    caps.n_taps = static_cast<uint32_t>(layout.taps.size());
    std::copy(layout.taps.begin(), layout.taps.end(), caps.taps);
    caps.rows_max = kRowsMax;
    caps.attach_modes = SPECD_ATTACH_FRESH | SPECD_ATTACH_COLD;  // then it drafts worse for a while
    caps.device_types |= 1u << SPECD_DEV_CUDA;
    if (parts.shape.choices) caps.features = SPECD_FEATURE_CAPTURE;
    caps.services = kServices;
    caps.n_services = 5;
    const int64_t decoded = std::max<int64_t>(parts.shape.levels() + 1, parts.shape.rows());
    caps.bytes_fixed = parts.weights.bytes() + Net::bytes(layout, kRowsMax, 0) +
                       FeatureTree<Net>::bytes_fixed(width, columns, kRowsMax);
    caps.bytes_per_seq = Net::bytes(layout, decoded, decoded) +
                         FeatureTree<Net>::bytes_per_sequence(parts.shape, width, columns);
  }

  explicit FeatureDrafter(const Context& context) : Drafter(context), parts_(context) {}

  void activated() {
    const auto n_max = static_cast<int64_t>(grant().max_batch);
    const int64_t decoded = n_max * static_cast<int64_t>(parts_.shape.rows()),
                  rows = std::max<int64_t>(grant().max_rows, decoded);
    net_.emplace(*this, grant(), parts_.weights, parts_.layout, rows, std::max(decoded, n_max));
    tree_.emplace(*this, grant(), *net_, parts_.shape);
  }
  void deactivated() noexcept {
    tree_.reset();
    net_.reset();
  }

  struct Sequence {  // its rows are in the KV, its last feature in the tree, by slot
    explicit Sequence(FeatureDrafter&) {}
  };
  void begin(Sequence&, const Begin&) {}
  void begin_tensors(const specd_begin_args& in) { tree_->begin(*in.batch); }
  void update_tensors(const specd_update_args& in) { tree_->update(in); }
  void propose_tensors(const specd_propose_args& in) { tree_->propose(in); }
  std::vector<int32_t> static_tree() { return parts_.shape.choices->parents(grant().max_nodes); }

 protected:
  ~FeatureDrafter() = default;
  const Layout& layout() const { return parts_.layout; }

 private:
  static constexpr uint32_t kRowsMax = 512;  // of one update(); a longer prompt comes in several
  // SafeAILab/EAGLE, model/choices.py: mc_sim_7b_63.
  static constexpr const char* kFixedTree =
      "0 1 2 3 00 01 02 10 11 20 21 30 000 001 002 010 011 020 021 100 0000 0001 0002 00000 00001";

  // What the configuration and the files say, checked.
  struct Parts {
    explicit Parts(const Context& context)
        : weights(context, "weights"),
          layout(weights, *context.target, context.config),
          shape(FeatureTreeShape::of_config(context.config, "dynamic", kFixedTree)) {
      layout.positions_max =
          context.config.i64("max_positions", layout.positions_max, 1, int64_t{1} << 28);
      if (static_cast<int64_t>(shape.width()) > layout.columns()) {
        throw Error(SPECD_E_CONFIG, std::string(shape.choices ? "choices" : "top_k") + ": " +
                                        std::to_string(shape.width()) +
                                        " children of a node, the head knows " +
                                        std::to_string(layout.columns()) + " tokens");
      }
    }
    Weights weights;
    Layout layout;
    FeatureTreeShape shape;
  };

  Parts parts_;
  std::optional<Net> net_;
  std::optional<FeatureTree<Net>> tree_;
};

}  // namespace specd::sdk

#endif
