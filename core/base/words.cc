#include "core/base/words.h"

#include <algorithm>
#include <utility>

#include "core/base/quote.h"

namespace specd {
namespace {

constexpr size_t kWordBytesMax = 128;  // longer ones are no typos, and comparing them takes time

// Insertions, deletions and replacements that lead from one to the other.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j < row.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

// 'warning' for 'warn'.
bool one_begins_the_other(std::string_view a, std::string_view b) {
  const size_t shorter = std::min(a.size(), b.size());
  return shorter >= 3 && a.substr(0, shorter) == b.substr(0, shorter);
}

}  // namespace

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  if (word.size() > kWordBytesMax) return "";
  std::string best;
  size_t best_distance = (word.size() < 3 ? 1 : std::max<size_t>(2, word.size() / 3)) + 1;
  for (const std::string& candidate : candidates) {
    if (candidate.size() > kWordBytesMax) continue;
    size_t distance = edit_distance(word, candidate);
    if (one_begins_the_other(word, candidate)) distance = std::min<size_t>(distance, 1);
    if (distance >= best_distance) continue;
    best_distance = distance;
    best = candidate;
  }
  return best;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates) {
  const std::string near = nearest(word, candidates);
  return near.empty() ? "" : "; did you mean " + quote(near) + "?";
}

std::string known_words(std::string_view word, const std::vector<std::string>& known) {
  const std::string near = did_you_mean(word, known);
  return (near.empty() ? ";" : near) + " known here: " + (known.empty() ? "none" : joined(known));
}

std::string joined(const std::vector<std::string>& words, std::string_view between) {
  std::string list;
  for (size_t i = 0; i < words.size(); ++i) {
    if (i > 0) list += between;
    list += words[i];
  }
  return list;
}

std::string joined_or(const std::vector<std::string>& words) {
  std::string list;
  for (size_t i = 0; i < words.size(); ++i)
    list += (i == 0 ? "" : i + 1 == words.size() ? " or " : ", ") + words[i];
  return list;
}

}  // namespace specd
