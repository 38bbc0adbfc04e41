#!/usr/bin/env python3
"""Writes tokenizer_goldens.json: what Hugging Face tokenizers makes of texts and of token ids.

usage: make_tokenizer_goldens.py TOKENIZER.json OUT.json       (needs `pip install tokenizers`)

  encode        [text, ids]: no BOS, special tokens in the text recognised
  encode_bos    [text, ids]: with the post-processor
  encode_plain  [text, ids]: encode_special_tokens, that is special tokens as plain text
  split         [text, lengths in code points of the pieces of the pre-tokenizer's expression]
  decode        [ids, skip_special, text]: random ids, so that characters break anywhere
  variants      {patch, merges_kept, cases: [text, ids with BOS, decoded]}: the file after a JSON merge
                patch and with only the first merges
The texts are made here from a fixed seed.
"""
import json
import random
import sys

import tokenizers
from golden_texts import CODE, EMOJI, PROSE, SPECIAL, atom, fixed_texts
from tokenizers import Tokenizer

random.seed(20260117)


def added(token_id, content, normalized=False, special=False):
    return {"id": token_id, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": normalized, "special": special}


BOTH = [added(0, SPECIAL[0], special=True), added(1, SPECIAL[1], special=True)]
TEMPLATE = {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": SPECIAL[0], "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                       {"SpecialToken": {"id": SPECIAL[1], "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {s: {"id": s, "ids": [i], "tokens": [s]} for i, s in enumerate(SPECIAL)}}
VARIANTS = [
    # Whole pieces that the merges no longer reach.
    ({"model": {"ignore_merges": True}}, 400),
    ({"model": {"ignore_merges": False}}, 400),
    # One token inside another, one that begins where another ends, and both passes of the search.
    ({"added_tokens": BOTH + [added(4096, "qz"), added(4097, "qzjw"), added(4098, "jwx", True),
                              added(4099, "\u00fc n"), added(4100, "zj", True), added(4101, "<|end", special=True)]}, None),
    ({"post_processor": TEMPLATE}, None),
    ({"post_processor": None}, None),
]


def merge_patch(target, patch):
    if not isinstance(patch, dict):
        return patch
    target = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        target[key] = merge_patch(target.get(key), value)
    return target


def variant(path, patch, merges_kept, texts):
    with open(path, encoding="utf-8") as file:
        data = merge_patch(json.load(file), patch)
    data["model"]["merges"] = data["model"]["merges"][:merges_kept]
    tokenizer = Tokenizer.from_str(json.dumps(data))
    assert all(tokenizer.token_to_id(a["content"]) == a["id"] for a in data["added_tokens"])
    rows = []
    for text in texts:
        ids = tokenizer.encode(text).ids
        rows.append([text, ids, tokenizer.decode(ids, skip_special_tokens=False)])
    return {"patch": patch, "merges_kept": merges_kept, "cases": rows}


def main():
    tokenizer = Tokenizer.from_file(sys.argv[1])
    texts = fixed_texts()
    texts += ["".join(atom() for _ in range(random.randrange(1, 7))) for _ in range(2000)]
    texts += ["".join(random.choice([atom, lambda: random.choice(SPECIAL)])() for _ in range(5)) for _ in range(60)]
    texts = list(dict.fromkeys(texts))

    def ids(text, bos):
        return tokenizer.encode(text, add_special_tokens=bos).ids

    out = {"made_by": f"tokenizers {tokenizers.__version__}",
           "encode": [[t, ids(t, False)] for t in texts],
           "encode_bos": [[t, ids(t, True)] for t in texts[::40]]}
    tokenizer.encode_special_tokens = True
    out["encode_plain"] = [[t, ids(t, False)] for t in texts if any(s in t for s in SPECIAL)]
    tokenizer.encode_special_tokens = False

    # The expression itself, around every kind of case fold that an apostrophe could meet.
    folds = ["'" + chr(c) for c in range(0x80, 0x20000) if not 0xD800 <= c <= 0xDFFF
             and set((chr(c).lower() + chr(c).upper().lower() + chr(c).casefold())) & set("stremvld")]
    samples = folds + random.sample(texts, 300)
    out["split"] = [[t, [b - a for _, (a, b) in tokenizer.pre_tokenizer.pre_tokenize_str(t)]] for t in samples]

    size = tokenizer.get_vocab_size()
    byte_ids = [tokenizer.token_to_id(c) for c in sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())]
    out["decode"] = []
    for i in range(500):
        pools = [range(size), byte_ids, byte_ids + [0, 1]]
        sequence = [random.choice(pools[i % 3]) for _ in range(random.randrange(0, 16))]
        if i % 5 == 0:  # real characters cut short
            sequence = ids(random.choice(PROSE[4:] + EMOJI), False)
            sequence = sequence[random.randrange(3):len(sequence) - random.randrange(4)][:24]
        if i % 50 == 0:
            sequence.insert(0, size + i)  # an id without a token
        skip = i % 2 == 0
        out["decode"].append([sequence, skip, tokenizer.decode(sequence, skip_special_tokens=skip)])

    texts = ["", "qzjwx qz qzjwjwx qzj", "xqzxqzjwqz jwxjwjwx zjzj", "\u00fc n\u00fc\u00fc nqz",
             "<|end_of_text|><|end<|end_of_textqz|>", "def function_name(self, argument):\n    return None  # qzjw",
             *random.sample(CODE, 5), *random.sample(PROSE, 5)]
    out["variants"] = [variant(sys.argv[1], patch, kept, texts) for patch, kept in VARIANTS]

    with open(sys.argv[2], "w", encoding="utf-8") as file:
        file.write("{\n")
        for n, (key, value) in enumerate(out.items()):
            file.write((",\n" if n else "") + json.dumps(key) + ": ")
            if isinstance(value, list):
                rows = (json.dumps(row, separators=(",", ":")) for row in value)
                file.write("[\n" + ",\n".join(rows) + "\n]")
            else:
                file.write(json.dumps(value))
        file.write("\n}\n")
    print({key: len(value) for key, value in out.items() if isinstance(value, list)})


main()
