#!/usr/bin/env python3
"""Layout tables of the plugin boundary: one of the core, one per service.

Reads every header under plugin_api/include, compiles a C probe, and lists each struct field with
offset, size and declaration, each enum constant, each macro that carries a value, each type and
each function. People review the tables: abi/v0.txt for the core, abi/services/ID.txt for each
services/ID.h. Their hashes are in abi_layout.h. The entry call compares SPECD_ABI_LAYOUT, that of
the core; get_service() compares SPECD_ID_LAYOUT, which is a part of the service's id.

  layout.py            print the tables
  layout.py --hash     print a line "core LAYOUT", then a line "ID LAYOUT" per service
  layout.py --check    exit 1 when a table or abi_layout.h is stale
  layout.py --write    regenerate all of them (then review what changed in the tables)
  --include DIR        read another include directory (holds specd/plugin_api/)
  --tables DIR         where v0.txt and services/ are, default: the folder of this file
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
ROOM = os.path.dirname(HERE)
VERSION = 'v0'
CORE = 'core'
GENERATED = 'abi_layout.h'  # holds the hashes, so it is in no table
GUARD = 'SPECD_PLUGIN_API_ABI_LAYOUT_H'
SERVICES = 'services/'


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
            text = file.read()
        used = re.search(rf'#\s*include\s*[<"]specd/plugin_api/({SERVICES}\w+\.h)', text)
        if used:
            raise SystemExit(f'layout.py: {path} includes {used.group(1)}, so that two tables would '
                             'share a type; declare it in a header of the core')
        headers.append(Header(path, text))
    return headers


def table_of(header):
    """The id of the table that a header belongs to."""
    if not header.startswith(SERVICES):
        return CORE
    return header[len(SERVICES):-len('.h')]


def layout_macro(table):
    return 'SPECD_ABI_LAYOUT' if table == CORE else f'SPECD_{table.upper()}_LAYOUT'


def probe(headers, include, cc):
    """The text of each header, from a compiled C program."""
    out = ['#include <stddef.h>', '#include <stdio.h>']
    # A service's id ends with the hash that is made here: empty while it is made.
    out.append(f'#define {GUARD}')
    out += [f'#define {layout_macro(table)} ""' for table in sorted({table_of(h.name)
                                                                     for h in headers})]
    out += [f'#include <specd/plugin_api/{h.name}>' for h in headers]
    # One printf per line; macros are either text or numbers.
    out += ['#define NUMBER(x) _Generic((x), char *: 0LL, const char *: 0LL, default: (x))',
            '#define TEXT(x) _Generic((x), char *: (x), const char *: (x), default: "")',
            '#define IS_TEXT(x) _Generic((x), char *: 1, const char *: 1, default: 0)',
            'static void macro(const char *n, int t, const char *s, long long v) {',
            '  if (t) printf("macro %s \\"%s\\"\\n", n, s); else printf("macro %s %lld\\n", n, v);',
            '}', 'int main(void) {']
    for h in headers:
        out.append(f'  puts("\\f\\n[{h.name}]");')
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
        printed = subprocess.run([binary], check=True, stdout=subprocess.PIPE, text=True).stdout
    return printed.split('\f')[1:]


def tables(include, cc):
    """Table texts by id, the core first."""
    headers = read_headers(include)
    fields = 'fields: offset size declaration\n'
    texts = {CORE: f'specd plugin boundary, layout {VERSION}\n{fields}'}
    for header, text in zip(headers, probe(headers, include, cc)):
        table = table_of(header.name)
        texts[table] = texts.get(table, f'specd host service\n{fields}') + text
    return texts


def layout_string(table, text):
    digest = hashlib.sha256(text.encode()).hexdigest()[:32]
    return f'{VERSION}-{digest}' if table == CORE else digest


def file_of(table):
    return f'{VERSION}.txt' if table == CORE else f'{SERVICES}{table}.txt'


def generated_header(layouts):
    lines = ['/* Generated by plugin_api/abi/layout.py --write; do not edit. */', f'#ifndef {GUARD}',
             f'#define {GUARD}', '', f'/* Hash of plugin_api/abi/{file_of(CORE)}. */',
             f'#define {layout_macro(CORE)} "{layouts[CORE]}"', '',
             '/* Hashes of the tables in plugin_api/abi/services. */']
    lines += [f'#define {layout_macro(table)} "{layout}"'
              for table, layout in layouts.items() if table != CORE]
    return '\n'.join(lines + ['', '#endif', ''])


def read(path):
    try:
        with open(path, encoding='utf-8') as file:
            return file.read()
    except OSError as error:
        return f'({error.strerror})\n'


def main():
    parser = argparse.ArgumentParser(description='Layout tables of the plugin boundary.')
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument('--hash', action='store_true')
    mode.add_argument('--check', action='store_true')
    mode.add_argument('--write', action='store_true')
    parser.add_argument('--include', default=os.path.join(ROOM, 'include'))
    parser.add_argument('--tables', default=HERE)
    parser.add_argument('--cc', default=os.environ.get('CC', 'cc'))
    args = parser.parse_args()

    texts = tables(args.include, args.cc)
    layouts = {table: layout_string(table, text) for table, text in texts.items()}
    hashes = ''.join(f'{table} {layout}\n' for table, layout in layouts.items())
    wanted = {os.path.join(args.tables, file_of(table)): text for table, text in texts.items()}
    services = os.path.join(args.tables, SERVICES)
    stale = {os.path.join(services, name) for name in
             (os.listdir(services) if os.path.isdir(services) else [])} - set(wanted)
    wanted[os.path.join(args.include, 'specd', 'plugin_api', GENERATED)] = generated_header(layouts)
    if args.hash:
        sys.stdout.write(hashes)
    elif args.write:
        os.makedirs(services, exist_ok=True)
        for path, content in wanted.items():
            with open(path, 'w', encoding='utf-8') as file:
                file.write(content)
        for path in stale:
            os.remove(path)
        sys.stdout.write(hashes)
    elif args.check:
        good = not stale
        for path in sorted(stale):
            print(f'layout.py: {path} belongs to no header; run layout.py --write')
        for path, content in wanted.items():
            found = read(path)
            if found != content:
                good = False
                print(f'layout.py: {path} is stale; run layout.py --write and review the change')
                sys.stdout.writelines(difflib.unified_diff(
                    found.splitlines(True), content.splitlines(True), 'found', 'expected'))
        sys.exit(0 if good else 1)
    else:
        sys.stdout.write('\n'.join(texts.values()))


if __name__ == '__main__':
    main()
