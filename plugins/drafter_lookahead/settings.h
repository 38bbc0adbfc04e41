// The sizes of window and pool, under the parameter names of two engines; see README.md.
#ifndef SPECD_LOOKAHEAD_SETTINGS_H
#define SPECD_LOOKAHEAD_SETTINGS_H

#include <specd/sdk/plugin.h>

#include <algorithm>
#include <cstdint>
#include <string>

namespace specd::lookahead {

class Settings {
 public:
  uint32_t window = 0;   // W: columns
  uint32_t ngram = 0;    // N: tokens of an n-gram; 1 = plain decoding
  uint32_t guesses = 0;  // G: n-grams kept per key, and tested
  bool pool_from_prompt = false;
  uint32_t max_pool_ngrams = 0;

  // Throws Error(SPECD_E_CONFIG) when the tree would exceed the limits of the ABI.
  explicit Settings(const sdk::Config& config) {
    const Names names = family(config);
    window = read(config, names.window, names.defaults[0], 1, SPECD_MAX_TREE_DEPTH + 1);
    ngram = read(config, names.ngram, names.defaults[1], names.min_ngram, SPECD_MAX_TREE_DEPTH + 1);
    guesses = read(config, names.guesses, names.defaults[2], 0, SPECD_MAX_TREE_NODES);
    pool_from_prompt = names.always_from_prompt || config.boolean("pool_from_prompt", false);
    max_pool_ngrams = read(config, "max_pool_ngrams", 8192, 1, 1 << 20);
    check(names);
  }

  // Levels of the window, and tokens of a guess.
  uint32_t levels() const { return ngram - 1; }
  uint32_t window_depth() const { return ngram < 2 ? 0 : window + ngram - 3; }
  // Largest number of window nodes in any pass: while the window fills, `filled` levels have
  // more columns.
  uint32_t window_nodes() const {
    uint32_t most = 0;
    for (uint32_t filled = 1; filled <= levels(); ++filled) {
      most = std::max(most, filled * (window + levels() - filled) - 1);
    }
    return most;
  }
  // Guesses are tested beside the full window, and also where the window does not fit.
  uint32_t nodes() const {
    return ngram < 2 ? 0 : std::max(window_nodes(), (window + guesses) * levels() - 1);
  }
  uint32_t depth() const { return std::max(window_depth(), guesses == 0 ? 0 : levels()); }

 private:
  struct Names {
    const char *window, *ngram, *guesses;
    int64_t defaults[3];
    int64_t min_ngram;
    bool always_from_prompt;
  };

  static Names family(const sdk::Config& config) {
    const char *ours = nullptr, *theirs = nullptr;
    for (const char* key : {"window", "ngram", "guesses", "pool_from_prompt"}) {
      if (config.has(key)) ours = key;
    }
    for (const char* key : {"max_window_size", "max_ngram_size", "max_verification_set_size"}) {
      if (config.has(key)) theirs = key;
    }
    if (ours != nullptr && theirs != nullptr) {
      throw sdk::Error(SPECD_E_CONFIG,
                       std::string(ours) + " and " + theirs +
                           " belong to different families: use either window, ngram, guesses, "
                           "pool_from_prompt, or max_window_size, max_ngram_size, "
                           "max_verification_set_size (which always feeds the pool from the text)");
    }
    if (theirs != nullptr) {
      return {"max_window_size", "max_ngram_size", "max_verification_set_size", {4, 3, 4}, 1, true};
    }
    return {"window", "ngram", "guesses", {7, 5, 7}, 2, false};
  }

  static uint32_t read(const sdk::Config& config, const char* key, int64_t otherwise, int64_t min,
                       int64_t max) {
    return static_cast<uint32_t>(config.i64(key, otherwise, min, max));
  }

  void check(const Names& names) const {
    const auto value = [](const char* key, uint32_t n) {
      return std::string(key) + " " + std::to_string(n);
    };
    const auto refuse = [](const std::string& text) { throw sdk::Error(SPECD_E_CONFIG, text); };
    const std::string either = std::string(names.window) + " or " + names.ngram;
    if (ngram == 1 && (window != 1 || guesses != 0)) {
      refuse(value(names.ngram, 1) + " is plain decoding and goes with " + value(names.window, 1) +
             " and " + value(names.guesses, 0) + " alone, found " + value(names.window, window) +
             " and " + value(names.guesses, guesses));
    }
    if (depth() > SPECD_MAX_TREE_DEPTH) {
      refuse(value(names.window, window) + " and " + value(names.ngram, ngram) +
             " make a tree of depth " + std::to_string(depth()) +
             " (window + ngram - 3), the limit is " + std::to_string(SPECD_MAX_TREE_DEPTH) +
             ": lower " + either);
    }
    if (window_nodes() > SPECD_MAX_TREE_NODES) {
      refuse(value(names.window, window) + " and " + value(names.ngram, ngram) +
             " make a window of " + std::to_string(window_nodes()) + " nodes, the limit is " +
             std::to_string(SPECD_MAX_TREE_NODES) + ": lower " + either);
    }
    if (nodes() > SPECD_MAX_TREE_NODES) {
      const uint32_t most = (SPECD_MAX_TREE_NODES + 1) / levels() - window;
      refuse(value(names.window, window) + ", " + value(names.ngram, ngram) + " and " +
             value(names.guesses, guesses) + " make a tree of " + std::to_string(nodes()) +
             " nodes ((window + guesses) * (ngram - 1) - 1), the limit is " +
             std::to_string(SPECD_MAX_TREE_NODES) + ": lower " + names.guesses + " to at most " +
             std::to_string(most));
    }
  }
};

}  // namespace specd::lookahead

#endif
