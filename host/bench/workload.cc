#include "host/bench/workload.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numbers>

#include "core/base/json.h"
#include "core/base/quote.h"

namespace specd::host {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kJsonlBytesMax = uint64_t{256} << 20;

std::string without_instruction(std::string text) {
  const size_t end = text.find('\n');
  if (end == std::string::npos) return text;
  const size_t begin = text.find_first_not_of('\n', end);
  return begin == std::string::npos ? std::string() : text.substr(begin);
}

Result<std::string> prompt_of(const Json& line, const std::string& where) {
  const auto wrong = [&](const std::string& text) {
    return Status(Code::kInvalidArgument, where + ": " + text);
  };
  if (!line.is_object()) return wrong("expected an object, found " + std::string(line.type_name()));
  for (const char* key : {"prompt", "text"}) {
    const auto found = line.find(key);
    if (found == line.end()) continue;
    if (!found->is_string())
      return wrong("key '" + std::string(key) + "': expected a string, found " +
                   found->type_name());
    return found->get<std::string>();
  }
  const auto turns = line.find("turns");
  if (turns == line.end())
    return wrong("expected a key 'prompt', 'text' or 'turns', found none of them");
  if (!turns->is_array() || turns->empty() || !turns->front().is_string())
    return wrong("key 'turns': expected a list of strings, found " + quote(turns->dump(), 40));
  return turns->front().get<std::string>();
}

Status read_jsonl(const std::string& file, bool without_first_line, std::vector<Prompt>& prompts) {
  SPECD_TRY(const std::string content, read_text_file(file, kJsonlBytesMax));
  size_t number = 0;
  for (size_t begin = 0; begin < content.size();) {
    const size_t end = std::min(content.find('\n', begin), content.size());
    const std::string_view line(content.data() + begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string where = file + ":" + std::to_string(number);
    const Result<Json> json = parse_json(line, where);
    if (!json.ok()) return Status(Code::kInvalidArgument, json.status().text());
    SPECD_TRY(std::string text, prompt_of(json.value(), where));
    if (without_first_line) text = without_instruction(std::move(text));
    if (text.empty() || text.size() > kPromptBytesMax)
      return Status(Code::kInvalidArgument, where + ": expected a prompt of 1 to " +
                                                std::to_string(kPromptBytesMax) + " bytes, found " +
                                                std::to_string(text.size()));
    prompts.push_back({fs::path(file).filename().string() + ":" + std::to_string(number),
                       std::move(text), std::nullopt, 0});
  }
  return Status();
}

// splitmix64: the standard library's distributions differ between implementations.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
    z = (z ^ z >> 27) * 0x94D049BB133111EB;
    return z ^ z >> 31;
  }
  double uniform() { return (static_cast<double>(next() >> 11) + 0.5) * 0x1p-53; }
  double normal() {  // Box-Muller
    const double radius = std::sqrt(-2 * std::log(uniform()));
    return radius * std::cos(2 * std::numbers::pi * uniform());
  }

 private:
  uint64_t state_;
};

}  // namespace

Result<std::vector<Prompt>> read_prompts(const std::vector<std::string>& paths,
                                         bool without_first_line) {
  std::vector<Prompt> prompts;
  for (const std::string& path : paths) {
    std::vector<std::string> files;
    std::error_code failure;
    if (fs::is_directory(path, failure)) {
      for (fs::directory_iterator it(path, failure), end; !failure && it != end;
           it.increment(failure))
        if (it->is_regular_file(failure)) files.push_back(it->path().string());
      std::sort(files.begin(), files.end());
    } else {
      files.push_back(path);
    }
    for (const std::string& file : files) {
      if (file.ends_with(".jsonl")) {
        SPECD_OK_OR_RETURN(read_jsonl(file, without_first_line, prompts));
        continue;
      }
      SPECD_TRY(std::string text, read_text_file(file, kPromptBytesMax));
      if (without_first_line) text = without_instruction(std::move(text));
      prompts.push_back({fs::path(file).filename().string(), std::move(text), std::nullopt, 0});
    }
  }
  if (prompts.empty())
    return Status(Code::kInvalidArgument,
                  "no prompt: expected files, folders with files, or *.jsonl with a prompt a line");
  return prompts;
}

std::vector<Prompt> synthetic_prompts(const SyntheticOptions& options, int32_t vocab_size,
                                      int32_t positions_max) {
  Random random(options.seed);
  const auto length = [&](double mean, double stdev, int32_t most) {
    const double drawn = std::round(mean + stdev * random.normal());
    return static_cast<int32_t>(std::clamp(drawn, 1.0, static_cast<double>(most)));
  };
  std::vector<Prompt> prompts;
  for (int32_t i = 0; i < options.count; ++i) {
    Prompt prompt;
    prompt.name = "synthetic-" + std::to_string(i + 1);
    const int32_t input = length(options.input_mean, options.input_stdev, positions_max - 1);
    prompt.max_tokens = length(options.output_mean, options.output_stdev, positions_max - input);
    prompt.tokens.emplace();
    for (int32_t t = 0; t < input; ++t)
      prompt.tokens->push_back(
          static_cast<int32_t>(random.next() % static_cast<uint64_t>(vocab_size)));
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

}  // namespace specd::host
