#!/usr/bin/env python3
"""Writes core/text/unicode_tables.inc: what Hugging Face tokenizers knows of every code point.

The reference mixes engines, each with tables of its own Unicode version: Oniguruma for expressions, Rust's
standard library for Digits, Rust's regex crate for words and strips of added tokens, and an old
normalisation crate for NFC. All are asked code point by code point, so that we follow what they really do.
Needs `pip install tokenizers` and the library libutf8proc, whose NFC is compared.

usage: make_unicode_tables.py OUT.inc
"""
import ctypes
import random
import sys

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.models import BPE
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import Digits, Split

# Surrogates are not text; every other code point is asked.
CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
CATEGORIES = ("Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co Cn").split()


def members(expression):
    """The code points that the expression matches."""
    split = Split(Regex(expression), behavior="removed", invert=True)  # keeps the matches
    found = set()
    for start in range(0, len(CODE_POINTS), 4096):
        text = "".join(map(chr, CODE_POINTS[start:start + 4096]))
        found.update(ord(c) for piece, _ in split.pre_tokenize_str(text) for c in piece)
    return found


def beside_an_added_token(**flags):
    """What the added token "XY" with `flags` does before each code point: (was found, its end)."""
    tokenizer = Tokenizer(BPE(vocab={"X": 0, "Y": 1, "a": 2}, merges=[]))
    tokenizer.add_tokens([AddedToken("XY", normalized=False, **flags)])
    for c in CODE_POINTS:
        code = tokenizer.encode("XY" + chr(c) + "a")
        yield c, (3 in code.ids, code.offsets[0][1])


class Utf8proc:
    """NFC of libutf8proc, and which of its code points have any data for it."""

    def __init__(self):
        self.lib = ctypes.CDLL("libutf8proc.so.2")
        self.lib.utf8proc_NFC.restype = ctypes.c_void_p
        self.lib.utf8proc_NFD.restype = ctypes.c_void_p
        self.lib.utf8proc_get_property.restype = ctypes.POINTER(ctypes.c_int16)
        self.lib.utf8proc_get_property.argtypes = [ctypes.c_int32]
        self.lib.utf8proc_unicode_version.restype = ctypes.c_char_p
        self.free = ctypes.CDLL(None).free
        self.free.argtypes = [ctypes.c_void_p]

    def form(self, function, text):
        at = function(text.encode())
        out = ctypes.string_at(at).decode()
        self.free(at)
        return out

    def nfc(self, text):
        return self.form(self.lib.utf8proc_NFC, text)

    def nfd(self, text):
        return self.form(self.lib.utf8proc_NFD, text)

    def combining_class(self, c):
        return self.lib.utf8proc_get_property(c)[1]  # struct: category, combining_class, ...


def unknown_to_nfc():
    """The code points that utf8proc orders, composes or decomposes and the reference does not know."""
    ours, reference = Utf8proc(), NFC().normalize_str
    unknown, interesting = set(), []
    for c in CODE_POINTS[1:]:
        text = chr(c)
        parts = ours.nfd(text)
        moves = ours.combining_class(c) != 0
        if not moves and parts == text:
            continue
        interesting += [text, *parts]
        probes = ["a" + text + "\u0334", "a\u0345" + text] if moves else []
        probes += [parts, text]
        if any(ours.nfc(p) != reference(p) for p in probes):
            unknown.update(map(ord, parts + text))
    interesting = sorted(set(interesting))
    rng = random.Random(5)
    different = 0
    for _ in range(400000):  # the rule that core/text/nfc.cc follows, against the reference
        pool = interesting if rng.random() < 0.7 else sorted(map(chr, unknown)) + interesting[:900]
        text = "".join(rng.choice(pool) for _ in range(rng.randrange(1, 8)))
        out, run = "", ""
        for c in text:
            if ord(c) in unknown:
                out += ours.nfc(run) + c
                run = ""
            else:
                run += c
        if out + ours.nfc(run) != reference(text):
            different += 1
            if different < 5:
                print("NFC differs:", ascii(text), ascii(out + ours.nfc(run)), ascii(reference(text)))
    print(f"NFC: {len(unknown)} code points of Unicode {ours.lib.utf8proc_unicode_version().decode()} unknown to "
          f"the reference; {different} of 400000 random texts differ")
    assert not different
    return unknown


def ranges(points):
    rows = []
    for c in sorted(points):
        if rows and rows[-1][1] == c - 1:
            rows[-1][1] = c
        else:
            rows.append([c, c])
    return rows


def write_rows(out, rows, width=100):
    line = ""
    for row in rows:
        if len(line) + len(row) + 1 > width:
            out.write(line + "\n")
            line = ""
        line += (" " if line else "") + row
    out.write(line + "\n")


def main():
    category = {}
    for name in CATEGORIES:
        for c in members(rf"\p{{{name}}}"):
            assert c not in category, "categories overlap"
            category[c] = name
    assert len(category) == len(CODE_POINTS)
    for group in "LMNPSZC":
        assert members(rf"\p{{{group}}}") == {c for c, name in category.items() if name[0] == group}
    assert members(r"\d") == {c for c, name in category.items() if name == "Nd"}
    space = members(r"\s")

    digits = Digits(individual_digits=True)
    numeric = {c for c in CODE_POINTS if len(digits.pre_tokenize_str("a" + chr(c) + "a")) == 3}
    numeric_unlike = numeric ^ {c for c, name in category.items() if name[0] == "N"}
    assert space == {c for c, (_, end) in beside_an_added_token(rstrip=True) if end == 3}
    word = {c for c, (found, _) in beside_an_added_token(single_word=True) if not found}
    word_unlike = word ^ {c for c, name in category.items() if name[0] in "LM" or name in ("Nd", "Nl", "Pc")}
    unknown = unknown_to_nfc()

    rows = []
    for c in sorted(category):
        if rows and rows[-1][1] == c - 1 and rows[-1][2] == category[c]:
            rows[-1][1] = c
        else:
            rows.append([c, c, category[c]])
    rows = [row for row in rows if row[2] != "Cn"]
    with open(sys.argv[1], "w", encoding="ascii") as out:
        out.write("// Generated by tests/reference/make_unicode_tables.py with Hugging Face tokenizers "
                  f"{tokenizers.__version__}.\n")
        out.write("// First, last, category of the expression engine; sorted; what is in no row is Cn.\n"
                  "constexpr CategoryRange kCategories[] = {\n")
        write_rows(out, [f"{{0x{a:X}, 0x{b:X}, {name}}}," for a, b, name in rows])
        out.write("};\n")
        for comment, name, points in (
                (r"White space, of \s and of strips.", "kSpaces", space),
                ("Where Digits differs from category N.", "kNumericUnlikeCategory", numeric_unlike),
                ("Where a word character of single_word differs from L, M, Nd, Nl and Pc.",
                 "kWordUnlikeCategory", word_unlike),
                ("Newer than the reference's NFC: they stand apart in it.", "kUnknownToNfc", unknown)):
            out.write(f"// {comment}\nconstexpr CodePointRange {name}[] = {{\n")
            write_rows(out, [f"{{0x{a:X}, 0x{b:X}}}," for a, b in ranges(points)])
            out.write("};\n")
            print(name, len(points))
    print(f"tokenizers {tokenizers.__version__}: {len(rows)} rows of categories")


main()
