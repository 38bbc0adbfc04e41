// The service model/1 for unit tests: a model defined as a function of the text. See fake_host.h.
#ifndef SPECD_SDK_FAKE_MODEL_H
#define SPECD_SDK_FAKE_MODEL_H

#include <specd/plugin_api/services/model.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace specd::sdk {

class FakeModel {
 public:
  using Text = std::vector<int32_t>;
  struct Session {
    Text kept;
    Text round;                   // the tokens of its rows
    std::vector<int32_t> parent;  // and their parents
  };

  std::string name = "draft";  // the only model that can be opened
  // The next token of a text, and its probability. All other tokens share the rest.
  std::function<int32_t(const Text&)> next = [](const Text& text) { return text.back() + 1; };
  std::function<float(const Text&)> probability = [](const Text&) { return 1.0f; };
  // For out_law: log-probabilities by token. When unset, next() and probability() say.
  std::function<std::vector<float>(const Text&)> law;
  // For top-k outputs: most likely first, with log-probabilities. When unset, only next() is used.
  std::function<std::vector<std::pair<int32_t, float>>(const Text&)> likely;
  uint32_t max_positions = 4096;
  bool exhausted = false;  // makes every call run out of pages

  uint64_t forwards = 0, rows = 0;
  int32_t open = 0;  // open handles
  // By seq_id; erase one to simulate that the host reclaimed its pages.
  std::map<uint64_t, Session> session;

  // The functions of specd_models, with handles already checked. Return an empty string, or what is
  // wrong with the call.
  std::string forward(const uint64_t* seq_id, uint32_t n_seqs, const specd_forward_args* args) {
    if (args == nullptr || args->struct_size != sizeof *args || args->row_offsets == nullptr ||
        args->seq_status == nullptr || args->token == nullptr ||
        args->row_offsets[n_seqs] != args->n_rows) {
      return "model.forward: arguments are missing or contradict each other";
    }
    if (args->n_rows > 0) ++forwards;
    uint32_t output = 0;
    for (uint32_t s = 0; s < n_seqs; ++s) {
      const uint32_t begin = args->row_offsets[s], end = args->row_offsets[s + 1];
      args->seq_status[s] = SPECD_OK;
      if (begin == end) continue;
      const Session before = session[seq_id[s]];
      Session& mine = session[seq_id[s]];
      if (exhausted) args->seq_status[s] = SPECD_E_EXHAUSTED;
      for (uint32_t r = begin; r < end; ++r) {
        const auto row = static_cast<int32_t>(mine.round.size());
        const int32_t parent = args->parent == nullptr ? row - 1 : args->parent[r];
        if (parent < -1 || parent >= row) return "model.forward: a parent is not an earlier row";
        mine.round.push_back(static_cast<const int32_t*>(
            args->token->data)[source(*args, r) * args->token->stride[0]]);
        mine.parent.push_back(parent);
        const Text text = text_of(mine, row);
        if (text.size() > max_positions) args->seq_status[s] = SPECD_E_UNSUPPORTED;
        const bool wanted = output < args->n_outputs && args->output_rows[output] == r;
        const bool ok = args->seq_status[s] == SPECD_OK;
        if (wanted) write(*args, place(*args, output++), ok ? &text : nullptr);
      }
      if (args->seq_status[s] == SPECD_OK) {
        rows += end - begin;
      } else {
        mine = before;
      }
    }
    return output == args->n_outputs ? "" : "model.forward: output_rows do not increase";
  }

  // `texts` are the committed texts. What a session keeps must be a prefix of its text.
  std::string follow(const uint64_t* seq_id, const std::vector<const Text*>& texts,
                     const specd_forward_args* args) {
    if (args == nullptr || args->struct_size != sizeof *args || args->seq_status == nullptr ||
        args->row_offsets != nullptr || args->token != nullptr) {
      return "model.follow: arguments are missing or contradict each other";
    }
    uint32_t output = 0;
    std::size_t left = args->n_rows;
    const uint64_t rows_before = rows;
    for (uint32_t s = 0; s < texts.size(); ++s) {
      const Text& text = *texts[s];
      Session& mine = session[seq_id[s]];
      // A sequence that cannot be fed uses none of the shared row limit and keeps nothing.
      const bool beyond = text.size() > max_positions;
      if (beyond) mine = Session();
      if (mine.kept.size() > text.size() ||
          !std::equal(mine.kept.begin(), mine.kept.end(), text.begin())) {
        return "model.follow: the session keeps another text";
      }
      // Keep the chain of the round as far as it agrees with the text. The last token is
      // always fed.
      int32_t last = -1;
      for (std::size_t r = 0; r < mine.round.size() && mine.kept.size() + 1 < text.size(); ++r) {
        if (mine.parent[r] != last || mine.round[r] != text[mine.kept.size()]) continue;
        mine.kept.push_back(mine.round[r]);
        last = static_cast<int32_t>(r);
      }
      mine.round.clear();
      mine.parent.clear();
      if (mine.kept.size() == text.size()) mine.kept.pop_back();
      const std::size_t missing = text.size() - mine.kept.size();
      const std::size_t n = missing <= 2 ? missing : std::min(missing, left);
      if (missing > 2 && !beyond && !exhausted) left -= n;
      args->seq_status[s] = beyond        ? SPECD_E_UNSUPPORTED
                            : exhausted   ? SPECD_E_EXHAUSTED
                            : n < missing ? SPECD_E_DEADLINE
                                          : SPECD_OK;
      const bool fed = args->seq_status[s] == SPECD_OK || args->seq_status[s] == SPECD_E_DEADLINE;
      if (fed) {
        rows += n;
        const auto begin = text.begin() + static_cast<std::ptrdiff_t>(mine.kept.size());
        mine.kept.insert(mine.kept.end(), begin, begin + static_cast<std::ptrdiff_t>(n));
      }
      const bool wanted = output < args->n_outputs && args->output_rows[output] == s;
      if (wanted) {
        write(*args, place(*args, output++), args->seq_status[s] == SPECD_OK ? &text : nullptr);
      }
    }
    if (rows > rows_before) ++forwards;
    return output == args->n_outputs ? "" : "model.follow: output_rows do not increase";
  }

  std::string keep(const uint64_t* seq_id, uint32_t n_seqs, const uint32_t* kept,
                   const uint32_t* row_offsets, const uint32_t* path) {
    if (kept == nullptr) return "model.keep: kept is null";
    for (uint32_t s = 0; s < n_seqs; ++s) {
      Session& mine = session[seq_id[s]];
      const uint32_t begin = row_offsets == nullptr ? 0 : row_offsets[s];
      const uint32_t end = row_offsets == nullptr ? 0 : row_offsets[s + 1];
      if (begin == end ? kept[s] > mine.kept.size() : kept[s] != mine.kept.size()) {
        return "model.keep: kept is not what the session holds";
      }
      mine.kept.resize(kept[s]);
      int32_t previous = -1;
      for (uint32_t i = begin; i < end; ++i) {
        if (path[i] >= mine.round.size() || mine.parent[path[i]] != previous) {
          return "model.keep: rows do not form a path";
        }
        mine.kept.push_back(mine.round[path[i]]);
        previous = static_cast<int32_t>(path[i]);
      }
      mine.round.clear();
      mine.parent.clear();
    }
    return "";
  }

 private:
  static uint32_t source(const specd_forward_args& args, uint32_t row) {
    return args.token_at == nullptr ? row : args.token_at[row];
  }
  static uint32_t place(const specd_forward_args& args, uint32_t output) {
    return args.output_at == nullptr ? output : args.output_at[output];
  }
  static Text text_of(const Session& session, int32_t row) {
    Text tail;
    for (int32_t r = row; r >= 0; r = session.parent[static_cast<std::size_t>(r)]) {
      tail.insert(tail.begin(), session.round[static_cast<std::size_t>(r)]);
    }
    Text text = session.kept;
    text.insert(text.end(), tail.begin(), tail.end());
    return text;
  }

  void write_law(const specd_forward_args& args, uint32_t output, const Text& text) const {
    const auto width = static_cast<std::size_t>(args.out_law->shape[1]);
    std::vector<float> row = law ? law(text) : std::vector<float>();
    if (!law) {
      const float rest = (1 - probability(text)) / static_cast<float>(width - 1);
      row.assign(width, std::log(rest));
      row[static_cast<std::size_t>(next(text))] = std::log(probability(text));
    }
    row.resize(width, -INFINITY);
    std::copy(row.begin(), row.end(),
              static_cast<float*>(args.out_law->data) + output * args.out_law->stride[0]);
    static_cast<float*>(args.out_lse->data)[output * args.out_lse->stride[0]] = 0;
  }

  // text == nullptr: the sequence failed.
  void write(const specd_forward_args& args, uint32_t output, const Text* text) const {
    if (args.out_token != nullptr) {
      static_cast<int32_t*>(args.out_token->data)[output * args.out_token->stride[0]] =
          text == nullptr ? -1 : next(*text);
    }
    if (text == nullptr) return;
    const float logprob = std::log(probability(*text));
    if (args.out_logprob != nullptr) {
      static_cast<float*>(args.out_logprob->data)[output * args.out_logprob->stride[0]] = logprob;
    }
    if (args.out_law != nullptr) write_law(args, output, *text);
    if (args.out_topk_token == nullptr) return;
    const std::vector<std::pair<int32_t, float>> top =
        likely ? likely(*text) : std::vector<std::pair<int32_t, float>>{{next(*text), logprob}};
    for (int64_t k = 0; k < args.out_topk_token->shape[1]; ++k) {
      const bool told = k < static_cast<int64_t>(top.size());
      const auto rank = static_cast<std::size_t>(k);
      static_cast<int32_t*>(
          args.out_topk_token->data)[output * args.out_topk_token->stride[0] + k] =
          told ? top[rank].first : -1;
      if (args.out_topk_logprob == nullptr) continue;
      static_cast<float*>(
          args.out_topk_logprob->data)[output * args.out_topk_logprob->stride[0] + k] =
          told ? top[rank].second : -INFINITY;
    }
  }
};

}  // namespace specd::sdk

#endif
