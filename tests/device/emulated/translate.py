#!/usr/bin/env python3
"""Turns a CUDA source into C++ for the emulator (emulator.h), line by line:

    translate.py FILE.cu OUT.cc

  kernel<<<grid, block, bytes, stream>>>(args)  ->  launch("kernel", a lambda, Launch(..), args)
  __shared__ T name[n];                         ->  a reference into the block's shared memory
  __global__ void __launch_bounds__(n) f(..) {  ->  f(..) { enter_kernel("f", n);

Everything else is C++ already, with the headers in include/. Only these forms are known; what is left
of the words at the end is an error.
"""
import re
import sys

EMULATED = "::specd::emulated::"


def fail(path, text, at, words):
    sys.exit(f"{path}:{text.count(chr(10), 0, at) + 1}: {words}")


def closing(text, at, pair):
    """The index of the bracket that closes text[at]."""
    depth = 0
    for i in range(at, len(text)):
        depth += (text[i] == pair[0]) - (text[i] == pair[1])
        if depth == 0:
            return i
    return -1


def blank_comments(text):
    """text with the content of comments and literals replaced, of the same length."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|(?<![0-9])\'(?:\\.|[^\'\\\n])\'', re.S)
    return pattern.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)


def translate(path, text):
    code = blank_comments(text)
    edits = []  # (begin, end, replacement)

    for match in re.finditer(r"__global__\s+void\b", code):
        at, bounds = match.end(), "0"
        limit = re.compile(r"\s*__launch_bounds__\s*\(").match(code, at)
        if limit:
            end = closing(code, limit.end() - 1, "()")
            bounds = text[limit.end():end].split(",")[0]  # the second bound, blocks on a multiprocessor, limits nothing
            edits.append((limit.start(), end + 1, "\n" * text.count("\n", limit.start(), end + 1)))
            at = end + 1
        name = re.compile(r"\s*(\w+)\s*\(").match(code, at)
        if not name:
            fail(path, text, match.start(), "a kernel without a name")
        body = re.compile(r"\s*\{").match(code, closing(code, name.end() - 1, "()") + 1)
        if not body:
            continue  # a declaration
        edits.append((body.end(), body.end(),
                      f' {EMULATED}enter_kernel("{name.group(1)}", ({bounds}));'))

    declaration = r"__shared__\s+((?:[\w:]+(?:\s*<[^;<>]*>)?\s+)+)(\w+)((?:\s*\[[^\]]*\])*)\s*;"
    for match in re.finditer(declaration, code):
        kind, name, sizes = (group.strip() for group in match.groups())
        line = code.count("\n", 0, match.start()) + 1
        before = code[:match.start()].rstrip()
        if before.endswith("extern"):
            edits.append((before.rindex("extern"), match.end(),
                          f"auto* {name} = static_cast<{kind}*>({EMULATED}dynamic_shared());"))
        else:
            edits.append((match.start(), match.end(),
                          f'auto& {name} = {EMULATED}shared<{kind}{sizes}>("{name}, line {line}");'))

    for match in re.finditer("<<<", code):
        before = code[:match.start()].rstrip()
        begin = len(before)
        if before.endswith(">"):  # template arguments
            depth = 0
            while True:
                begin -= 1
                depth += (code[begin] == ">") - (code[begin] == "<")
                if depth == 0:
                    break
        begin = re.search(r"\w+\s*$", code[:begin]).start()
        callee = " ".join(text[begin:match.start()].split())
        end = code.find(">>>", match.end())
        arguments = re.compile(r"\s*\(\s*").match(code, end + 3)
        if end < 0 or not arguments:
            fail(path, text, match.start(), "a launch without arguments in brackets")
        how = text[match.end():end]
        rest = "" if code[arguments.end()] == ")" else ", "
        lines = "\n" * (text.count("\n", begin, match.start()) + text.count("\n", end, arguments.end()))
        edits.append((begin, arguments.end(),
                      f'{EMULATED}launch("{callee}", [](auto... each) {{ {callee}(each...); }}, '
                      f"{EMULATED}Launch({how}){rest}{lines}"))

    for begin, end, new in sorted(edits, reverse=True):
        text = text[:begin] + new + text[end:]
    left = re.search(r"<<<|>>>|__shared__|__launch_bounds__|\basm\b|__constant__", blank_comments(text))
    if left:
        fail(path, text, left.start(), f"'{left.group()}' in a form that translate.py does not know")
    return f'#line 1 "{path}"\n{text}'


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    source, out = sys.argv[1:]
    with open(source, encoding="utf-8") as file:
        text = file.read()
    with open(out, "w", encoding="utf-8") as file:
        file.write(translate(source, text))


if __name__ == "__main__":
    main()
