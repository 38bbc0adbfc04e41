#!/usr/bin/env python3
"""headers_test.py INCLUDE: every header compiles alone, in every language version, with every
compiler that is here (gcc is required), under the strictest warnings."""
import os
import shutil
import subprocess
import sys

include = sys.argv[1]
headers = sorted(os.path.relpath(os.path.join(folder, file), include)
                 for folder, _, files in os.walk(include) for file in files if file.endswith('.h'))
assert len(headers) >= 10, f'no headers under {include}'
# gcc passes over padding in headers of system paths; -I keeps it looking.
flags = ['-Wall', '-Wextra', '-pedantic', '-Wpadded', '-Werror', '-fsyntax-only', '-I', include, '-']
cases = [(cc, 'c', std) for cc in ('gcc', 'clang') for std in ('c11', 'c17')]
cases += [(cc, 'c++', std) for cc in ('g++', 'clang++')
          for std in ('c++11', 'c++14', 'c++17', 'c++20')]


def compile_text(cc, language, std, text):
    return subprocess.run([cc, '-x', language, f'-std={std}'] + flags, input=text, text=True,
                          stderr=subprocess.PIPE)


failures = done = 0
for cc, language, std in cases:
    if shutil.which(cc) is None:
        if cc in ('gcc', 'g++'):
            sys.exit(f'{cc} is not here')
        continue
    # The flags must bite, or the test proves nothing.
    padded = 'struct s { char a; long b; }; extern struct s x; int f(void); int f(void) { return x.a; }'
    if compile_text(cc, language, std, padded).returncode == 0:
        sys.exit(f'{cc} {std}: -Wpadded does not refuse a padded struct')
    for header in headers:
        # A declaration of its own, since a header may hold macros only; twice, for the guard.
        text = f'#include <{header}>\n#include <{header}>\nextern int specd_headers_test;\n'
        result = compile_text(cc, language, std, text)
        done += 1
        if result.returncode != 0:
            failures += 1
            print(f'{header} with {cc} -std={std}:\n{result.stderr}')
print(f'{done} compilations of {len(headers)} headers, {failures} failed')
sys.exit(1 if failures else 0)
