#include "host/compare.h"

#include <algorithm>
#include <filesystem>

#include "core/base/json.h"

namespace specd::host {
namespace {

namespace fs = std::filesystem;

v1::GenerateRequest make_request(const Prompt& prompt, const CompareOptions& options,
                                 const std::string& route, size_t block) {
  v1::GenerateRequest request;
  request.set_text(prompt.text);
  request.mutable_sampling()->set_temperature(options.temperatures[block]);
  request.mutable_sampling()->set_top_p(options.top_p);
  request.mutable_sampling()->set_top_k(options.top_k);
  request.mutable_sampling()->set_seed(options.seed + block);
  request.set_max_tokens(options.max_tokens);
  request.set_route(route);
  return request;
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace

Result<std::vector<Prompt>> read_prompts(const std::vector<std::string>& paths) {
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
      SPECD_TRY(std::string text, read_text_file(file, kPromptBytesMax));
      prompts.push_back({fs::path(file).filename().string(), std::move(text)});
    }
  }
  if (prompts.empty())
    return Status(Code::kInvalidArgument, "no prompt: expected files or folders with files");
  return prompts;
}

Result<std::vector<CompareRow>> compare(Client& client, const std::vector<Prompt>& prompts,
                                        const CompareOptions& options) {
  std::vector<CompareRow> rows;
  for (size_t block = 0; block < options.temperatures.size(); ++block) {
    const size_t first = rows.size();
    for (const std::string& route : options.routes) {
      rows.emplace_back().route = route;
      rows.back().temperature = options.temperatures[block];
    }
    std::vector<std::vector<double>> speeds(options.routes.size());
    std::vector<std::vector<int32_t>> expected(prompts.size());
    for (int round = 0; round < options.repeat; ++round) {
      for (size_t p = 0; p < prompts.size(); ++p) {
        for (size_t r = 0; r < options.routes.size(); ++r) {
          CompareRow& row = rows[first + r];
          auto generation =
              client.generate(make_request(prompts[p], options, options.routes[r], block), {});
          if (!generation.ok())
            return generation.status().with_context(prompts[p].name + " on route " + row.route);
          const Generation& got = generation.value();
          if (round == 0 && r == 0) expected[p] = got.token_ids;
          if (got.token_ids != expected[p] && row.identical) {
            row.identical = false;
            const auto at = std::mismatch(got.token_ids.begin(), got.token_ids.end(),
                                          expected[p].begin(), expected[p].end());
            row.first_difference =
                prompts[p].name + ": token " + std::to_string(at.first - got.token_ids.begin());
          }
          const v1::Speculation& speculation = got.finished.speculation();
          ++row.requests;
          row.tokens += static_cast<int64_t>(got.token_ids.size());
          row.steps += speculation.decode_steps();
          row.drafted += speculation.total_draft_tokens();
          row.accepted += speculation.total_accepted_draft_tokens();
          if (got.token_ids.size() >= 2 && got.finished.times().decode_ms() > 0)
            speeds[r].push_back(static_cast<double>(got.token_ids.size() - 1) * 1000 /
                                got.finished.times().decode_ms());
        }
      }
    }
    for (size_t r = 0; r < options.routes.size(); ++r) {
      CompareRow& row = rows[first + r];
      row.tokens_per_s = median(speeds[r]);
      const double base = median(speeds[0]);
      row.speedup = base > 0 ? row.tokens_per_s / base : 0;
    }
  }
  return rows;
}

Result<std::string> record(Client& client, const std::vector<Prompt>& prompts,
                           const CompareOptions& options) {
  Json sequences = Json::array();
  for (size_t block = 0; block < options.temperatures.size(); ++block) {
    for (const Prompt& prompt : prompts) {
      v1::GenerateRequest request = make_request(prompt, options, options.routes.at(0), block);
      request.set_return_prompt_token_ids(true);
      auto generation = client.generate(request, {});
      if (!generation.ok()) return generation.status().with_context(prompt.name);
      const auto& ids = generation.value().started.prompt_token_ids();
      sequences.push_back({{"prompt", std::vector<int32_t>(ids.begin(), ids.end())},
                           {"output", generation.value().token_ids},
                           {"seed", options.seed + block}});
    }
  }
  return Json{{"sequences", std::move(sequences)}}.dump() + "\n";
}

}  // namespace specd::host
