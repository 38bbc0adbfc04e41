#include "record.h"

#include <specd/sdk/error.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

namespace specd::replay {
namespace {

constexpr std::size_t kMaxFileBytes = std::size_t{256} << 20;
constexpr int kMaxNesting = 8;

uint64_t extend(uint64_t hash, int32_t token) {
  return (hash ^ static_cast<uint32_t>(token)) * 0x100000001b3u + 0x9e3779b97f4a7c15u;
}

// Refuses deep nesting early: no valid file has more than four levels.
nlohmann::json parse(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) {
    throw sdk::Error(SPECD_E_CONFIG, "file: " + path + ": expected a readable regular file");
  }
  if (static_cast<uint64_t>(info.st_size) > kMaxFileBytes) {
    throw sdk::Error(SPECD_E_DATA, path + ": expected at most 256 MiB, found " +
                                       std::to_string(info.st_size) + " bytes");
  }
  std::ifstream in(path, std::ios::binary);
  if (!in) throw sdk::Error(SPECD_E_CONFIG, "file: " + path + ": cannot be opened");
  const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  const auto not_json = [&](std::size_t byte) {
    return sdk::Error(SPECD_E_DATA, path + ": not JSON at byte " + std::to_string(byte));
  };
  // nlohmann would take it as the end of the text.
  if (const std::size_t zero = text.find('\0'); zero != std::string::npos) throw not_json(zero);
  try {
    return nlohmann::json::parse(text,
                                 [&](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
                                   if (depth > kMaxNesting)
                                     throw sdk::Error(SPECD_E_DATA, path + ": nested too deeply");
                                   return true;
                                 });
    // the exception's message contains part of the file
  } catch (const nlohmann::json::parse_error& error) {
    throw not_json(error.byte > 0 ? error.byte - 1 : 0);
  } catch (const nlohmann::json::exception&) {
    throw sdk::Error(SPECD_E_DATA, path + ": not JSON: a number is too large");
  }
}

void read_tokens(const nlohmann::json& object, const char* key, int32_t vocab_size,
                 const std::string& where, std::vector<int32_t>& out) {
  const auto it = object.find(key);
  if (it == object.end() || !it->is_array()) {
    throw sdk::Error(SPECD_E_DATA, where + "." + key + ": expected a list of token ids");
  }
  for (std::size_t i = 0; i < it->size(); ++i) {
    const nlohmann::json& element = (*it)[i];
    if (!element.is_number_unsigned() ||
        element.get<uint64_t>() >= static_cast<uint64_t>(vocab_size)) {
      throw sdk::Error(SPECD_E_DATA, where + "." + key + "[" + std::to_string(i) +
                                         "]: expected a token id below " +
                                         std::to_string(vocab_size) + ", found " + element.dump());
    }
    out.push_back(static_cast<int32_t>(element.get<uint64_t>()));
  }
}

}  // namespace

RecordBook::RecordBook(const std::string& path, int32_t vocab_size) {
  const nlohmann::json json = parse(path);
  if (!json.is_object() || !json.contains("sequences") || !json["sequences"].is_array()) {
    throw sdk::Error(SPECD_E_DATA, path + ": expected an object with a list \"sequences\"");
  }
  for (const nlohmann::json& element : json["sequences"]) {
    const std::string where = path + ": sequences[" + std::to_string(records_.size()) + "]";
    if (!element.is_object()) throw sdk::Error(SPECD_E_DATA, where + ": expected an object");
    Record record;
    read_tokens(element, "prompt", vocab_size, where, record.tokens);
    record.prompt = record.tokens.size();
    if (record.prompt == 0) throw sdk::Error(SPECD_E_DATA, where + ".prompt: expected a token");
    read_tokens(element, "output", vocab_size, where, record.tokens);
    if (element.contains("seed")) {
      if (!element["seed"].is_number_unsigned()) {
        throw sdk::Error(SPECD_E_DATA, where + ".seed: expected an integer of at least 0");
      }
      record.has_seed = true;
      record.seed = element["seed"].get<uint64_t>();
    }
    uint64_t hash = 0;
    for (std::size_t i = 0; i < record.prompt; ++i) hash = extend(hash, record.tokens[i]);
    by_prompt_.emplace(hash, records_.size());
    records_.push_back(std::move(record));
  }
}

const Record* RecordBook::find(const int32_t* tokens, std::size_t n, uint64_t seed) const {
  const Record* best = nullptr;
  uint64_t hash = 0;
  // Any prefix of the tokens may be the prompt; among matches the longest prompt wins.
  for (std::size_t length = 1; length <= n; ++length) {
    hash = extend(hash, tokens[length - 1]);
    const auto range = by_prompt_.equal_range(hash);
    for (auto it = range.first; it != range.second; ++it) {
      const Record& record = records_[it->second];
      if (record.prompt != length || record.tokens.size() < n) continue;
      if (record.has_seed && record.seed != seed) continue;
      if (!std::equal(tokens, tokens + n, record.tokens.begin())) continue;
      if (best == nullptr || record.has_seed >= best->has_seed) best = &record;
    }
  }
  return best;
}

}  // namespace specd::replay
