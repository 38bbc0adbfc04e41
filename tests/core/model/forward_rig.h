// A model, a cache and hand-made rows: the least that runs a forward without an engine.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <memory>
#include <numeric>
#include <random>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "core/kv/block_table.h"
#include "core/model/transformer.h"

namespace specd {

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

inline int32_t argmax(const std::vector<float>& row) {
  return static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
}

// KiB of anonymous memory that loading a model adds, at its peak as another thread sees it.
inline long allocated_by_loading(const std::string& path) {
  const auto allocated = [] {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("RssAnon:")) return std::stol(line.substr(8));
    }
    return 0L;
  };
  const ModelConfig config = load_model_config(path).value();
  const auto device = CpuDevice::create("", 1).value();
  const long before = allocated();
  long most = 0;
  std::jthread watch([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) most = std::max(most, allocated());
  });
  const auto model = Transformer::load(*device, path, config, 1, 1, {});
  watch.request_stop();
  watch.join();
  EXPECT_TRUE(model.ok()) << model.status().message();
  return std::max(most, allocated()) - before;
}

struct ForwardRig {
  std::unique_ptr<CpuDevice> device;
  ModelConfig config;
  std::unique_ptr<Transformer> model;
  std::unique_ptr<KvStore> kv;
  BlockTable table;
  ForwardRows rows;

  // name: a model of the zoo, or a folder. shuffle: pages of the sequence lie in the cache in random
  // order.
  ForwardRig(const std::string& name, const std::string& isa, int32_t threads, bool shuffle,
             kernels::KvDType kv_dtype = kernels::KvDType::kF32, int32_t rows_max = 300) {
    device = CpuDevice::create(isa, threads).value();
    const std::string path =
        name.find('/') == std::string::npos ? std::string(SPECD_TEST_ZOO) + "/" + name : name;
    config = load_model_config(path).value();
    model = Transformer::load(*device, path, config, rows_max, rows_max, {}).value();
    constexpr int32_t kPages = 40;
    kv = std::make_unique<KvStore>(KvStore::create(*device, config, kv_dtype, kPages).value());
    table.pages.resize(kPages);
    std::iota(table.pages.begin(), table.pages.end(), 0);
    if (shuffle) std::shuffle(table.pages.begin(), table.pages.end(), std::mt19937(7));
  }

  void add(int32_t token, int32_t position, int32_t slot, int32_t span,
           const std::vector<int32_t>& tail_slots = {}) {
    if (rows.pages.empty()) rows.pages = table.pages;
    rows.logits_rows.push_back(rows.n_rows());
    rows.token.push_back(token);
    rows.position.push_back(position);
    rows.slot.push_back(table.physical(slot));
    rows.span.push_back(span);
    rows.table.push_back(0);
    rows.tail_begin.push_back(static_cast<int32_t>(rows.tail.size()));
    for (const int32_t each : tail_slots) rows.tail.push_back(table.physical(each));
  }
  // A causal span of tokens from `position` on.
  void add_span(const std::vector<int32_t>& tokens, int32_t position) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      const int32_t p = position + static_cast<int32_t>(i);
      add(tokens[i], p, p, p + 1);
    }
  }
  // Runs what was added and forgets it.
  std::vector<std::vector<float>> run() {
    model->forward(rows.in_place(), *kv);
    std::vector<std::vector<float>> logits;
    const auto width = static_cast<size_t>(config.vocab_size);
    for (size_t i = 0; i < rows.logits_rows.size(); ++i) {
      logits.emplace_back(model->logits() + i * width, model->logits() + (i + 1) * width);
    }
    rows.clear();
    return logits;
  }
};

inline std::vector<int32_t> some_tokens(int32_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> tokens(static_cast<size_t>(n));
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 4096);
  return tokens;
}

inline std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const kernels::Isa isa :
       {kernels::Isa::kScalar, kernels::Isa::kAvx2, kernels::Isa::kAvx512}) {
    if (kernels::isa_available(isa)) names.push_back(kernels::isa_name(isa));
  }
  return names;
}

}  // namespace specd
