#!/usr/bin/env python3
"""header_set.py PLUGIN_API CC NAME OUT: writes the plugin headers to OUT/include with one change,
and their layouts, as they would be in another version of the SDK."""
import os
import shutil
import subprocess
import sys

# file below specd/plugin_api; text and its replacement, or None for "this file is not there yet"
CHANGES = {
    'before_a_service': ('services/metrics.h', None),
    'changed_service': ('services/memory.h',
                        ('} specd_memory;', '  void (*added)(void) SPECD_NOEXCEPT;\n} specd_memory;')),
    'changed_core': ('types.h',
                     ('SPECD_E_INTERNAL = 11', 'SPECD_E_INTERNAL = 11,\n  SPECD_E_ADDED = 12')),
}

api, cc, name, out = sys.argv[1:5]
file, change = CHANGES[name]
shutil.rmtree(out, ignore_errors=True)
include = os.path.join(out, 'include')
shutil.copytree(os.path.join(api, 'include'), include)
path = os.path.join(include, 'specd', 'plugin_api', file)
if change is None:
    os.remove(path)
else:
    with open(path, encoding='utf-8') as header:
        text = header.read()
    if text.count(change[0]) != 1:
        sys.exit(f'{file} no longer contains "{change[0]}" once; bring this script up to date')
    with open(path, 'w', encoding='utf-8') as header:
        header.write(text.replace(*change))
subprocess.run([sys.executable, os.path.join(api, 'abi', 'layout.py'), '--write', '--include', include,
                '--tables', out, '--cc', cc], check=True, stdout=subprocess.DEVNULL)
