/* A bigram drafter in C11: remembers for every token the token that last followed it, and guesses
 * that it will follow again. One array of vocab_size per sequence. */
#include <specd/plugin_api/entry.h>
#include <specd/plugin_api/services/memory.h>
#include <string.h>

enum { MAX_DRAFT = 64 };

struct specd_drafter {
  const specd_host *host;
  const specd_memory *memory;
  specd_owner *owner;
  uint32_t vocab_size;
  uint32_t draft_tokens;
};

static const char *const services[] = {SPECD_SERVICE_MEMORY};
static const char schema[] =
    "{\"type\": \"object\", \"additionalProperties\": false, \"properties\": {"
    "\"draft_tokens\": {\"type\": \"integer\", \"minimum\": 1, \"maximum\": 64}}}";

static void report(const specd_host *host, specd_call *call, int32_t seq, const char *text) {
  host->report(host, call, seq, text, strlen(text));
}

static specd_status read_draft_tokens(const specd_host *host, const specd_config *config,
                                      uint32_t *out) {
  int64_t value = 4;
  const specd_status status = config->get_i64(config, "draft_tokens", &value);
  if (status != SPECD_E_PRECONDITION && (status != SPECD_OK || value < 1 || value > MAX_DRAFT)) {
    report(host, NULL, -1, "draft_tokens: expected an integer from 1 to 64");
    return SPECD_E_CONFIG;
  }
  *out = (uint32_t)value;
  return SPECD_OK;
}

static specd_status describe(const specd_factory *factory, const specd_host *host,
                             const specd_target_info *target, const specd_config *config,
                             specd_drafter_caps *out) {
  uint32_t draft_tokens = 0;
  const specd_status status = read_draft_tokens(host, config, &draft_tokens);
  (void)factory;
  if (status != SPECD_OK) return status;
  out->struct_size = sizeof *out;
  out->tree_mode = SPECD_TREE_CHAIN;
  out->needs = SPECD_NEED_HOST_TOKENS;
  out->draft_rule = SPECD_RULE_POINT_MASS;
  out->attach_modes = SPECD_ATTACH_FRESH | SPECD_ATTACH_TOKENS | SPECD_ATTACH_COLD;
  out->device_types = 1u << SPECD_DEV_CPU;
  out->max_nodes = draft_tokens;
  out->max_depth = draft_tokens;
  out->services = services;
  out->n_services = 1;
  out->bytes_per_seq = (uint64_t)target->vocab_size * sizeof(int32_t);
  return SPECD_OK;
}

static specd_status create(const specd_factory *factory, const specd_host *host,
                           const specd_create_args *args, specd_drafter **out) {
  const specd_memory *memory = host->get_service(host, SPECD_SERVICE_MEMORY);
  specd_drafter *self = NULL;
  void *block = NULL;
  specd_status status;
  (void)factory;
  if (memory == NULL) return SPECD_E_UNSUPPORTED;
  status = memory->alloc(host, args->owner, SPECD_DEV_CPU, 0, sizeof *self, 16, &block);
  if (status != SPECD_OK) return status;
  self = block;
  self->host = host;
  self->memory = memory;
  self->owner = args->owner;
  self->vocab_size = args->target->vocab_size;
  status = read_draft_tokens(host, args->config, &self->draft_tokens);
  if (status != SPECD_OK) {
    memory->free(host, args->owner, self);
    return status;
  }
  *out = self;
  return SPECD_OK;
}

static specd_status activate(specd_drafter *self, const specd_drafter_grant *grant) {
  (void)self;
  return grant->device_type == SPECD_DEV_CPU ? SPECD_OK : SPECD_E_UNSUPPORTED;
}

static specd_status begin(specd_drafter *self, const specd_begin_args *args) {
  const specd_batch *batch = args->batch;
  for (uint32_t s = 0; s < batch->n_seqs; ++s) {
    const int32_t *tokens = args->tokens + args->token_offsets[s];
    const uint64_t n = args->token_offsets[s + 1] - args->token_offsets[s];
    void *block = NULL;
    int32_t *follower;
    batch->seq_status[s] =
        self->memory->alloc(self->host, self->owner, SPECD_DEV_CPU, 0,
                            (uint64_t)self->vocab_size * sizeof *follower, 16, &block);
    if (batch->seq_status[s] != SPECD_OK) {
      report(self->host, batch->call, (int32_t)s, "no memory for the table of followers");
      continue;
    }
    follower = block;
    for (uint32_t t = 0; t < self->vocab_size; ++t) follower[t] = -1;
    for (uint64_t i = 0; i + 1 < n; ++i) follower[tokens[i]] = tokens[i + 1];
    args->seq_state[s] = follower;
  }
  return SPECD_OK;
}

static specd_status update(specd_drafter *self, const specd_update_args *args) {
  (void)self;
  for (uint32_t s = 0; s < args->batch->n_seqs; ++s) {
    int32_t *follower = args->batch->seq_state[s];
    for (uint32_t row = args->row_offsets[s]; row < args->row_offsets[s + 1]; ++row) {
      follower[args->host_token[row]] = args->host_next_token[row];
    }
  }
  return SPECD_OK;
}

static specd_status propose(specd_drafter *self, const specd_propose_args *args) {
  int32_t *count = args->out->n_nodes->data;
  int32_t *token = args->out->token->data;
  for (uint32_t s = 0; s < args->batch->n_seqs; ++s) {
    const int32_t *follower = args->batch->seq_state[s];
    int32_t *row = token + (size_t)s * args->out->node_capacity;
    int32_t limit = args->host_node_budget[s];
    int32_t at = args->host_root_token[s];
    int32_t n = 0;
    if (limit > (int32_t)self->draft_tokens) limit = (int32_t)self->draft_tokens;
    while (n < limit && follower[at] >= 0) {
      at = follower[at];
      row[n++] = at;
    }
    count[s] = n;
  }
  return SPECD_OK;
}

static void end(specd_drafter *self, const specd_end_args *args) {
  for (uint32_t s = 0; s < args->batch->n_seqs; ++s) {
    self->memory->free(self->host, self->owner, args->batch->seq_state[s]);
  }
}

static void deactivate(specd_drafter *self) { (void)self; }

static void destroy(specd_drafter *self) { self->memory->free(self->host, self->owner, self); }

static const specd_drafter_api api = {
    .struct_size = sizeof(specd_drafter_api),
    .describe = describe,
    .create = create,
    .activate = activate,
    .begin = begin,
    .update = update,
    .propose = propose,
    .end = end,
    .deactivate = deactivate,
    .destroy = destroy,
};
static const specd_factory bigram = {
    .struct_size = sizeof(specd_factory),
    .id = "bigram",
    .description = "the token that followed last time",
    .config_schema = schema,
    .drafter = &api,
};
static const specd_factory *const factories[] = {&bigram};

static specd_status init(const specd_host *host) {
  (void)host;
  return SPECD_OK;
}

static const specd_plugin plugin = {
    .struct_size = sizeof(specd_plugin),
    .n_factories = 1,
    .layout = SPECD_ABI_LAYOUT,
    .id = SPECD_PLUGIN_ID,
    .version = SPECD_PLUGIN_VERSION,
    .vendor = SPECD_PLUGIN_VENDOR,
    .license = SPECD_PLUGIN_LICENSE,
    .description = "Bigram drafter in plain C",
    .factories = factories,
    .init = init,
};

specd_status specd_plugin_entry_v0(const char *host_layout, const specd_host *host,
                                   const specd_plugin **out) {
  (void)host;
  *out = &plugin;
  return strcmp(host_layout, SPECD_ABI_LAYOUT) == 0 ? SPECD_OK : SPECD_E_ABI;
}
