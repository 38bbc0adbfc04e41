#include "core/step/draft_law.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/base/to_size.h"
#include "core/services/arguments.h"

namespace specd {
namespace {

// Of the logarithm of a sum that should be 1.
constexpr float kTolerance = 1e-3f;

std::string tensors_fault(const specd_tensor& q, const specd_tensor& q_lse, int32_t vocab_size) {
  std::string fault = tensor_fault("q", &q, SPECD_DT_FLOAT, 2);
  if (fault.empty()) fault = tensor_fault("q_lse", &q_lse, SPECD_DT_FLOAT, 1);
  if (!fault.empty()) return fault;
  if (q.shape[1] != vocab_size || q.stride[0] > INT32_MAX || q_lse.stride[0] != 1 ||
      q_lse.shape[0] < q.shape[0]) {
    return "q is [" + std::to_string(q.shape[0]) + ", " + std::to_string(q.shape[1]) +
           "], expected [.., vocab_size " + std::to_string(vocab_size) +
           "] with dense rows; q_lse has " + std::to_string(q_lse.shape[0]) +
           " entries, expected at least " + std::to_string(q.shape[0]) + " without gaps";
  }
  return std::string();
}

}  // namespace

QCheck check_q(CpuDevice& host, const specd_tensor& q, const specd_tensor& q_lse,
               const DraftTree& tree, const int32_t* q_row, bool is_no_replace,
               int32_t vocab_size) {
  const auto n = static_cast<size_t>(tree.size());
  if (n == 0) return {};
  if (std::string fault = tensors_fault(q, q_lse, vocab_size); !fault.empty()) return {0, fault};
  const auto* rows = static_cast<const float*>(q.data);
  const auto* lse = static_cast<const float*>(q_lse.data);
  // Nodes before the first one without a row, and of each row the first that is drawn from it.
  size_t n_there = 0;
  std::vector<int32_t> row_of, row, first;
  for (; n_there < n; ++n_there) {
    const int32_t each = q_row[to_size(tree.parent[n_there] + 1)];
    if (each < 0 || each >= q.shape[0]) break;
    row_of.push_back(each);
    if (std::find(row.begin(), row.end(), each) != row.end()) continue;
    row.push_back(each);
    first.push_back(tree.token[n_there]);
  }
  // The logarithm of that node's part of the row. Adjacent rows are summed together.
  std::vector<float> part(row.size());
  for (size_t begin = 0, end = 0; begin < row.size(); begin = end) {
    for (end = begin + 1; end < row.size() && row[end] == row[end - 1] + 1;) ++end;
    host.ops().log_prob(host.stream(), {.logits = rows + row[begin] * q.stride[0],
                                        .token = first.data() + begin,
                                        .out = part.data() + begin,
                                        .n_rows = static_cast<int32_t>(end - begin),
                                        .vocab = vocab_size,
                                        .logits_stride = static_cast<int32_t>(q.stride[0])});
  }
  const auto value = [&](int32_t of_row, int32_t token) {
    return rows[of_row * q.stride[0] + token];
  };
  for (size_t node = 0; node < n_there; ++node) {
    const auto bad = [&](const std::string& why) {
      return QCheck{static_cast<int32_t>(node), "node " + std::to_string(node) + why};
    };
    const std::string of_q = ", by row " + std::to_string(row_of[node]) + " of q";
    if (value(row_of[node], tree.token[node]) == -HUGE_VALF) {
      return bad(" has token " + std::to_string(tree.token[node]) + ", which could not be drawn" +
                 of_q);
    }
    const auto k =
        static_cast<size_t>(std::find(row.begin(), row.end(), row_of[node]) - row.begin());
    const float sum = value(row[k], first[k]) - part[k];
    if (!(std::fabs(sum - lse[row[k]]) <= kTolerance)) {
      return bad(" is drawn from no distribution: the logarithm of the sum is " +
                 std::to_string(sum) + ", q_lse is " + std::to_string(lse[row[k]]) + of_q);
    }
    for (size_t elder = 0; is_no_replace && elder < node; ++elder) {
      if (tree.parent[elder] == tree.parent[node] && tree.token[elder] == tree.token[node]) {
        return bad(" has the token of its sibling " + std::to_string(elder) +
                   ", drawn without replacement");
      }
    }
  }
  if (n_there == n) return {static_cast<int32_t>(n), ""};
  return {static_cast<int32_t>(n_there),
          "node " + std::to_string(n_there) + " is drawn from row " +
              std::to_string(q_row[to_size(tree.parent[n_there] + 1)]) + " of q, which has " +
              std::to_string(q.shape[0])};
}

}  // namespace specd
