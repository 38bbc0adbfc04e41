/* A small plugin in C, good by default; each FIXTURE_ macro breaks one rule of the boundary. What
 * one instance does wrong is chosen by the configuration key `mode`. */
#include <specd/plugin_api/entry.h>
#include <specd/plugin_api/services/memory.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef FIXTURE_SLEEPS
static int is_awake = 0;
__attribute__((constructor)) static void constructor(void) {
  sleep(1);
  is_awake = 1;
}
#endif
#ifdef FIXTURE_EXITS
__attribute__((constructor)) static void constructor(void) { exit(0); }
#endif
#ifdef FIXTURE_THROWS
void fixture_throw(void);
__attribute__((constructor)) static void constructor(void) { fixture_throw(); }
#endif

#ifdef FIXTURE_NEEDS_ABSENT
int specd_absent(void);
#endif
#ifdef FIXTURE_UNDEFINED
int specd_test_symbol_that_nobody_defines(void);
#endif

#ifndef FIXTURE_ID
#define FIXTURE_ID "org.example.fixture"
#endif
#ifdef FIXTURE_NEWER
#define FIXTURE_VERSION "2.0.0"
#else
#define FIXTURE_VERSION "1.0.0"
#endif

struct specd_drafter {
  const specd_host *host;
  specd_owner *owner;
  char mode[32];
  char log[256]; /* of what happens to the instance, a word a line; may be empty */
  int32_t vocab;
};
struct specd_verifier {
  int unused;
};

/* Of the pair whose drafter was described last: a file for the name of each control call, the call
 * that takes 2 s, or until the file `until` is there, and whether the verifier cannot be made. */
static char calls[256], slow[32], until[256];
static int verifier_fails = 0;

static int n_init = 0;

static const char *mode_of(const specd_config *config) {
  const char *mode = "plain";
  config->get_str(config, "mode", &mode, NULL);
  return mode;
}

static int is_mode(const specd_config *config, const char *mode) {
  return strcmp(mode_of(config), mode) == 0;
}

static void append(const char *path, const char *word) {
  FILE *file = path[0] == 0 ? NULL : fopen(path, "a");
  if (file == NULL) return;
  fprintf(file, "%s\n", word);
  fclose(file);
}
static void note(const struct specd_drafter *self, const char *word) { append(self->log, word); }

static void enter(const char *call) {
  append(calls, call);
  if (strcmp(slow, call) != 0) return;
  if (until[0] == 0) {
    sleep(2);
  } else {
    while (access(until, F_OK) != 0) sleep(1);
  }
}

static void take_text(const specd_config *config, const char *key, char *out, size_t bytes) {
  const char *text = "";
  config->get_str(config, key, &text, NULL);
  strncpy(out, text, bytes - 1);
}

enum { HELD_BYTES = 4 << 20 };

static specd_status describe(const specd_factory *factory, const specd_host *host,
                             const specd_target_info *target, const specd_config *config,
                             specd_drafter_caps *out) {
  static const char *const no_services[] = {"org.example.absent/1"};
  static const char *const memory_service[] = {SPECD_SERVICE_MEMORY};
  (void)factory, (void)target;
  take_text(config, "calls", calls, sizeof calls);
  take_text(config, "slow", slow, sizeof slow);
  take_text(config, "until", until, sizeof until);
  verifier_fails = is_mode(config, "verifier_fails");
  enter("describe");
  if (is_mode(config, "describe_refuses")) {
    static const char text[] = "this model is not mine";
    host->report(host, NULL, -1, text, sizeof text - 1);
    return SPECD_E_UNSUPPORTED;
  }
  if (is_mode(config, "refuses_key") || is_mode(config, "refuses_note")) {
    const char *text = is_mode(config, "refuses_key") ? "depth: too deep" : "note: too deep";
    host->report(host, NULL, -1, text, strlen(text));
    return SPECD_E_CONFIG;
  }
  out->tree_mode = is_mode(config, "static_bad") || is_mode(config, "static_good")
                       ? SPECD_TREE_STATIC
                       : SPECD_TREE_CHAIN;
  out->needs = SPECD_NEED_HOST_TOKENS;
  out->draft_rule = SPECD_RULE_POINT_MASS;
  out->attach_modes = SPECD_ATTACH_FRESH;
  out->device_types = is_mode(config, "no_device") ? 1u << 9 : 1u << SPECD_DEV_CPU;
  out->max_nodes = 8;
  out->max_depth = 8;
  out->bytes_fixed = 1024;
  if (is_mode(config, "hold")) out->bytes_fixed = HELD_BYTES;
  if (is_mode(config, "unknown_bits")) out->needs |= 1u << 20;
  if (is_mode(config, "absent_service")) {
    out->services = no_services;
    out->n_services = 1;
  }
  if (is_mode(config, "needs_memory")) {
    out->services = memory_service;
    out->n_services = 1;
  }
  if (is_mode(config, "bad_tap")) {
    out->needs |= SPECD_NEED_HIDDEN;
    out->taps[0] = 1000;
    out->n_taps = 1;
  }
  return SPECD_OK;
}

static specd_status create(const specd_factory *factory, const specd_host *host,
                           const specd_create_args *args, specd_drafter **out) {
  (void)factory;
  enter("create");
  if (is_mode(args->config, "no_instance")) return SPECD_OK;
  if (is_mode(args->config, "create_fails")) {
    static const char text[] = "the table is cut off";
    host->report(host, args->call, -1, text, sizeof text - 1);
    return SPECD_E_DATA;
  }
  struct specd_drafter *self = calloc(1, sizeof *self);
  if (self == NULL) return SPECD_E_EXHAUSTED;
  self->host = host;
  self->owner = args->owner;
  strncpy(self->mode, mode_of(args->config), sizeof self->mode - 1);
  self->vocab = (int32_t)args->target->vocab_size;
  take_text(args->config, "log", self->log, sizeof self->log);
  const specd_memory *memory = host->get_service(host, SPECD_SERVICE_MEMORY);
  void *block = NULL;
  if (memory != NULL && strcmp(self->mode, "leak") == 0) {
    memory->alloc(host, args->owner, SPECD_DEV_CPU, 0, 300, 8, &block);
  }
  /* Also left to the host to free, but all of it is used. */
  if (memory != NULL && strcmp(self->mode, "hold") == 0) {
    const specd_status status =
        memory->alloc(host, args->owner, SPECD_DEV_CPU, 0, HELD_BYTES, 64, &block);
    if (status != SPECD_OK) {
      free(self);
      return status;
    }
    memset(block, 1, HELD_BYTES);
  }
  note(self, "create");
  *out = self;
  return SPECD_OK;
}

static specd_status activate(specd_drafter *self, const specd_drafter_grant *grant) {
  (void)grant;
  enter("activate");
  note(self, "activate");
  return strcmp(self->mode, "activate_fails") == 0 ? SPECD_E_DEVICE : SPECD_OK;
}

static uint32_t static_tree(specd_drafter *self, int32_t *parent, uint32_t capacity) {
  enter("static_tree");
  if (capacity < 3) return 0;
  parent[0] = -1;
  parent[1] = strcmp(self->mode, "static_bad") == 0 ? 1 : 0;
  parent[2] = -1;
  return 3;
}

static specd_status begin(specd_drafter *self, const specd_begin_args *args) {
  for (uint32_t i = 0; i < args->batch->n_seqs; ++i) note(self, "begin");
  return SPECD_OK;
}

static specd_status update(specd_drafter *self, const specd_update_args *args) {
  (void)self, (void)args;
  return SPECD_OK;
}

/* Guesses that token t is followed by t + 1. */
static specd_status propose(specd_drafter *self, const specd_propose_args *args) {
  if (strcmp(self->mode, "status_unknown") == 0) return 12345;
  const int64_t capacity = args->out->node_capacity;
  int32_t *count = args->out->n_nodes->data, *token = args->out->token->data;
  for (uint32_t s = 0; s < args->batch->n_seqs; ++s) {
    count[s] = args->host_node_budget[s];
    for (int32_t i = 0; i < count[s]; ++i) {
      token[s * capacity + i] = (args->host_root_token[s] + i + 1) % self->vocab;
    }
  }
  if (strcmp(self->mode, "deadline") == 0) return SPECD_E_DEADLINE;
  if (strcmp(self->mode, "propose_fails") == 0) {
    self->host->report(self->host, args->batch->call, -1, "no luck", 7);
    self->host->report(self->host, args->batch->call, 0, "of this one", 11);
    return SPECD_E_INTERNAL;
  }
  return SPECD_OK;
}

static void end(specd_drafter *self, const specd_end_args *args) {
  for (uint32_t i = 0; i < args->batch->n_seqs; ++i) note(self, "end");
}
static void deactivate(specd_drafter *self) {
  enter("deactivate");
  note(self, "deactivate");
}
static void destroy(specd_drafter *self) {
  enter("destroy");
  note(self, "destroy");
  free(self);
}

static const specd_drafter_api drafter_api = {sizeof(specd_drafter_api),
                                              0,
                                              describe,
                                              create,
                                              activate,
                                              static_tree,
                                              begin,
                                              update,
#ifdef FIXTURE_NULL_FUNCTION
                                              NULL,
#else
                                              propose,
#endif
                                              end,
                                              deactivate,
                                              destroy};

static specd_status verifier_describe(const specd_factory *factory, const specd_host *host,
                                      const specd_target_info *target, const specd_config *config,
                                      specd_verifier_caps *out) {
  (void)factory, (void)host, (void)target, (void)config;
  enter("verifier describe");
  out->tree_modes = 1u << SPECD_TREE_CHAIN | 1u << SPECD_TREE_STATIC;
  out->device_types = 1u << SPECD_DEV_CPU;
  out->guarantee[SPECD_RULE_POINT_MASS] = SPECD_GUARANTEE_IDENTICAL;
  return SPECD_OK;
}

static specd_status verifier_create(const specd_factory *factory, const specd_host *host,
                                    const specd_create_args *args, specd_verifier **out) {
  static struct specd_verifier only;
  (void)factory, (void)host, (void)args;
  enter("verifier create");
  if (verifier_fails) return SPECD_E_DATA;
  *out = &only;
  return SPECD_OK;
}
static specd_status verifier_activate(specd_verifier *self, const specd_verifier_grant *grant) {
  (void)self, (void)grant;
  enter("verifier activate");
  return SPECD_OK;
}
static specd_status verify(specd_verifier *self, const specd_verify_args *args) {
  (void)self;
  for (uint32_t s = 0; s < args->batch->n_seqs; ++s) {
    ((int32_t *)args->out->n_accepted->data)[s] = 0;
    ((int32_t *)args->out->next_token->data)[s] = 0;
  }
  return SPECD_OK;
}
static void verifier_deactivate(specd_verifier *self) {
  (void)self;
  enter("verifier deactivate");
}
static void verifier_destroy(specd_verifier *self) {
  (void)self;
  enter("verifier destroy");
}

static const specd_verifier_api verifier_api = {
    sizeof(specd_verifier_api), 0,      verifier_describe,   verifier_create,
    verifier_activate,          verify, verifier_deactivate, verifier_destroy};

#ifdef FIXTURE_BAD_SCHEMA
static const char schema[] = "{\"type\": \"object\", \"oneOf\": []}";
#else
static const char schema[] =
    "{\"type\": \"object\", \"properties\": {\"mode\": {\"type\": \"string\"},"
    " \"log\": {\"type\": \"string\"},"
    " \"calls\": {\"type\": \"string\"}, \"slow\": {\"type\": \"string\"},"
    " \"until\": {\"type\": \"string\"},"
    " \"depth\": {\"type\": \"integer\", \"minimum\": 1, \"maximum\": 8}}}";
#endif

static const specd_factory next_factory = {
    sizeof(specd_factory), 0, "next", "Counts upwards", schema, &drafter_api, NULL};
static const specd_factory none_factory = {
    sizeof(specd_factory), 0, "none", "Accepts nothing", NULL, NULL, &verifier_api};
static const specd_factory *const factories[] = {&next_factory, &none_factory};

/* Only the first call is good: init() must run once per module and process. */
static specd_status init(const specd_host *host) {
  (void)host, (void)propose, (void)factories;
#ifdef FIXTURE_SLEEPS
  if (!is_awake) return SPECD_E_INTERNAL;
#endif
#ifdef FIXTURE_INIT_FAILS
  if (n_init == 0) {
    host->report(host, NULL, -1, "no device here", 14);
    n_init = 1;
    return SPECD_E_UNSUPPORTED;
  }
#endif
#ifdef FIXTURE_NEEDS_ABSENT
  n_init += specd_absent();
#endif
#ifdef FIXTURE_UNDEFINED
  n_init += specd_test_symbol_that_nobody_defines();
#endif
  return n_init++ == 0 ? SPECD_OK : SPECD_E_PRECONDITION;
}

static const specd_plugin table = {
#ifdef FIXTURE_STRUCT_SIZE
    sizeof(specd_plugin) - 8,
#else
    sizeof(specd_plugin),
#endif
    2,
#ifdef FIXTURE_OTHER_LAYOUT
    "v0-0123456789abcdef",
#else
    SPECD_ABI_LAYOUT,
#endif
    FIXTURE_ID,
    FIXTURE_VERSION,
    "Example",
    "Apache-2.0",
    "For tests",
#ifdef FIXTURE_NULL_FACTORIES
    (const specd_factory *const *)(sizeof(factories) * 0),
#else
    factories,
#endif
    init,
    NULL};

#ifdef FIXTURE_TWO_EXPORTS
SPECD_EXPORT int specd_test_second_export(void);
SPECD_EXPORT int specd_test_second_export(void) { return 2; }
#endif
#ifdef FIXTURE_NO_ENTRY
#define specd_plugin_entry_v0 specd_plugin_entry_v9
SPECD_EXPORT specd_status specd_plugin_entry_v9(const char *host_layout, const specd_host *host,
                                                const specd_plugin **out);
#endif
#ifdef FIXTURE_IFUNC_ENTRY
static specd_status real_entry(const char *host_layout, const specd_host *host,
                               const specd_plugin **out);
__attribute__((used)) static specd_status (*choose(void))(const char *, const specd_host *,
                                                          const specd_plugin **) {
  return real_entry;
}
SPECD_EXPORT specd_status specd_plugin_entry_v0(const char *host_layout, const specd_host *host,
                                                const specd_plugin **out)
    __attribute__((ifunc("choose")));
static specd_status real_entry(
#else
SPECD_EXPORT specd_status specd_plugin_entry_v0(
#endif
    const char *host_layout, const specd_host *host, const specd_plugin **out) {
  (void)host;
#ifndef FIXTURE_NO_TABLE
  *out = &table;
#else
  (void)out, (void)table;
#endif
  return strcmp(host_layout, table.layout) == 0 ? SPECD_OK : SPECD_E_ABI;
}
