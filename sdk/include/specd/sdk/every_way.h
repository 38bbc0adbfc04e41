// Enumerates code that decides by chance, to prove its law: a rule that is written over bernoulli()
// and categorical(), as sdk::Noise has them, is run once for each of its outcomes, with the exact
// probability of each.
//
//   std::map<Text, double> law;
//   specd::sdk::EveryWay noise;
//   do {
//     const Text text = judge(nodes, noise, ..);
//     law[text] += noise.probability();
//   } while (noise.next());
#ifndef SPECD_SDK_EVERY_WAY_H
#define SPECD_SDK_EVERY_WAY_H

#include <cstddef>
#include <stdexcept>
#include <vector>

namespace specd::sdk {

class EveryWay {
 public:
  bool bernoulli(double probability) {
    const double p = probability < 0 ? 0 : probability > 1 ? 1 : probability;
    const double weight[2] = {1 - p, p};
    return categorical(weight, 2) == 1;
  }
  std::size_t categorical(const double* weight, std::size_t n) {
    if (depth_ == choices_.size()) {
      choices_.push_back({std::vector<double>(weight, weight + n), 0});
      choices_.back().skip_impossible();
      if (choices_.back().taken == n) throw std::logic_error("a choice without a positive weight");
    }
    return choices_[depth_++].taken;
  }

  // The probability of the way just taken.
  double probability() const {
    double all = 1;
    for (const Choice& each : choices_) {
      double total = 0;
      for (const double weight : each.weight) total += weight;
      all *= each.weight[each.taken] / total;
    }
    return all;
  }
  // Goes to the next way; false when all have been taken.
  bool next() {
    depth_ = 0;
    while (!choices_.empty()) {
      Choice& last = choices_.back();
      ++last.taken;
      last.skip_impossible();
      if (last.taken < last.weight.size()) return true;
      choices_.pop_back();
    }
    return false;
  }

 private:
  struct Choice {
    std::vector<double> weight;
    std::size_t taken;
    void skip_impossible() {
      while (taken < weight.size() && weight[taken] <= 0) ++taken;
    }
  };
  std::vector<Choice> choices_;
  std::size_t depth_ = 0;
};

}  // namespace specd::sdk

#endif
