// What `specctl generate` prints of a reply: the first choice as it comes, the others and the
// log-probabilities behind it.
#pragma once

#include <google/protobuf/repeated_field.h>

#include <cstdint>
#include <string>
#include <vector>

#include "host/base/table.h"
#include "host/proto/specd.pb.h"

namespace specd::host {

class Transcript {
 public:
  // Takes the next message; returns what to print at once.
  std::string add(const v1::GenerateResponse& message);
  // What to print at the end.
  std::string rest() const;

 private:
  using Ids = google::protobuf::RepeatedField<int32_t>;
  struct Logprobs {  // a line a token
    Table table{{"token", "log-probability", "most likely"}};
    void add(const Ids& ids, const v1::Logprobs& logprobs);
  };
  struct Choice {
    std::string text, finish;
    Logprobs logprobs;
  };

  Ids unscored_;  // of the prompt
  Logprobs prompt_;
  std::vector<Choice> choices_;
};

}  // namespace specd::host
