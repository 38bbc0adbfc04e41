#!/usr/bin/env python3
"""layout_test.py PLUGIN_API CC: a change in a copy of the headers changes the hash of its own table
and no other; comments and white space change none; --check sees every table that is stale."""
import os
import shutil
import subprocess
import sys
import tempfile

api, cc = sys.argv[1:3]
# file, text to replace, replacement, the table whose hash changes
changes = [
    ('batch.h', '  uint64_t step_id;', '  uint64_t added;\n  uint64_t step_id;', 'core'),
    ('drafter.h', '  uint32_t n_taps;\n', '  uint32_t n_taps_renamed;\n', 'core'),
    ('drafter.h', 'uint64_t bytes_fixed;', 'int64_t bytes_fixed;', 'core'),
    ('drafter.h', 'SPECD_NEED_HIDDEN = 1u << 1', 'SPECD_NEED_HIDDEN = 1u << 3', 'core'),
    ('drafter.h', 'SPECD_END_QUARANTINED = 4', 'SPECD_END_QUARANTINED = 4,\n  SPECD_END_X = 5', 'core'),
    ('verifier.h', 'guarantee[SPECD_RULE_COUNT]', 'guarantee[4]', 'core'),
    ('host.h', 'uint64_t (*now_ns)(const specd_host *)', 'uint64_t (*now_ns)(specd_host *)', 'core'),
    ('entry.h', 'const char *host_layout, const specd_host *host,',
     'const char *host_layout, specd_host *host,', 'core'),
    ('types.h', 'typedef int32_t specd_status;', 'typedef uint32_t specd_status;', 'core'),
    ('types.h', '} specd_tensor;', '  int64_t added;\n} specd_tensor;', 'core'),
    ('services/kv.h', '  uint32_t n_queries;', '  uint32_t query_count;', 'kv'),
    ('services/memory.h', 'uint64_t bytes, uint64_t align,', 'uint64_t bytes, uint32_t align,', 'memory'),
    ('services/metrics.h', 'SPECD_METRIC_GAUGE = 1', 'SPECD_METRIC_GAUGE = 2', 'metrics'),
    ('services/model.h', '  uint32_t n_outputs;', '  uint32_t n_outputs_renamed;', 'model'),
    ('services/ops.h', '  uint32_t skip_flags;', '  uint32_t skipped_flags;', 'ops'),
    ('services/parts.h', '  const char *data_dir;', '  const char *folder;', 'parts'),
    ('services/target.h', 'specd_matrix **out', 'specd_matrix **head', 'target'),
    ('services/weights.h', 'uint32_t n, int64_t n_out', 'uint64_t n, int64_t n_out', 'weights'),
    ('services/pool.h', '(void *ctx, uint32_t index)', '(void *ctx, uint64_t index)', 'pool'),
    ('services/rng.h', '"specd.host.rng/1#"', '"specd.host.rng/2#"', 'rng'),
    ('types.h', 'typedef struct specd_tensor {', '/* A comment. */\ntypedef struct specd_tensor {', None),
    ('services/rng.h', 'typedef struct specd_rng {', '/* A comment. */\ntypedef struct specd_rng {', None),
    ('batch.h', '  uint64_t step_id;', '  uint64_t   step_id ;', None),
]
failures = 0


def fail(text):
    global failures
    failures += 1
    print(text)


def layout_py(folder, *options):
    return subprocess.run([sys.executable, os.path.join(api, 'abi', 'layout.py'), *options,
                           '--include', os.path.join(folder, 'include'),
                           '--tables', os.path.join(folder, 'abi'), '--cc', cc],
                          text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def hashes(folder):
    result = layout_py(folder, '--hash')
    if result.returncode != 0:
        sys.exit(result.stdout)
    return dict(line.split() for line in result.stdout.splitlines())


def header(folder, name):
    return os.path.join(folder, 'include', 'specd', 'plugin_api', name)


def edit(path, old, new):
    with open(path, encoding='utf-8') as file:
        text = file.read()
    if old not in text:
        sys.exit(f'{path} no longer contains "{old}"; bring this test up to date')
    with open(path, 'w', encoding='utf-8') as file:
        file.write(text.replace(old, new, 1))


def copy(folder):
    shutil.copytree(api, folder, dirs_exist_ok=True)
    return folder


original = hashes(api)
services = sorted(name[:-2] for name in os.listdir(header(api, 'services')))
if sorted(original) != sorted(['core'] + services):
    fail(f'tables {sorted(original)}, expected core and {services}')
if missing := set(original) - {table for *_, table in changes}:
    fail(f'no change of the table {sorted(missing)} is tried')
for name, old, new, table in changes:
    with tempfile.TemporaryDirectory() as folder:
        edit(header(copy(folder), name), old, new)
        found = hashes(folder)
        changed = sorted(each for each in original if found.get(each) != original[each])
        if changed != ([] if table is None else [table]) or set(found) != set(original):
            fail(f'{name}: "{old}" -> "{new}": the hashes of {changed} changed, expected {table}')
        check = layout_py(folder, '--check')
        if (check.returncode == 0) != (table is None):
            fail(f'{name}: "{old}" -> "{new}": --check returned {check.returncode}:\n{check.stdout}')

with tempfile.TemporaryDirectory() as folder:  # a service more, and one less
    shutil.copy(header(copy(folder), 'services/rng.h'), header(folder, 'services/dice.h'))
    for old, new in (('SPECD_SERVICE_RNG', 'SPECD_SERVICE_DICE'), ('SPECD_RNG_', 'SPECD_DICE_'),
                     ('SERVICES_RNG_H', 'SERVICES_DICE_H'), ('SERVICES_RNG_H', 'SERVICES_DICE_H'),
                     ('enum { SPECD_PURPOSE_DRAFT = 1, SPECD_PURPOSE_ACCEPT = 2, '
                      'SPECD_PURPOSE_RESIDUAL = 3 };', ''),
                     ('typedef struct specd_rng {', 'typedef struct specd_dice {'),
                     ('} specd_rng;', '} specd_dice;')):
        edit(header(folder, 'services/dice.h'), old, new)
    os.remove(header(folder, 'services/pool.h'))
    found = hashes(folder)
    wanted = {each: layout for each, layout in original.items() if each != 'pool'}
    if {each: found.get(each) for each in wanted} != wanted or set(found) - set(wanted) != {'dice'}:
        fail(f'a service more and one less: {found}, expected dice and {wanted}')
    check = layout_py(folder, '--check')
    for words in ('services/dice.txt is stale', 'services/pool.txt belongs to no header'):
        if check.returncode == 0 or words not in check.stdout:
            fail(f'--check returned {check.returncode} and does not say "{words}":\n{check.stdout}')
    layout_py(folder, '--write')
    check = layout_py(folder, '--check')
    if check.returncode != 0:
        fail(f'--check after --write returned {check.returncode}:\n{check.stdout}')

with tempfile.TemporaryDirectory() as folder:  # two tables must not share a type
    edit(header(copy(folder), 'services/pool.h'), '#include <specd/plugin_api/types.h>',
         '#include <specd/plugin_api/services/rng.h>')
    result = layout_py(folder, '--hash')
    if result.returncode == 0 or 'services/pool.h includes services/rng.h' not in result.stdout:
        fail(f'a service that includes another one: {result.returncode}:\n{result.stdout}')

print(f'{len(changes) + 2} changes, {failures} judged wrongly')
sys.exit(1 if failures else 0)
