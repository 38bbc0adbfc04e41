/* A drafter with a head of one matrix, on any device: the token that the head finds most likely for
 * the target's last hidden state. The head is a tensor of the plugin's own weights or, without
 * `weights`, the target's output head. Then the proposal is the root token again, because the last
 * state is the one that predicted it; in host memory this is checked for greedy sequences. */
#include <specd/plugin_api/entry.h>
#include <specd/plugin_api/services/memory.h>
#include <specd/plugin_api/services/ops.h>
#include <specd/plugin_api/services/target.h>
#include <specd/plugin_api/services/weights.h>
#include <string.h>

struct specd_drafter {
  const specd_host *host;
  const specd_memory *memory;
  const specd_ops *ops;
  const specd_weights_api *weights_api;
  const specd_target_api *target_api;
  specd_owner *owner;
  specd_weights *weights; /* NULL: the target's head */
  const char *tensor;
  int64_t vocab, width;
  specd_drafter_grant grant;
  specd_matrix *head;
  specd_tensor state;  /* [max_batch, width]: a sequence's last hidden state, by slot */
  specd_tensor x;      /* [max_batch, width] */
  specd_tensor logits; /* [max_batch, vocab] */
};

static const char *const services[] = {SPECD_SERVICE_MEMORY, SPECD_SERVICE_OPS,
                                       SPECD_SERVICE_WEIGHTS, SPECD_SERVICE_TARGET};
static const char schema[] =
    "{\"type\": \"object\", \"additionalProperties\": false, \"properties\": {"
    "\"weights\": {\"type\": \"string\"}, \"tensor\": {\"type\": \"string\"}}}";

static void report(const specd_host *host, specd_call *call, const char *text) {
  host->report(host, call, -1, text, strlen(text));
}

/* Opens the weights, if there are any, and names the head among them. */
static specd_status open_weights(const specd_host *host, specd_owner *owner,
                                 const specd_config *config, specd_weights **weights,
                                 const char **tensor) {
  const specd_weights_api *api = host->get_service(host, SPECD_SERVICE_WEIGHTS);
  specd_status status;
  if (api == NULL) return SPECD_E_UNSUPPORTED;
  *tensor = "lm_head.weight";
  config->get_str(config, "tensor", tensor, NULL);
  *weights = NULL;
  status = api->open(host, owner, config, "weights", weights);
  return status == SPECD_E_PRECONDITION ? SPECD_OK : status;
}

static specd_status describe(const specd_factory *factory, const specd_host *host,
                             const specd_target_info *target, const specd_config *config,
                             specd_drafter_caps *out) {
  const specd_weights_api *api = host->get_service(host, SPECD_SERVICE_WEIGHTS);
  const uint64_t width = target->hidden_size, vocab = target->vocab_size;
  specd_weights *weights = NULL;
  const char *tensor = NULL;
  const specd_status status = open_weights(host, NULL, config, &weights, &tensor);
  (void)factory;
  if (status != SPECD_OK) return status;
  out->struct_size = sizeof *out;
  out->tree_mode = SPECD_TREE_CHAIN;
  out->needs = SPECD_NEED_HOST_TOKENS | SPECD_NEED_HIDDEN;
  out->draft_rule = SPECD_RULE_POINT_MASS;
  out->attach_modes = SPECD_ATTACH_FRESH;
  out->device_types = 1u << SPECD_DEV_CPU | 1u << SPECD_DEV_CUDA;
  out->features = SPECD_FEATURE_CAPTURE;
  out->max_nodes = out->max_depth = 1;
  out->taps[0] = target->n_layers + 1; /* after the final norm */
  out->n_taps = 1;
  out->services = services;
  out->n_services = sizeof services / sizeof *services;
  out->bytes_fixed = sizeof(struct specd_drafter);
  out->bytes_per_seq = (2 * width + vocab) * sizeof(float);
  if (weights != NULL) {
    specd_tensor head;
    if (api->find(host, weights, tensor, 0, NULL, &head) != SPECD_OK || head.rank != 2 ||
        head.shape[0] != target->vocab_size || head.shape[1] != target->hidden_size) {
      report(host, NULL, "tensor: expected a tensor of [vocab_size, hidden_size] in the weights");
      return SPECD_E_CONFIG;
    }
    out->bytes_fixed += head.byte_capacity;
  }
  return SPECD_OK;
}

static specd_status create(const specd_factory *factory, const specd_host *host,
                           const specd_create_args *args, specd_drafter **out) {
  const specd_memory *memory = host->get_service(host, SPECD_SERVICE_MEMORY);
  specd_drafter *self = NULL;
  void *block = NULL;
  size_t bytes = sizeof *self;
  specd_status status;
  (void)factory;
  status = memory->alloc(host, args->owner, SPECD_DEV_CPU, 0, bytes, 16, &block);
  if (status != SPECD_OK) return status;
  self = block;
  memset(self, 0, sizeof *self);
  self->host = host;
  self->memory = memory;
  self->ops = host->get_service(host, SPECD_SERVICE_OPS);
  self->weights_api = host->get_service(host, SPECD_SERVICE_WEIGHTS);
  self->target_api = host->get_service(host, SPECD_SERVICE_TARGET);
  self->owner = args->owner;
  self->vocab = args->target->vocab_size;
  self->width = args->target->hidden_size;
  status = open_weights(host, args->owner, args->config, &self->weights, &self->tensor);
  if (status == SPECD_OK && self->weights != NULL) {
    /* The configuration ends with this call; the name in the file does not. */
    specd_tensor head;
    const char *name = NULL;
    for (uint32_t i = 0; status != SPECD_E_PRECONDITION; ++i) {
      status = self->weights_api->find(host, self->weights, NULL, i, &name, &head);
      if (status == SPECD_OK && strcmp(name, self->tensor) == 0) break;
    }
    self->tensor = name;
  }
  if (status != SPECD_OK) {
    memory->free(host, args->owner, self);
    return status;
  }
  *out = self;
  return SPECD_OK;
}

static specd_status make_buffer(specd_drafter *self, int64_t width, specd_tensor *out) {
  const int64_t rows = self->grant.max_batch;
  const uint64_t bytes = (uint64_t)rows * (uint64_t)width * sizeof(float);
  memset(out, 0, sizeof *out);
  out->struct_size = sizeof *out;
  out->dtype_code = SPECD_DT_FLOAT;
  out->dtype_bits = 32;
  out->dtype_lanes = 1;
  out->device_type = self->grant.device_type;
  out->device_index = self->grant.device_index;
  out->rank = 2;
  out->byte_capacity = bytes;
  out->shape[0] = rows;
  out->shape[1] = out->stride[0] = width;
  out->stride[1] = 1;
  return self->memory->alloc(self->host, self->owner, self->grant.device_type,
                             self->grant.device_index, bytes, 64, &out->data);
}

static specd_status activate(specd_drafter *self, const specd_drafter_grant *grant) {
  specd_status status;
  self->grant = *grant;
  status = make_buffer(self, self->width, &self->state);
  if (status == SPECD_OK) status = make_buffer(self, self->width, &self->x);
  if (status == SPECD_OK) status = make_buffer(self, self->vocab, &self->logits);
  if (status != SPECD_OK) return status;
  if (self->weights == NULL) return self->target_api->head(self->host, self->owner, &self->head);
  return self->weights_api->matrix(self->host, self->owner, self->weights, &self->tensor, 1,
                                   self->vocab, self->width, &self->head);
}

static specd_status begin(specd_drafter *self, const specd_begin_args *args) {
  (void)self;
  for (uint32_t s = 0; s < args->batch->n_seqs; ++s) args->seq_state[s] = NULL;
  return SPECD_OK;
}

static specd_status update(specd_drafter *self, const specd_update_args *args) {
  return self->ops->copy(self->host, args->batch->call, args->hidden[0], args->last_hidden_row,
                         &self->state, args->batch->slots);
}

/* The first n rows. */
static specd_tensor rows_of(const specd_tensor *tensor, uint32_t n) {
  specd_tensor rows = *tensor;
  rows.shape[0] = n;
  return rows;
}

static specd_status propose(specd_drafter *self, const specd_propose_args *args) {
  const specd_batch *batch = args->batch;
  const specd_tensor x = rows_of(&self->x, batch->n_seqs);
  const specd_tensor logits = rows_of(&self->logits, batch->n_seqs);
  specd_status status =
      self->ops->copy(self->host, batch->call, &self->state, batch->slots, &x, NULL);
  if (status == SPECD_OK) {
    status = self->ops->linear(self->host, batch->call, self->head, &x, NULL, &logits);
  }
  if (status == SPECD_OK) {
    status = self->ops->topk(self->host, batch->call, &logits, args->out->token, NULL);
  }
  if (status != SPECD_OK || self->grant.device_type != SPECD_DEV_CPU) return status;
  for (uint32_t s = 0; s < batch->n_seqs; ++s) {
    const int32_t *token = args->out->token->data;
    if ((args->sampling[s]->flags & SPECD_SAMPLE_GREEDY) == 0) continue;
    if (token[s] == args->host_root_token[s]) continue;
    report(self->host, batch->call, "the head of the last state did not give the root token");
    return SPECD_E_INTERNAL;
  }
  return SPECD_OK;
}

static void end(specd_drafter *self, const specd_end_args *args) {
  (void)self;
  (void)args;
}

static void deactivate(specd_drafter *self) { (void)self; }

static void destroy(specd_drafter *self) {
  self->memory->free(self->host, self->owner, self->state.data);
  self->memory->free(self->host, self->owner, self->x.data);
  self->memory->free(self->host, self->owner, self->logits.data);
  self->memory->free(self->host, self->owner, self);
}

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
static const specd_factory head = {
    .struct_size = sizeof(specd_factory),
    .id = "head",
    .description = "the most likely token of a head of one matrix",
    .config_schema = schema,
    .drafter = &api,
};
static const specd_factory *const factories[] = {&head};

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
    .description = "Test: a head of one matrix, in plain C",
    .factories = factories,
    .init = init,
};

specd_status specd_plugin_entry_v0(const char *host_layout, const specd_host *host,
                                   const specd_plugin **out) {
  (void)host;
  *out = &plugin;
  return strcmp(host_layout, SPECD_ABI_LAYOUT) == 0 ? SPECD_OK : SPECD_E_ABI;
}
