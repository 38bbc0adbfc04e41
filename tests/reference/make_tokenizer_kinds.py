#!/usr/bin/env python3
"""Writes tokenizer_kinds/: a small tokenizer.json of every kind, trained here, and what Hugging Face
tokenizers makes of texts and of token ids with it.

usage: make_tokenizer_kinds.py OUT_DIR       (needs `pip install tokenizers`; run in the root of the tree)

texts.json      the texts of all kinds
KIND.json
  tokenizer     the file
  encode        ids of every text: no BOS, special tokens in the text recognised
  encode_bos    [number of the text, ids]: with the post-processor
  encode_plain  [number, ids]: encode_special_tokens, that is special tokens as plain text
  pieces        [number, lengths in code points of the pre-tokenizer's pieces]
  decode        [ids, skip_special, text]: random ids, so that characters break anywhere
  ranges        [parts, ids]: every second part of the text is a stranger's, where no special token may be
variants.json
  texts         the texts of all variants
  variants      {kind, patch, encode, decode: [ids, text]}: the file after a JSON merge patch; null where the
                reference crashes
Lists of ids are written as strings, a character for each: U+0080 + id. Same tree, same bytes.
"""
import glob
import json
import random
import sys

import golden_texts
import tokenizers
from golden_texts import CODE, EMOJI, PROSE, atom, fixed_texts
from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
CASED = (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{ENDING}|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{ENDING}"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
CORPUS = PROSE * 3 + CODE * 3 + [open(f, encoding="utf-8").read()
                                 for f in sorted(glob.glob("plugin_api/include/specd/plugin_api/*.h"))]
BYTES = [f"<0x{b:02X}>" for b in range(256)]
SPECIAL = ["<|begin_of_text|>", "<|end_of_text|>", "<s>", "</s>"]
ODDITIES = ["\u2581", "\u2581\u2581", " \u2581a", "<0x41>", "<0xe4>", "<unk>", "e\u0301", "\u212b", "\u1100\u1161\u11a8",
            "\uac00\u11a8", "a\u0345\u0301\u0323", "\u0301\u0301", "\u0958", "\ufb1d", "\u1ac0\u0301", "a\u08d3\u0323",
            "\U00011935\U00011930", "HelloWorld", "HTTPServer's", "iPhone'LL", "\u01c5a", "don't", "\u0130i", "x\u200dy"]


def pack(ids):
    return "".join(chr(0x80 + i) for i in ids)


def encode_or_none(tokenizer, text):
    """The ids, or None where the reference itself crashes: strips of white space tokens that overlap."""
    try:
        return tokenizer.encode(text, add_special_tokens=False).ids
    except BaseException as error:
        assert "bad split" in str(error)
        return None


def byte_level(vocab_size, pre_tokenizer, normalizer=None, special=SPECIAL[:2]):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=list(special), show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return tokenizer


def split(expression):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(expression), "isolated", False),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def sentencepiece(vocab_size):
    """As converters make it: every way to put a token together is a merge, in the order of the tokens."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=["<unk>", "<s>", "</s>"] + BYTES, show_progress=False,
        limit_alphabet=300))
    vocab = tokenizer.get_vocab()
    merges = []
    for token, _ in sorted(vocab.items(), key=lambda item: item[1]):
        if token not in BYTES and token not in ("<unk>", "<s>", "</s>"):
            ways = [(token[:i], token[i:]) for i in range(1, len(token))]
            ways = [(a, b) for a, b in ways if a in vocab and b in vocab]
            merges += sorted(ways, key=lambda way: (vocab[way[0]], vocab[way[1]]))
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in ("<unk>", "<s>", "</s>")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def kinds():
    qwen = byte_level(1800, split(QWEN2), normalizers.NFC())
    qwen.add_tokens([AddedToken("n\u0303o", normalized=True), AddedToken("\u00e9t\u00e9", normalized=True),
                     AddedToken("<tool>", normalized=False)])
    qwen.post_processor = processors.ByteLevel(trim_offsets=False)
    cased = byte_level(1800, split(CASED))
    gpt2 = byte_level(1600, pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True))
    gpt2.post_processor = processors.ByteLevel(trim_offsets=True)
    legacy = sentencepiece(1900)
    legacy.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    legacy.add_tokens([AddedToken("<tool>", normalized=True), AddedToken("<pad>", normalized=False, lstrip=True)])
    first = sentencepiece(1900)
    first.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    first.add_tokens([AddedToken("<tool>", normalized=False)])
    words = sentencepiece(1500)
    words.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    words.decoder = decoders.Metaspace(prepend_scheme="always")
    words.model.byte_fallback = False
    return {"qwen": qwen, "cased_expression": cased, "gpt2": gpt2, "llama2_legacy": legacy, "metaspace_first": first,
            "metaspace_words": words}


def flags(token_id, content, **set_flags):
    return dict({"id": token_id, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
                 "normalized": False, "special": False}, **set_flags)


def variants(made):
    """(kind, patch). A list replaces the whole list."""
    def split_step(pattern, behavior, invert):
        return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}

    behaviors = ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")
    to_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}

    def sequence(*steps):
        return {"pre_tokenizer": {"type": "Sequence", "pretokenizers": list(steps)}}

    for pattern in ({"String": " "}, {"String": "a."}, {"Regex": r"\s+|[aeiou]"}, {"Regex": r"\d*"}, {"Regex": r"(?=[A-Z])"}):
        for behavior in behaviors:
            for invert in (False, True):
                yield "gpt2", sequence(split_step(pattern, behavior, invert), to_bytes)
    for expression in (r"(ab|a)(c|bcd)|.", r"[^\s]+?(?=[,.;])|\S", r"(?>a+|b)c?|(?:xy){2,3}|\p{Lu}++\p{Ll}*+|[\u4e00-\u9fff]+",
                       r"(?i:kelvin|'s)|\p{^L}+?|\P{N}{2,}", r"a|", r"(?:[a-z]+[0-9]?)+|[^a-z0-9]{1,2}?", r"\r?\n|[\-\]\\.\/]+|\D\S"):
        yield "gpt2", sequence(split_step({"Regex": expression}, "Isolated", False), to_bytes)
    yield "gpt2", sequence({"type": "Digits", "individual_digits": False}, to_bytes)
    yield "gpt2", sequence({"type": "Digits", "individual_digits": True}, to_bytes)
    yield "gpt2", sequence(dict(to_bytes, add_prefix_space=True))
    yield "gpt2", {"pre_tokenizer": dict(to_bytes, use_regex=True)}
    yield "gpt2", sequence({"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}]},
                           {"type": "Metaspace", "replacement": "_", "prepend_scheme": "first", "split": True}, to_bytes)
    yield "gpt2", {"normalizer": {"type": "Replace", "pattern": {"Regex": "[aeiou]+"}, "content": "<>"}}
    yield "gpt2", {"normalizer": {"type": "Sequence", "normalizers": [
        {"type": "Replace", "pattern": {"String": "a"}, "content": ""}, {"type": "Prepend", "prepend": "x "}, {"type": "NFC"}]}}
    yield "gpt2", {"model": {"ignore_merges": True}}
    for scheme in ("first", "always", "never"):
        for cut in (False, True):
            space = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": scheme, "split": cut}
            yield "metaspace_first", {"pre_tokenizer": space, "decoder": space}
    yield "metaspace_first", {"pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581", "add_prefix_space": True}}
    yield "metaspace_first", {"pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581", "add_prefix_space": False,
                                                "prepend_scheme": "never"}}
    yield "metaspace_first", {"normalizer": {"type": "Replace", "pattern": {"String": "He"}, "content": "Ha"},
                              "decoder": {"type": "Sequence", "decoders": [
                                  {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True},
                                  {"type": "Replace", "pattern": {"Regex": "[aeiou]+"}, "content": "_"},
                                  {"type": "Strip", "content": "_", "start": 2, "stop": 0}, {"type": "ByteFallback"}]}}
    for fuse in (False, True):
        yield "metaspace_words", {"model": {"fuse_unk": fuse}}
    yield "llama2_legacy", {"model": {"ignore_merges": True}}
    yield "llama2_legacy", {"decoder": {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "\u2581"}, "content": "  "}, {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 3, "stop": 0}, {"type": "Strip", "content": "H", "start": 1, "stop": 0}]}}
    # Added tokens: every flag, alone and together, in both searches, tokens inside and beside each other.
    for kind in ("qwen", "llama2_legacy", "metaspace_first"):
        size = made[kind].get_vocab_size()
        base = [t for t in json.loads(made[kind].to_str())["added_tokens"]]
        for normalized in (False, True):
            for flag in ("single_word", "lstrip", "rstrip"):
                yield kind, {"added_tokens": base + [flags(size, "mo", normalized=normalized, **{flag: True}),
                                                     flags(size + 1, "moin", normalized=normalized),
                                                     flags(size + 2, "in x", normalized=normalized, special=True)]}
            yield kind, {"added_tokens": base + [
                flags(size, "mo", normalized=normalized, lstrip=True, rstrip=True),
                flags(size + 1, " ", normalized=normalized, lstrip=True, rstrip=not normalized),
                flags(size + 2, "<x>", normalized=not normalized, single_word=True, lstrip=True, rstrip=True)]}
    yield "llama2_legacy", {"added_tokens": [flags(i, t, normalized=True, special=True)
                                             for i, t in enumerate(["<unk>", "<s>", "</s>"])]}


VARIANT_TEXTS = [
    "", " ", "mo", " mo ", "xmo mox moin", "mo  mo\tmoin x\n mo.", "  mo  in x  mo in xx", "mo\u00e9 mo_ mo1 mo-mo \u2167mo",
    "mo\u200d mo\u0301 \u24d0mo mo\u24d0", "<x><x> <x>a a<x> b <x> c", "mo<s> mo</s>mo", "Hello world  Hello", "Hello", "He  He",
    "a.b.c a. .a aa", "abcd abc acbcd", "aaac bc xyxyxyxy xyxy ABCd eFg", "12 345\u0661\u0662x7\u2167\u00bd", "Kelvin \u212aELVIN it'S it'\u017f",
    "one, two; three. four", "\u4e2d\u6587\u5b57 \u65e5\u672c\u8a9e 12", "tab\tand\nnew\r\nline  end ", "___ _a_ \u2581a\u2581 _", "\u2581", "\u2581\u2581x",
    "caf\u00e9 cafe\u0301", "Stra\u00dfe \ufb06", "\U0001f600\U0001f44d\U0001f3fd \U0001f999", "a-b]c\\d./e\r\n\r\nf", "AbcDEF GHi jK", "x" * 40, " " * 9, "\n\n\n a",
    "if (a&&b||!c){d^=~e<<3;}", "\u0130stanbul \u01c5 \u2460", "<0x41>\u2581<unk><|end_of_text|>", "in x", "moin xmoin x in xmo"]


def recode(tokenizer, content):
    """The tokenizer with its special tokens spelled as private characters, and the way back of their ids."""
    data = json.loads(tokenizer.to_str())
    back = {}
    for n, token in enumerate(data["added_tokens"]):
        if token["special"]:
            content[token["content"]] = chr(0xE100 + n)
            token["content"] = chr(0xE100 + n)
    again = Tokenizer.from_str(json.dumps(data))
    for token in data["added_tokens"]:
        back[again.token_to_id(token["content"])] = token["id"]
    return again, back


def range_cases(tokenizer):
    spelled = {}
    private, back = recode(tokenizer, spelled)
    known = list(spelled)
    rows = []
    for _ in range(200):
        parts = []
        for _ in range(random.randrange(1, 4)):
            parts.append("".join(random.choice(known + ["\n", "user\n", " "]) for _ in range(random.randrange(1, 4))))
            halves = [s[:random.randrange(1, len(s))] for s in known] + [s[random.randrange(1, len(s)):] for s in known]
            parts.append("".join(random.choice([atom(), random.choice(known), random.choice(halves), " "])
                                 for _ in range(random.randrange(0, 4))))
        text = ""
        for n, part in enumerate(parts):
            for content, private_content in spelled.items() if n % 2 == 0 else ():
                part = part.replace(content, private_content)
            text += part
        ids = private.encode(text, add_special_tokens=False).ids
        rows.append([parts, pack(back.get(i, i) for i in ids)])
    return rows


def random_ids(tokenizer, texts):
    size = tokenizer.get_vocab_size()
    one_byte = [tokenizer.token_to_id(t) for t in BYTES + sorted(pre_tokenizers.ByteLevel.alphabet())]
    one_byte = [i for i in one_byte if i is not None] or list(range(50))
    kind = random.randrange(4)
    if kind == 0:
        return [random.randrange(size) for _ in range(random.randrange(10))]
    if kind == 1:
        return [random.choice(one_byte + [0, 1]) for _ in range(random.randrange(10))]
    ids = []
    for _ in range(random.randrange(1, 4)):  # real characters cut short
        some = encode_or_none(tokenizer, random.choice(PROSE[4:] + EMOJI + texts)[:8]) or []
        ids += some[random.randrange(2):][:random.randrange(1, 9)]
    if kind == 3:
        ids.insert(random.randrange(len(ids) + 1), random.choice([1, size + 9, random.choice(one_byte)]))
    return ids


def write(path, data):
    def rows(value):
        items = value.items() if isinstance(value, dict) else ((None, item) for item in value)
        for key, item in items:
            yield (json.dumps(key, ensure_ascii=False) + ":" if key is not None else "") + \
                json.dumps(item, ensure_ascii=False, separators=(",", ":"))

    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.write("{\n")
        for n, (key, value) in enumerate(data.items()):
            ends = "{}" if isinstance(value, dict) else "[]"
            file.write((",\n" if n else "") + json.dumps(key) + ":")
            file.write(ends[0] + "\n" + ",\n".join(rows(value)) + "\n" + ends[1] if isinstance(value, (dict, list))
                       else json.dumps(value))
        file.write("\n}\n")


def main():
    random.seed(20260118)
    made = kinds()
    golden_texts.SPECIAL[:] = SPECIAL[:2]
    texts = [t for t in fixed_texts() if len(t) < 120]

    def any_atom():
        chance = random.random()
        return random.choice(SPECIAL + ["<tool>", "<pad>"]) if chance < 0.1 else random.choice(ODDITIES) if chance < 0.25 else atom()[:24]

    texts += ["".join(any_atom() for _ in range(random.randrange(1, 4))) for _ in range(1500)]
    texts += ODDITIES + [a + b + c for a in SPECIAL + ["<tool>", "<pad>"] for b in ("", " ", "x") for c in ("", " y", "y", "<s>")]
    texts = list(dict.fromkeys(texts))
    write(f"{sys.argv[1]}/texts.json", {"made_by": f"tokenizers {tokenizers.__version__}", "texts": texts})

    for name, tokenizer in made.items():
        def ids(text, bos=False):
            return pack(tokenizer.encode(text, add_special_tokens=bos).ids)

        out = {"tokenizer": json.loads(tokenizer.to_str()), "encode": [ids(t) for t in texts],
               "encode_bos": [[n, ids(t, True)] for n, t in enumerate(texts) if n % 20 == 0]}
        tokenizer.encode_special_tokens = True
        out["encode_plain"] = [[n, ids(t)] for n, t in enumerate(texts) if any(s in t for s in SPECIAL)]
        tokenizer.encode_special_tokens = False
        if name in ("qwen", "cased_expression", "gpt2"):
            step = pre_tokenizers.ByteLevel(add_prefix_space=False) if name == "gpt2" else tokenizer.pre_tokenizer[0]
            out["pieces"] = [[n, [b - a for _, (a, b) in step.pre_tokenize_str(t)]]
                             for n, t in enumerate(texts) if n % 4 == 0]
        out["decode"] = []
        for n in range(400):
            sequence = random_ids(tokenizer, texts)
            out["decode"].append([pack(sequence), n % 2 == 0, tokenizer.decode(sequence, skip_special_tokens=n % 2 == 0)])
        out["ranges"] = range_cases(tokenizer)
        write(f"{sys.argv[1]}/{name}.json", out)

    rows = []
    for kind, patch in variants(made):
        data = json.loads(made[kind].to_str())
        for key, value in patch.items():
            data[key] = {**data[key], **value} if key == "model" else value
        tokenizer = Tokenizer.from_str(json.dumps(data))
        encoded = [encode_or_none(tokenizer, t) for t in VARIANT_TEXTS]
        some = [random_ids(tokenizer, VARIANT_TEXTS) for _ in range(12)]
        rows.append({"kind": kind, "patch": patch, "encode": [None if e is None else pack(e) for e in encoded],
                     "decode": [[pack(e), tokenizer.decode(e, skip_special_tokens=False)] for e in some + [e for e in encoded[2:9] if e]]})
    write(f"{sys.argv[1]}/variants.json", {"texts": VARIANT_TEXTS, "variants": rows})
    print(len(texts), "texts,", len(rows), "variants,", {k: t.get_vocab_size() for k, t in made.items()})


main()
