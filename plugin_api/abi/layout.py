#!/usr/bin/env python3
"""Layout table of the plugin boundary.

Reads every header under plugin_api/include, compiles a C probe, and prints each struct field with
offset, size and declaration, each enum constant, each macro that carries a value, each type and
each function. The table is plugin_api/abi/v0.txt, which people review; its hash is
SPECD_ABI_LAYOUT in abi_layout.h, which both sides of the entry call compare.

  layout.py            print the table
  layout.py --hash     print the layout string
  layout.py --check    exit 1 when v0.txt or abi_layout.h is stale
  layout.py --write    regenerate both (then review the difference of v0.txt)
  --include DIR        read another include directory (holds specd/plugin_api/)
  --cc CC              C compiler, default: $CC or cc
"""
import argparse
import difflib
import hashlib
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
GOLDEN = os.path.join(HERE, 'v0.txt')
ROOM = os.path.dirname(HERE)
VERSION = 'v0'
GENERATED = 'abi_layout.h'  # holds the hash itself, so it is no part of the table


def squeeze(text):
    text = re.sub(r'\s+', ' ', text.replace('SPECD_NOEXCEPT', '')).strip()
    return re.sub(r'\s+([,);])', r'\1', text)


def strip_comments(text):
    text = re.sub(r'/\*.*?\*/', ' ', text, flags=re.S)
    return re.sub(r'//[^\n]*', ' ', text)


def field_name(declaration):
    function = re.search(r'\(\s*\*\s*(\w+)\s*\)\s*\(', declaration)
    if function:
        return function.group(1)
    plain = re.search(r'(\w+)\s*(\[[^\]]*\])*$', declaration)
    if not plain:
        raise SystemExit(f'layout.py: cannot read the field "{declaration}"')
    return plain.group(1)


class Header:
    """Declarations of one header, in the order in which they stand."""

    def __init__(self, name, text):
        self.name = name
        self.macros = []     # names of macros with a value
        self.constants = []  # names of enum constants
        self.structs = []    # (name, [(field, declaration)])
        self.types = []      # declarations of typedefs and functions
        text = strip_comments(text).replace('\\\n', ' ')
        # What stands between #ifdef __cplusplus and #endif is the C++ wrapping, not layout.
        text = re.sub(r'#ifdef __cplusplus\n.*?#endif', '', text, flags=re.S)
        for macro, value in re.findall(r'^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+(\S[^\n]*)$', text,
                                       flags=re.M):
            if re.match(r'("|\(?-?[0-9])', value):
                self.macros.append(macro)
        text = re.sub(r'^[ \t]*#[^\n]*$', '', text, flags=re.M)

        def take_enum(match):
            for item in match.group(1).split(','):
                if item.strip():
                    self.constants.append(item.split('=')[0].strip())
            return ''

        def take_struct(match):
            fields = [squeeze(f) for f in match.group(2).split(';') if f.strip()]
            self.structs.append((match.group(1), [(field_name(f), f) for f in fields]))
            return ''

        text = re.sub(r'enum\s*\w*\s*\{(.*?)\}\s*;', take_enum, text, flags=re.S)
        text = re.sub(r'(?:typedef\s+)?struct\s+(\w+)\s*\{(.*?)\}\s*\w*\s*;', take_struct, text,
                      flags=re.S)
        if '{' in text or '}' in text:
            raise SystemExit(f'layout.py: {name}: a construct that this reader does not know')
        self.types = [squeeze(d) for d in text.split(';') if d.strip()]


def read_headers(include):
    root = os.path.join(include, 'specd', 'plugin_api')
    found = []
    for folder, _, files in os.walk(root):
        for file in files:
            path = os.path.relpath(os.path.join(folder, file), root)
            if path.endswith('.h') and path != GENERATED:
                found.append(path)
    if not found:
        raise SystemExit(f'layout.py: no headers under {root}')
    headers = []
    for path in sorted(found):
        with open(os.path.join(root, path), encoding='utf-8') as file:
            headers.append(Header(path, file.read()))
    return headers


def probe(headers, include, cc):
    """Lines of the table, from a compiled C program."""
    out = ['#include <stddef.h>', '#include <stdio.h>']
    out += [f'#include <specd/plugin_api/{h.name}>' for h in headers]
    # One printf per line; macros are either text or numbers.
    out += ['#define NUMBER(x) _Generic((x), char *: 0LL, const char *: 0LL, default: (x))',
            '#define TEXT(x) _Generic((x), char *: (x), const char *: (x), default: "")',
            '#define IS_TEXT(x) _Generic((x), char *: 1, const char *: 1, default: 0)',
            'static void macro(const char *n, int t, const char *s, long long v) {',
            '  if (t) printf("macro %s \\"%s\\"\\n", n, s); else printf("macro %s %lld\\n", n, v);',
            '}', 'int main(void) {']
    for h in headers:
        out.append(f'  puts("\\n[{h.name}]");')
        for m in h.macros:
            out.append(f'  macro("{m}", IS_TEXT({m}), TEXT({m}), (long long)NUMBER({m}));')
        for c in h.constants:
            out.append(f'  printf("const {c} %lld\\n", (long long){c});')
        for t in h.types:
            text = t.replace('"', '\\"')
            out.append(f'  puts("decl {text}");')
        for name, fields in h.structs:
            out.append(f'  printf("struct {name} size %zu align %zu\\n", sizeof(struct {name}), '
                       f'_Alignof(struct {name}));')
            for field, declaration in fields:
                out.append(f'  printf("  %4zu %4zu  {declaration}\\n", '
                           f'offsetof(struct {name}, {field}), '
                           f'sizeof(((struct {name} *)0)->{field}));')
    out += ['  return 0;', '}', '']
    with tempfile.TemporaryDirectory() as folder:
        source, binary = os.path.join(folder, 'probe.c'), os.path.join(folder, 'probe')
        with open(source, 'w', encoding='utf-8') as file:
            file.write('\n'.join(out))
        subprocess.run([cc, '-std=c11', '-I', include, source, '-o', binary], check=True)
        return subprocess.run([binary], check=True, stdout=subprocess.PIPE, text=True).stdout


def table(include, cc):
    return (f'specd plugin boundary, layout {VERSION}\n'
            'fields: offset size declaration\n') + probe(read_headers(include), include, cc)


def layout_string(text):
    return f'{VERSION}-{hashlib.sha256(text.encode()).hexdigest()[:32]}'


def generated_header(layout):
    return ('/* Generated by plugin_api/abi/layout.py --write; do not edit. */\n'
            '#ifndef SPECD_PLUGIN_API_ABI_LAYOUT_H\n#define SPECD_PLUGIN_API_ABI_LAYOUT_H\n\n'
            '/* Hash of the layout table, plugin_api/abi/v0.txt. */\n'
            f'#define SPECD_ABI_LAYOUT "{layout}"\n\n#endif\n')


def read(path):
    try:
        with open(path, encoding='utf-8') as file:
            return file.read()
    except OSError as error:
        return f'({error.strerror})\n'


def main():
    parser = argparse.ArgumentParser(description='Layout table of the plugin boundary.')
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument('--hash', action='store_true')
    mode.add_argument('--check', action='store_true')
    mode.add_argument('--write', action='store_true')
    parser.add_argument('--include', default=os.path.join(ROOM, 'include'))
    parser.add_argument('--cc', default=os.environ.get('CC', 'cc'))
    args = parser.parse_args()

    text = table(args.include, args.cc)
    layout = layout_string(text)
    wanted = {GOLDEN: text,
              os.path.join(args.include, 'specd', 'plugin_api', GENERATED): generated_header(layout)}
    if args.hash:
        print(layout)
    elif args.write:
        for path, content in wanted.items():
            with open(path, 'w', encoding='utf-8') as file:
                file.write(content)
        print(layout)
    elif args.check:
        stale = False
        for path, content in wanted.items():
            found = read(path)
            if found != content:
                stale = True
                print(f'layout.py: {path} is stale; run layout.py --write and review the change')
                sys.stdout.writelines(difflib.unified_diff(
                    found.splitlines(True), content.splitlines(True), 'found', 'expected'))
        sys.exit(1 if stale else 0)
    else:
        sys.stdout.write(text)


if __name__ == '__main__':
    main()
