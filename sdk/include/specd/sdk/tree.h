// Trees of guesses: a fixed tree from a list of choices, one that grows level by level and keeps the
// most likely nodes, and beams merged where they begin alike.
#ifndef SPECD_SDK_TREE_H
#define SPECD_SDK_TREE_H

#include <specd/sdk/drafter.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace specd::sdk {

// A fixed tree. A choice is a path of ranks: [1, 0] is the best child of the second best child of
// the root. Node i comes after its parent.
class Choices {
 public:
  using Path = std::vector<int32_t>;
  struct Node {
    int32_t parent;  // node, -1 = the root
    int32_t depth;   // 0 below the root
    int32_t rank;    // among its siblings by likelihood, 0 = the best
  };

  // Either every prefix of a path is in the list, or none is and they are implied. Paths are in
  // order of importance: with a smaller budget the first ones are proposed. `what` names the list in
  // errors, which are SPECD_E_CONFIG.
  Choices(std::vector<Path> paths, int32_t rank_end, const std::string& what) {
    const auto fail = [&](const Path& path, const std::string& why) {
      throw Error(SPECD_E_CONFIG, what + ": " + text_of(path) + " " + why);
    };
    std::map<Path, int32_t> given;
    for (const Path& path : paths) {
      if (path.empty() || path.size() > SPECD_MAX_TREE_DEPTH) {
        fail(path, "has " + std::to_string(path.size()) + " levels, expected 1 to " +
                       std::to_string(SPECD_MAX_TREE_DEPTH));
      }
      for (const int32_t rank : path) {
        if (rank < 0 || rank >= rank_end) {
          fail(path, "has rank " + std::to_string(rank) + ", expected 0 to " +
                         std::to_string(rank_end - 1));
        }
      }
      if (!given.emplace(path, 0).second) fail(path, "is there twice");
    }
    const bool is_closed = std::any_of(paths.begin(), paths.end(), [&](const Path& path) {
      return path.size() > 1 && given.count(Path(path.begin(), path.end() - 1)) > 0;
    });
    for (const Path& path : paths) {
      const Path above(path.begin(), path.end() - 1);
      if (is_closed && !above.empty() && given.count(above) == 0) {
        fail(path, "is there without " + text_of(above));
      }
    }
    // Parents first, otherwise in the given order.
    std::map<Path, int32_t> number;
    for (const Path& path : paths) {
      int32_t parent = -1;
      for (std::size_t n = 1; n <= path.size(); ++n) {
        const Path prefix(path.begin(), path.begin() + static_cast<std::ptrdiff_t>(n));
        const auto [at, is_new] = number.emplace(prefix, static_cast<int32_t>(nodes_.size()));
        if (is_new) nodes_.push_back({parent, static_cast<int32_t>(n) - 1, prefix.back()});
        parent = at->second;
      }
    }
    if (nodes_.empty() || nodes_.size() > SPECD_MAX_TREE_NODES) {
      throw Error(SPECD_E_CONFIG, what + ": " + std::to_string(nodes_.size()) +
                                      " nodes, expected 1 to " +
                                      std::to_string(SPECD_MAX_TREE_NODES));
    }
  }
  // "0 00 1 01": a path per word, a rank per digit.
  static std::vector<Path> of_words(const std::string& words) {
    std::vector<Path> paths(1);
    for (const char c : words) {
      if (c == ' ') {
        paths.emplace_back();
      } else {
        paths.back().push_back(c - '0');
      }
    }
    return paths;
  }
  // The list of lists at `key`.
  static std::vector<Path> of_config(const Config& config, const std::string& key) {
    std::vector<Path> paths;
    for (std::size_t i = 0;; ++i) {
      const std::string path_key = key + "." + std::to_string(i);
      Path path;
      while (true) {
        const std::string rank_key = path_key + "." + std::to_string(path.size());
        if (path.size() > SPECD_MAX_TREE_DEPTH || !config.has(rank_key.c_str())) break;
        path.push_back(static_cast<int32_t>(config.i64(rank_key.c_str(), 0, INT32_MIN, INT32_MAX)));
      }
      if (path.empty() && !config.has(path_key.c_str())) return paths;
      paths.push_back(std::move(path));
    }
  }

  const std::vector<Node>& nodes() const { return nodes_; }
  std::vector<int32_t> parents(std::size_t n) const {
    std::vector<int32_t> parent;
    for (std::size_t i = 0; i < std::min(n, nodes_.size()); ++i) parent.push_back(nodes_[i].parent);
    return parent;
  }
  int32_t depth() const {
    int32_t depth = 0;
    for (const Node& node : nodes_) depth = std::max(depth, node.depth + 1);
    return depth;
  }
  // The first node at this depth or deeper; a budget that ends before it needs no such depth.
  int32_t first(int32_t depth) const {
    const auto found = std::find_if(nodes_.begin(), nodes_.end(),
                                    [&](const Node& node) { return node.depth >= depth; });
    return static_cast<int32_t>(found - nodes_.begin());
  }
  // Ranks are below this.
  int32_t width() const {
    int32_t width = 0;
    for (const Node& node : nodes_) width = std::max(width, node.rank + 1);
    return width;
  }

 private:
  static std::string text_of(const Path& path) {
    std::string text = "[";
    for (std::size_t i = 0; i < path.size(); ++i) {
      text += (i == 0 ? "" : ", ") + std::to_string(path[i]);
    }
    return text + "]";
  }
  std::vector<Node> nodes_;
};

// The tree grown for one sequence in a step: the most likely nodes of each level are run, each adds
// its most likely children, and the most likely nodes overall are proposed.
class GrownTree {
 public:
  struct Node {
    int32_t token;
    int32_t parent;    // node, -1 = the root
    float score;       // log of the product of the probabilities down to this node
    int32_t row = -1;  // row in the round of whatever runs the nodes
  };

  void clear() {
    nodes_.clear();
    level_ = 0;
    n_rows_ = 0;
  }
  const std::vector<Node>& nodes() const { return nodes_; }
  const Node& node(int32_t i) const { return nodes_[static_cast<std::size_t>(i)]; }

  void add(int32_t token, int32_t parent, float score) { nodes_.push_back({token, parent, score}); }

  // Returns the nodes of the last level to run, most likely first: at most `branches`,
  // without those that `budget` - 1 others beat already, whose children cannot be proposed.
  std::vector<int32_t> begin_level(uint32_t branches, std::size_t budget) {
    std::vector<int32_t> chosen = best(budget - 1);
    const auto level = static_cast<int32_t>(level_);
    chosen.erase(std::remove_if(chosen.begin(), chosen.end(), [&](int32_t i) { return i < level; }),
                 chosen.end());
    if (chosen.size() > branches) chosen.resize(branches);
    level_ = nodes_.size();
    for (const int32_t i : chosen) nodes_[static_cast<std::size_t>(i)].row = n_rows_++;
    return chosen;
  }
  int32_t row_of(int32_t node_index) const { return node_index < 0 ? -1 : node(node_index).row; }

  // Returns the `n` most likely nodes in decreasing order, ties by age, oldest first. These form
  // whole paths, because no node is more likely than its parent.
  std::vector<int32_t> best(std::size_t n) const {
    std::vector<int32_t> order(nodes_.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
    const auto likelier = [&](int32_t a, int32_t b) {
      const float x = node(a).score, y = node(b).score;
      return x != y ? x > y : a < b;
    };
    n = std::min(n, order.size());
    std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(n), order.end(),
                      likelier);
    order.resize(n);
    return order;
  }

  // Depth first, most likely child first: when the most likely path is accepted, its KV is already
  // in place.
  void propose(Proposal& out) const {
    const std::vector<int32_t> chosen = best(static_cast<std::size_t>(out.budget()));
    // children of node i are at i + 1
    std::vector<std::vector<int32_t>> children(nodes_.size() + 1);
    for (const int32_t i : chosen) {
      children[static_cast<std::size_t>(node(i).parent + 1)].push_back(i);
    }
    struct Next {
      int32_t node, parent;
    };
    std::vector<Next> stack;
    const auto descend = [&](int32_t above, int32_t parent) {
      const std::vector<int32_t>& below = children[static_cast<std::size_t>(above + 1)];
      for (auto i = below.rbegin(); i != below.rend(); ++i) stack.push_back({*i, parent});
    };
    descend(-1, -1);
    while (!stack.empty()) {
      const Next next = stack.back();
      stack.pop_back();
      descend(next.node, out.push(node(next.node).token, next.parent));
    }
  }

 private:
  std::vector<Node> nodes_;
  std::size_t level_ = 0;  // first node of the last level
  int32_t n_rows_ = 0;
};

// Proposes beams, the best one first: tokens that several beams begin with are one node.
inline void propose_beams(const std::vector<std::vector<int32_t>>& beams, Proposal& out) {
  std::map<std::pair<int32_t, int32_t>, int32_t> node_of;  // by parent and token
  for (const std::vector<int32_t>& beam : beams) {
    int32_t parent = -1;
    for (const int32_t token : beam) {
      const auto known = node_of.find({parent, token});
      const int32_t node = known != node_of.end() ? known->second : out.push(token, parent);
      if (node < 0) break;  // beyond the budget
      node_of.emplace(std::pair(parent, token), node);
      parent = node;
    }
  }
}

}  // namespace specd::sdk

#endif
