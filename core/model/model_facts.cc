#include "core/model/model_facts.h"

namespace specd {

void ModelFacts::fill(const std::string& model_name, const ModelConfig& config,
                      const Tokenizer& tokenizer) {
  name = model_name;
  architecture = config.architecture;
  tokenizer_sha256 = tokenizer.sha256();
  info.struct_size = sizeof(info);
  info.vocab_size = static_cast<uint32_t>(config.vocab_size);
  info.hidden_size = static_cast<uint32_t>(config.hidden_size);
  info.n_layers = static_cast<uint32_t>(config.n_layers);
  info.n_heads = static_cast<uint32_t>(config.n_heads);
  info.n_kv_heads = static_cast<uint32_t>(config.n_kv_heads);
  info.head_dim = static_cast<uint32_t>(config.head_dim);
  info.max_positions = static_cast<uint32_t>(config.max_positions);
  info.bos_token = config.bos_token;
  info.eos_token = config.eos_tokens.empty() ? -1 : config.eos_tokens.front();
  info.norm_eps = static_cast<float>(config.rms_norm_eps);
  info.model_id = name.c_str();
  info.architecture = architecture.c_str();
  info.tokenizer_sha256 = tokenizer_sha256.data();
}

Status check_vocabulary(const std::string& path, const ModelConfig& config,
                        const Tokenizer& tokenizer) {
  if (tokenizer.vocab_size() <= config.vocab_size) return Status();
  return Status(Code::kDataLoss, path + ": tokenizer.json has ids up to " +
                                     std::to_string(tokenizer.vocab_size() - 1) +
                                     ", config.json says vocab_size " +
                                     std::to_string(config.vocab_size));
}

}  // namespace specd
