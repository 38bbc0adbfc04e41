#include "core/step/draft_law.h"

#include <cmath>
#include <vector>

#include "core/base/to_size.h"
#include "core/services/arguments.h"

namespace specd {
namespace {

// Of the logarithm of a sum that should be 1.
constexpr float kTolerance = 1e-3f;

std::string node_name(size_t child) { return "node " + std::to_string(child); }

std::string tensors_fault(const specd_tensor& q, const specd_tensor& q_lse, int32_t vocab_size) {
  std::string fault = tensor_fault("q", &q, SPECD_DT_FLOAT, 2);
  if (fault.empty()) fault = tensor_fault("q_lse", &q_lse, SPECD_DT_FLOAT, 1);
  if (!fault.empty()) return fault;
  if (q.shape[1] != vocab_size || q.stride[1] != 1 || q.stride[0] > INT32_MAX ||
      q_lse.stride[0] != 1 || q_lse.shape[0] < q.shape[0]) {
    return "q is [" + std::to_string(q.shape[0]) + ", " + std::to_string(q.shape[1]) +
           "], expected [.., vocab_size " + std::to_string(vocab_size) +
           "] with dense rows, and q_lse at least as long";
  }
  return std::string();
}

}  // namespace

std::string q_fault(CpuDevice& host, const specd_tensor& q, const specd_tensor& q_lse,
                    const DraftTree& tree, bool is_no_replace, int32_t vocab_size) {
  const size_t n = tree.token.size();
  if (n == 0) return std::string();
  std::string fault = tensors_fault(q, q_lse, vocab_size);
  if (!fault.empty()) return fault;
  const auto* rows = static_cast<const float*>(q.data);
  const auto* lse = static_cast<const float*>(q_lse.data);
  std::vector<int32_t> row_of(n);
  for (size_t child = 0; child < n; ++child) {
    row_of[child] = tree.q_row[to_size(tree.parent[child] + 1)];
    if (row_of[child] < 0 || row_of[child] >= q.shape[0]) {
      return node_name(child) + " is drawn from row " + std::to_string(row_of[child]) +
             " of q, which has " + std::to_string(q.shape[0]);
    }
    for (size_t elder = 0; is_no_replace && elder < child; ++elder) {
      if (tree.parent[elder] == tree.parent[child] && tree.token[elder] == tree.token[child]) {
        return node_name(child) + " has the token of its sibling " + std::to_string(elder) +
               ", drawn without replacement";
      }
    }
  }
  // The logarithm of each child's part of its row. Adjacent rows are summed together.
  std::vector<float> part(n);
  for (size_t first = 0, end = 0; first < n; first = end) {
    for (end = first + 1; end < n && row_of[end] == row_of[end - 1] + 1;) ++end;
    host.ops().log_prob(host.stream(), {.logits = rows + row_of[first] * q.stride[0],
                                        .token = tree.token.data() + first,
                                        .out = part.data() + first,
                                        .n_rows = static_cast<int32_t>(end - first),
                                        .vocab = vocab_size,
                                        .logits_stride = static_cast<int32_t>(q.stride[0])});
  }
  for (size_t child = 0; child < n; ++child) {
    const float log_q = rows[row_of[child] * q.stride[0] + tree.token[child]];
    const float expected = log_q - lse[row_of[child]];
    const std::string of_q = ", by row " + std::to_string(row_of[child]) + " of q";
    if (log_q == -HUGE_VALF) {
      return node_name(child) + " has token " + std::to_string(tree.token[child]) +
             ", which could not be drawn" + of_q;
    }
    if (!(std::fabs(part[child] - expected) <= kTolerance)) {
      return node_name(child) + " is drawn from no distribution: the logarithm of the sum is " +
             std::to_string(log_q - part[child]) + ", q_lse is " +
             std::to_string(lse[row_of[child]]) + of_q;
    }
  }
  return std::string();
}

}  // namespace specd
