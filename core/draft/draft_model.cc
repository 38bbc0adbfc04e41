#include "core/draft/draft_model.h"

#include <algorithm>
#include <string_view>

#include "core/model/checkpoint.h"
#include "core/model/generation_config.h"

namespace specd {
namespace {

// Quotes and escapes a token: tokens are bytes and often not whole characters.
std::string shown(std::string_view bytes) {
  static constexpr char kHex[] = "0123456789abcdef";
  if (bytes.empty()) return "no token";
  std::string out = "'";
  for (const char c : bytes.substr(0, 60)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7F) {
      out += c;
    } else {
      out += "\\x";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    }
  }
  return out + (bytes.size() > 60 ? "...'" : "'");
}

std::string id_or_none(int32_t id) { return id < 0 ? "none" : std::to_string(id); }

}  // namespace

Status check_same_tokens(const DraftTarget& target, const ModelConfig& draft,
                         const Tokenizer& draft_tokenizer) {
  const auto differ = [](const std::string& what, const std::string& of_target,
                         const std::string& of_draft) {
    return Status(Code::kFailedPrecondition,
                  "its tokens are not the target's: " + what + " is " + of_target +
                      " in the target, " + of_draft +
                      " here; use a draft model with the same tokenizer");
  };
  const int32_t n = std::min(target.tokenizer.vocab_size(), draft_tokenizer.vocab_size());
  for (int32_t id = 0; id < n; ++id) {
    const std::string_view a = target.tokenizer.token_bytes(id);
    const std::string_view b = draft_tokenizer.token_bytes(id);
    if (a != b) return differ("id " + std::to_string(id), shown(a), shown(b));
  }
  if (target.config.bos_token != draft.bos_token) {
    return differ("the BOS id", id_or_none(target.config.bos_token), id_or_none(draft.bos_token));
  }
  // EOS ids may differ: only the target's end the text.
  return Status();
}

std::unique_ptr<DraftModel> check_draft_model(const std::string& name, const std::string& path,
                                              kernels::KvDType kv_dtype,
                                              const DraftTarget& target) {
  auto model = std::make_unique<DraftModel>();
  model->name = name;
  model->path = path;
  model->kv_dtype = kv_dtype;
  model->kv.owner = "draft model '" + name + "'";
  model->target_vocab_size = target.config.vocab_size;
  const auto check = [&]() -> Status {
    SPECD_TRY(model->config, load_model_config(path));
    model->kv.positions_max = model->config.max_positions;
    SPECD_OK_OR_RETURN(load_eos_tokens(path, model->config.vocab_size, model->config.eos_tokens));
    SPECD_TRY(const auto tokenizer, Tokenizer::load(path + "/tokenizer.json"));
    SPECD_OK_OR_RETURN(check_vocabulary(path, model->config, *tokenizer));
    SPECD_OK_OR_RETURN(check_same_tokens(target, model->config, *tokenizer));
    SPECD_TRY(const Checkpoint weights, Checkpoint::open(path));
    SPECD_OK_OR_RETURN(check_tensors(weights, model->config));
    model->facts.fill(name, model->config, *tokenizer);
    model->facts.info.vocab_size =
        static_cast<uint32_t>(std::min(model->config.vocab_size, target.config.vocab_size));
    return Status();
  };
  model->status = check();
  return model;
}

void load_draft_model(DraftModel& model, Device& target_device, const KvStore& pages,
                      int32_t rows_max, int32_t outputs_max,
                      const std::function<void(double)>& progress) {
  const RankLinks links = model.lead == nullptr ? RankLinks() : model.lead->links_of(model.number);
  Device& device = model.device == nullptr ? target_device : *model.device;
  const auto load = [&]() -> Status {
    const ModelConfig part = part_of(model.config, links.split);
    const int32_t n_own = model.has_own_pages ? pages.n_pages() : 0;
    if (model.lead != nullptr) model.lead->make_pages(model.number, n_own);
    SPECD_TRY(model.kv.store,
              agreed(links.all, n_own > 0 ? KvStore::create(device, part, model.kv_dtype, n_own)
                                          : KvStore::inside(pages, part, model.kv_dtype)));
    if (n_own > 0) {
      model.kv.own_pages = std::make_unique<PagePool>(n_own);
      model.own_page_bytes = gathered(links.all, model.kv.store->bytes());
    }
    if (model.lead != nullptr) model.lead->load(model.number);
    SPECD_TRY(model.transformer,
              agreed(links.all, Transformer::load(device, model.path, model.config, rows_max,
                                                  outputs_max, progress, links)));
    model.transformer->gather_bytes();
    return Status();
  };
  model.rows_max = rows_max;
  model.outputs_max = outputs_max;
  if (model.status.ok()) model.status = load();
  if (model.status.ok()) return;
  model.kv.store.reset();
  model.kv.own_pages.reset();
}

}  // namespace specd
