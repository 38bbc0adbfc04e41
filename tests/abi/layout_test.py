#!/usr/bin/env python3
"""layout_test.py PLUGIN_API CC: every kind of change to a copy of the headers changes the hash, and
changes of comments and layout of the text do not."""
import os
import shutil
import subprocess
import sys
import tempfile

api, cc = sys.argv[1:3]
# file, text to replace, replacement, whether the layout changes
changes = [
    ('batch.h', '  uint64_t step_id;', '  uint64_t added;\n  uint64_t step_id;', True),
    ('drafter.h', '  uint32_t n_taps;\n', '  uint32_t n_taps_renamed;\n', True),
    ('drafter.h', 'uint64_t bytes_fixed;', 'int64_t bytes_fixed;', True),
    ('drafter.h', 'SPECD_NEED_HIDDEN = 1u << 1', 'SPECD_NEED_HIDDEN = 1u << 3', True),
    ('drafter.h', 'SPECD_END_QUARANTINED = 4', 'SPECD_END_QUARANTINED = 4,\n  SPECD_END_X = 5', True),
    ('verifier.h', 'guarantee[SPECD_RULE_COUNT]', 'guarantee[4]', True),
    ('services/rng.h', '"specd.host.rng/1"', '"specd.host.rng/2"', True),
    ('services/pool.h', '(void *ctx, uint32_t index)', '(void *ctx, uint64_t index)', True),
    ('host.h', 'uint64_t (*now_ns)(const specd_host *)', 'uint64_t (*now_ns)(specd_host *)', True),
    ('entry.h', 'const char *host_layout, const specd_host *host,',
     'const char *host_layout, specd_host *host,', True),
    ('types.h', 'typedef int32_t specd_status;', 'typedef uint32_t specd_status;', True),
    ('types.h', '/* A strided view;', '/* Another comment. A strided view;', False),
    ('batch.h', '  uint64_t step_id;', '  uint64_t   step_id ;', False),
]


def layout(include):
    return subprocess.run([sys.executable, os.path.join(api, 'abi', 'layout.py'), '--hash',
                           '--include', include, '--cc', cc],
                          check=True, text=True, stdout=subprocess.PIPE).stdout.strip()


original = layout(os.path.join(api, 'include'))
failures = 0
for file, old, new, differs in changes:
    with tempfile.TemporaryDirectory() as folder:
        include = os.path.join(folder, 'include')
        shutil.copytree(os.path.join(api, 'include'), include)
        path = os.path.join(include, 'specd', 'plugin_api', file)
        with open(path, encoding='utf-8') as f:
            text = f.read()
        if text.count(old) < 1:
            sys.exit(f'{file} no longer contains "{old}"; bring this test up to date')
        with open(path, 'w', encoding='utf-8') as f:
            f.write(text.replace(old, new, 1))
        if (layout(include) != original) != differs:
            failures += 1
            print(f'{file}: "{old}" -> "{new}": expected the hash to '
                  f'{"change" if differs else "stay"}')
print(f'{len(changes)} changes, {failures} judged wrongly')
sys.exit(1 if failures else 0)
