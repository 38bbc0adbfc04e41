// The service kv/1 for unit tests: K and V of every row in plain vectors, attention over one
// ancestor after the other. See fake_host.h.
#ifndef SPECD_SDK_FAKE_KV_H
#define SPECD_SDK_FAKE_KV_H

#include <specd/plugin_api/services/kv.h>
#include <specd/sdk/fake_tensor.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace specd::sdk {

// One specd_kv.
class FakeKv {
 public:
  // The batch of a call.
  struct Batch {
    uint64_t serial;  // of the call
    const uint64_t* seq_id;
    uint32_t n_seqs;
  };

  explicit FakeKv(const specd_kv_open_args& a) : args_(a) {
    if (a.inv_freq != nullptr) inv_freq_.assign(a.inv_freq, a.inv_freq + a.head_dim / 2);
  }

  // ---- the functions of specd_kv_api

  static std::string open_fault(const specd_kv_open_args* a) {
    FakeCheck check;
    check.expect(a != nullptr && a->struct_size == sizeof *a, "struct_size");
    check.expect(!check.ok() || (a->n_layers >= 1 && a->n_kv_heads >= 1 && a->positions_max >= 1),
                 "n_layers, n_kv_heads or positions_max is 0");
    check.expect(!check.ok() || (a->head_dim >= 16 && a->head_dim <= 256 && a->head_dim % 16 == 0),
                 "head_dim is not a multiple of 16, at most 256");
    check.expect(!check.ok() || (a->rows_max >= 1 && a->rows_max <= FakeCheck::kRowsMax),
                 "rows_max is not in 1 to 65535");
    check.expect(!check.ok() || std::isfinite(a->rope_scale), "rope_scale is not finite");
    for (uint32_t i = 0; check.ok() && a->inv_freq != nullptr && i < a->head_dim / 2; ++i) {
      check.expect(std::isfinite(a->inv_freq[i]), "inv_freq is not finite");
    }
    return check.fault();
  }
  uint64_t charged_bytes() const { return uint64_t{args_.rows_max} * args_.head_dim * 4; }

  FakeResult length(const Batch& batch, uint32_t* out) const {
    for (uint32_t s = 0; s < batch.n_seqs; ++s) out[s] = kept(batch.seq_id[s]);
    return SPECD_OK;
  }

  // `fails`: the status of sequences that fail.
  FakeResult rows(const Batch& batch, const specd_kv_rows_args* a,
                  const std::map<uint64_t, specd_status>& fails) {
    const std::string fault = rows_fault(batch, a);
    if (!fault.empty()) return fault;
    std::string violation;
    places_.clear();
    for (uint32_t s = 0; s < batch.n_seqs; ++s) {
      const uint32_t begin = a->row_offsets[s], end = a->row_offsets[s + 1];
      a->seq_status[s] = SPECD_OK;
      if (begin == end) continue;
      const uint64_t id = batch.seq_id[s];
      Session& session = sessions_[id];
      const std::size_t before = session.round.size();
      const auto fail = fails.find(id);
      if (fail != fails.end()) a->seq_status[s] = fail->second;
      for (uint32_t r = begin; r < end && a->seq_status[s] == SPECD_OK; ++r) {
        const auto row = static_cast<int32_t>(session.round.size());
        const int32_t parent = a->parent == nullptr ? row - 1 : a->parent[r];
        a->seq_status[s] = add(session, parent);
        places_.push_back({true, id, row, row});
        if (a->seq_status[s] != SPECD_E_INVALID) continue;
        violation =
            "the parent of row " + std::to_string(r) +
            " is not an earlier row of its round, or too many rows follow a branch or are in "
            "the round";
      }
      const bool is_block = (a->flags & SPECD_KV_BLOCK) != 0;
      for (uint32_t r = begin; r < places_.size() && is_block; ++r) {
        places_[r].last = places_.back().row;
      }
      if (a->seq_status[s] == SPECD_OK) continue;
      session.round.resize(before);
      places_.resize(begin);
      places_.resize(end);  // rows that are nobody's
      if (session.kept.empty() && session.round.empty()) sessions_.erase(id);
    }
    queries_.clear();
    if (a->n_queries > 0) queries_.assign(a->query_rows, a->query_rows + a->n_queries);
    serial_ = batch.serial;
    return {SPECD_OK, violation};
  }

  FakeResult append(const Batch& batch, const specd_kv_append_args* a) {
    FakeCheck check;
    check.expect(a != nullptr && a->struct_size == sizeof *a, "struct_size");
    if (!check.ok()) return check.fault();
    if (serial_ != batch.serial) return {SPECD_E_PRECONDITION, kRowsFirst};
    const int64_t dim = args_.head_dim, heads = a->n_heads, groups = args_.n_kv_heads;
    check.expect(a->layer < args_.n_layers, "no such layer");
    check.expect((a->q_norm == nullptr) == (a->k_norm == nullptr), "q_norm and k_norm go together");
    check.expect(a->norm_eps >= 0 && a->norm_eps <= 1, "norm_eps is not in 0 to 1");
    check.floats("qkv", a->qkv, static_cast<int64_t>(places_.size()), (heads + 2 * groups) * dim);
    if (a->q_norm != nullptr) check.floats("q_norm", a->q_norm, dim);
    if (a->k_norm != nullptr) check.floats("k_norm", a->k_norm, dim);
    for (std::size_t r = 0; r < places_.size() && check.ok(); ++r) {
      if (!places_[r].is_there) continue;
      Row& row = round_row(places_[r]);
      float* const qkv = &fake_cell<float>(a->qkv, static_cast<int64_t>(r));
      for (int64_t h = 0; h < heads + groups; ++h) {
        const specd_tensor* norm = h < heads ? a->q_norm : a->k_norm;
        if (norm != nullptr) normalize(qkv + h * dim, norm, a->norm_eps);
        rotate(qkv + h * dim, row.position);
      }
      const float *k = qkv + heads * dim, *v = k + groups * dim;
      row.k[a->layer].assign(k, v);
      row.v[a->layer].assign(v, v + groups * dim);
    }
    return check.fault();
  }

  FakeResult attend(const Batch& batch, const specd_kv_attend_args* a) const {
    FakeCheck check;
    check.expect(a != nullptr && a->struct_size == sizeof *a, "struct_size");
    if (!check.ok()) return check.fault();
    if (serial_ != batch.serial) return {SPECD_E_PRECONDITION, kRowsFirst};
    const int64_t dim = args_.head_dim, heads = a->n_heads, groups = args_.n_kv_heads;
    check.expect(a->layer < args_.n_layers, "no such layer");
    check.expect(heads >= 1 && heads % groups == 0, "n_heads is not a multiple of n_kv_heads");
    check.expect(a->queries <= SPECD_ATTEND_QUERIES, "queries is not SPECD_ATTEND_*");
    check.expect(std::isfinite(a->scale), "scale is not finite");
    std::vector<Place> places = places_;
    if (a->queries == SPECD_ATTEND_QUERIES) {
      places.clear();
      for (const uint32_t row : queries_) places.push_back(places_[row]);
    }
    const auto n = static_cast<int64_t>(places.size());
    check.floats("qkv", a->qkv, n, (heads + 2 * groups) * dim);
    check.floats("out", a->out, n, heads * dim);
    check.apart(a->qkv, a->out, "qkv and out");
    for (int64_t r = 0; r < n && check.ok(); ++r) {
      const std::vector<const Row*> seen = seen_by(places[static_cast<std::size_t>(r)], a->window);
      for (const Row* row : seen) {
        check.expect(!row->k[a->layer].empty(), "a row without append() in this layer is seen");
      }
      for (int64_t h = 0; h < heads && check.ok(); ++h) {
        attend_head(seen, a->layer, h / (heads / groups) * dim, a->scale,
                    &fake_cell<float>(a->qkv, r, h * dim), &fake_cell<float>(a->out, r, h * dim));
      }
    }
    return check.fault();
  }

  FakeResult keep(const Batch& batch, const uint32_t* kept, const uint32_t* row_offsets,
                  const uint32_t* rows) {
    const auto path_of = [&](uint32_t s) {
      std::vector<uint32_t> path;
      if (row_offsets == nullptr) return path;
      for (uint32_t i = row_offsets[s]; i < row_offsets[s + 1]; ++i) path.push_back(rows[i]);
      return path;
    };
    if (kept == nullptr) return std::string("kept is null");
    if (row_offsets != nullptr) {
      const std::string fault = offsets_fault(row_offsets, batch.n_seqs, row_offsets[batch.n_seqs]);
      if (!fault.empty()) return fault;
      if (row_offsets[batch.n_seqs] > 0 && rows == nullptr) return std::string("rows is null");
    }
    for (uint32_t s = 0; s < batch.n_seqs; ++s) {
      const auto found = sessions_.find(batch.seq_id[s]);
      const Session session = found == sessions_.end() ? Session() : found->second;
      const std::vector<uint32_t> path = path_of(s);
      if (path.empty() ? kept[s] > session.kept.size() : kept[s] != session.kept.size()) {
        return std::string("kept is not what the session holds");
      }
      int32_t previous = -1;
      for (const uint32_t row : path) {
        if (row >= session.round.size() || session.round[row].parent != previous) {
          return std::string("rows are not a path from the last kept row");
        }
        previous = static_cast<int32_t>(row);
      }
    }
    for (uint32_t s = 0; s < batch.n_seqs; ++s) {
      const auto found = sessions_.find(batch.seq_id[s]);
      if (found == sessions_.end()) continue;
      Session& session = found->second;
      session.kept.resize(kept[s]);
      for (const uint32_t row : path_of(s)) session.kept.push_back(session.round[row]);
      session.round.clear();
    }
    serial_ = 0;  // the rows of the call are gone
    return SPECD_OK;
  }

  // ---- sessions

  uint32_t kept(uint64_t seq_id) const {
    const auto found = sessions_.find(seq_id);
    return found == sessions_.end() ? 0 : static_cast<uint32_t>(found->second.kept.size());
  }
  bool holds_rows() const {
    return std::any_of(sessions_.begin(), sessions_.end(), [](const auto& each) {
      return !each.second.kept.empty() || !each.second.round.empty();
    });
  }
  // The sequence has ended, or its pages are reclaimed.
  void drop(uint64_t seq_id) {
    if (sessions_.erase(seq_id) > 0) serial_ = 0;
  }

 private:
  static constexpr const char* kRowsFirst = "rows() comes first, in the same call to the plugin";
  static constexpr int32_t kTailMax = 1024;  // rows between the last kept row and a branch

  struct Row {
    int32_t parent, position;
    std::vector<std::vector<float>> k, v;  // by layer; empty before append()
  };
  struct Session {
    std::vector<Row> kept, round;
  };
  // A row of the last rows(). It sees `last` of its round, and what that descends from.
  struct Place {
    bool is_there = false;
    uint64_t seq_id = 0;
    int32_t row = 0, last = 0;
  };

  static std::string offsets_fault(const uint32_t* offsets, uint32_t n_seqs, uint32_t n_rows) {
    bool good = offsets[0] == 0 && offsets[n_seqs] == n_rows;
    for (uint32_t s = 0; s < n_seqs; ++s) good = good && offsets[s] <= offsets[s + 1];
    return good ? "" : "row_offsets do not lead from 0 to the number of rows";
  }
  std::string rows_fault(const Batch& batch, const specd_kv_rows_args* a) const {
    FakeCheck check;
    check.expect(a != nullptr && a->struct_size == sizeof *a, "struct_size");
    check.expect(!check.ok() || (a->row_offsets != nullptr && a->seq_status != nullptr),
                 "row_offsets or seq_status is null");
    if (!check.ok()) return check.fault();
    check.expect(a->n_rows <= args_.rows_max, "more rows than rows_max");
    const std::string fault = offsets_fault(a->row_offsets, batch.n_seqs, a->n_rows);
    check.expect(fault.empty(), fault);
    check.expect((a->flags & ~uint32_t{SPECD_KV_BLOCK}) == 0, "flags are not SPECD_KV_*");
    check.expect(a->flags == 0 || a->parent == nullptr, "SPECD_KV_BLOCK is without parents");
    check.expect(a->n_queries == 0 || a->query_rows != nullptr, "query_rows is null");
    for (uint32_t i = 0; i < a->n_queries && check.ok(); ++i) {
      check.expect(
          a->query_rows[i] < a->n_rows && (i == 0 || a->query_rows[i] > a->query_rows[i - 1]),
          "query_rows do not increase below n_rows");
    }
    return check.fault();
  }

  // Adds a row to the round, unless its status is not SPECD_OK.
  specd_status add(Session& session, int32_t parent) const {
    const auto row = static_cast<int32_t>(session.round.size()),
               n_kept = static_cast<int32_t>(session.kept.size());
    if (parent < -1 || parent >= row) return SPECD_E_INVALID;
    if (row >= int64_t{args_.positions_max} + kTailMax) return SPECD_E_INVALID;
    const int32_t position =
        parent < 0 ? n_kept : session.round[static_cast<std::size_t>(parent)].position + 1;
    if (position >= static_cast<int64_t>(args_.positions_max)) return SPECD_E_UNSUPPORTED;
    const int32_t depth = position - n_kept;
    if (depth != row && depth >= kTailMax) return SPECD_E_INVALID;
    session.round.push_back({parent, position, {}, {}});
    session.round.back().k.resize(args_.n_layers);
    session.round.back().v.resize(args_.n_layers);
    return SPECD_OK;
  }
  Row& round_row(const Place& place) {
    return sessions_.at(place.seq_id).round[static_cast<std::size_t>(place.row)];
  }

  // Position by position. In a block, a window too ends with the block's last row.
  std::vector<const Row*> seen_by(const Place& place, uint32_t window) const {
    std::vector<const Row*> seen;
    if (!place.is_there) return seen;
    const Session& session = sessions_.at(place.seq_id);
    for (int32_t row = place.last; row >= 0; row = seen.back()->parent) {
      seen.push_back(&session.round[static_cast<std::size_t>(row)]);
    }
    for (std::size_t i = session.kept.size(); i-- > 0;) seen.push_back(&session.kept[i]);
    if (window > 0 && seen.size() > window) seen.resize(window);
    std::reverse(seen.begin(), seen.end());
    return seen;
  }

  void normalize(float* x, const specd_tensor* weight, double eps) const {
    const int64_t dim = args_.head_dim;
    double square = 0;
    for (int64_t d = 0; d < dim; ++d) square += double{x[d]} * double{x[d]};
    const double root = std::sqrt(square / static_cast<double>(dim) + eps);
    for (int64_t d = 0; d < dim; ++d) {
      x[d] = static_cast<float>(x[d] / root * fake_cell<float>(weight, d));
    }
  }
  void rotate(float* x, int32_t position) const {
    const std::size_t half = inv_freq_.size();
    for (std::size_t i = 0; i < half; ++i) {
      // The angle is a float32, as in the models.
      const double angle = static_cast<float>(position) * inv_freq_[i], a = x[i], b = x[half + i];
      x[i] = static_cast<float>((a * std::cos(angle) - b * std::sin(angle)) * args_.rope_scale);
      x[half + i] =
          static_cast<float>((b * std::cos(angle) + a * std::sin(angle)) * args_.rope_scale);
    }
  }
  // `at`: where the head's K and V are in a row.
  void attend_head(const std::vector<const Row*>& seen, uint32_t layer, int64_t at, double scale,
                   const float* q, float* out) const {
    const auto dim = static_cast<std::size_t>(args_.head_dim);
    std::vector<double> score, sum(dim, 0);
    for (const Row* row : seen) {
      double dot = 0;
      for (std::size_t d = 0; d < dim; ++d) {
        dot += double{q[d]} * row->k[layer][static_cast<std::size_t>(at) + d];
      }
      score.push_back(dot * scale);
    }
    const double max = seen.empty() ? 0 : *std::max_element(score.begin(), score.end());
    double total = 0;
    for (std::size_t i = 0; i < seen.size(); ++i) {
      const double p = std::exp(score[i] - max);
      total += p;
      for (std::size_t d = 0; d < dim; ++d) {
        sum[d] += p * seen[i]->v[layer][static_cast<std::size_t>(at) + d];
      }
    }
    for (std::size_t d = 0; d < dim; ++d) {
      out[d] = seen.empty() ? 0 : static_cast<float>(sum[d] / total);
    }
  }

  const specd_kv_open_args args_;
  std::vector<float> inv_freq_;  // empty = no rotation
  std::map<uint64_t, Session> sessions_;
  // Of the last rows().
  uint64_t serial_ = 0;
  std::vector<Place> places_;
  std::vector<uint32_t> queries_;
};

}  // namespace specd::sdk

#endif
