#!/usr/bin/env python3
"""Suffix decoding, slow and plain: a trie of every string of a text with its counts.

The definition is that of ArcticInference's suffix decoding (a tree of all suffixes up to max_tree_depth
tokens, the draft with the best sum of probabilities over all match lengths), with what drafter_suffix
does where its README says that it differs: a draft goes on past max_tree_depth along the first
occurrence, ends after an EOS, and of a node's children only max_branches are followed.

usage: suffix_reference.py TOKENIZER.json PROMPTS.jsonl ... OUT.json
writes the goldens; prompts are lines {"turns": [text, ...]}       (needs `pip install tokenizers`)
"""
import heapq
import json
import struct
import sys

LOOKS = 64  # children looked at beside the oldest and the commonest


def f32(x):
    return struct.unpack("f", struct.pack("f", x))[0]


class Node:
    def __init__(self):
        self.count = 0
        self.children = {}  # token -> Node, in the order of their first appearance
        self.best = None  # token of the commonest child
        self.first_end = None  # (text, position after the first occurrence)


class Trie:
    """Strings of at most `depth` tokens of the texts. A node is a string; node[""] is the root."""

    def __init__(self, depth):
        self.depth = depth
        self.root = Node()
        self.texts = []

    def start(self):
        self.texts.append([])
        self.active = []  # nodes of all suffixes of the text, the longest first

    def append(self, token):
        text = self.texts[-1]
        text.append(token)
        moved = []
        for node in self.active[-(self.depth - 1):] + [self.root]:
            child = node.children.get(token)
            if child is None:
                child = node.children[token] = Node()
                child.first_end = (text, len(text))
            child.count += 1
            best = node.children.get(node.best)
            if best is None or child.count > best.count or (child.count == best.count > 1):
                node.best = token
            moved.append(child)
        self.active = moved

    def find(self, string):
        node = self.root
        for token in string:
            node = node.children.get(token)
            if node is None:
                return None
        return node

    def commonest(self, node, most):
        """Of equally common children the best first, then the younger."""
        if node.best is None:
            return []
        tokens = list(node.children)
        tokens = tokens[-LOOKS:][::-1] if len(tokens) <= LOOKS else tokens[1:][-LOOKS:][::-1] + tokens[:1]
        others = sorted((t for t in tokens if t != node.best), key=lambda t: -node.children[t].count)
        return ([node.best] + others)[:most]

    def follow(self, string, settings, budget, eos):
        """The draft after a match: (tokens, parents, score)."""
        tokens, parents, score = [], [], 0.0
        heap, order = [], 0

        def after(prob, node, length, place, parent):
            nonlocal order
            if place is None and (length >= self.depth or node.count == 1):
                place = node.first_end
            if place is not None:
                text, at = place
                if at < len(text):
                    heapq.heappush(heap, (-prob, order, text[at], parent, None, 0, (text, at + 1)))
                    order += 1
                return
            for token in self.commonest(node, settings["max_branches"]):
                child = node.children[token]
                if settings["max_branches"] == 1:
                    p = f32(prob * f32(child.count / node.count))
                else:
                    p = f32(f32(prob * child.count) / node.count)
                if p < f32(settings["min_token_prob"]):
                    return
                heapq.heappush(heap, (-p, order, token, parent, child, length + 1, None))
                order += 1

        after(1.0, self.find(string), len(string), None, -1)
        while len(tokens) < budget and heap:
            prob, _, token, parent, node, length, place = heapq.heappop(heap)
            tokens.append(token)
            parents.append(parent)
            score = f32(score - prob)
            if token != eos:
                after(-prob, node, length, place, len(tokens) - 1)
        return tokens, parents, score


def budget_of(settings, match, room):
    allowed = f32(f32(match * f32(settings["max_spec_factor"])) + f32(settings["max_spec_offset"]))
    return max(0, min(room, int(allowed + 1e-6)))


def propose(text, own, corpus, settings, room, eos=-1):
    """Every match length from 1 up; at equal scores the longer. The corpus must be better than the text."""
    drafts = []
    for trie in (own, corpus):
        best = ([], [], 0.0)
        if trie is not None:
            for match in range(1, min(len(text), settings["max_tree_depth"] - 1) + 1):
                string = text[-match:]
                if trie.find(string) is None:
                    break
                draft = trie.follow(string, settings, budget_of(settings, match, room), eos)
                if draft[2] >= best[2]:
                    best = draft
        drafts.append(best)
    return drafts[1] if drafts[1][2] > drafts[0][2] else drafts[0]


DEFAULTS = {"max_spec_tokens": 16, "max_spec_factor": 1.0, "max_spec_offset": 0.0, "min_token_prob": 0.1,
            "max_tree_depth": 64, "max_branches": 1}
SETTINGS = [{}, {"max_spec_factor": 4.0}, {"max_tree_depth": 8, "max_spec_offset": 2.0, "min_token_prob": 0.0},
            {"max_branches": 4, "max_spec_factor": 2.0}, {"max_spec_tokens": 40, "max_spec_offset": 8.0}]
# Text seldom branches: what followed the longest match is sure, as a rule. A few ids make it ambiguous.
BRANCHING, FEW_IDS = {"max_branches": 3, "max_tree_depth": 6, "max_spec_offset": 10.0, "min_token_prob": 0.02}, 4
CONTEXTS, BRANCHING_CONTEXTS, STEPS, POSITIONS = 20, 4, 30, 2048


def main():
    import tokenizers
    tokenizer = tokenizers.Tokenizer.from_file(sys.argv[1])
    prompts = []
    for path in sys.argv[2:-1]:
        with open(path, encoding="utf-8") as file:
            prompts += ["\n".join(json.loads(line)["turns"]) for line in file]
    ids = [tokenizer.encode(p, add_special_tokens=False).ids for p in prompts]
    documents = ids[1::7][:12]
    out = {"made_by": "suffix_reference.py, tokenizers " + tokenizers.__version__,
           "max_positions": POSITIONS, "vocab_size": tokenizer.get_vocab_size(), "corpus": documents, "cases": []}
    step_tokens = [1, 3, 2, 5, 1, 4]
    for c in range(CONTEXTS + BRANCHING_CONTEXTS):
        settings = dict(DEFAULTS, **(SETTINGS[c % len(SETTINGS)] if c < CONTEXTS else BRANCHING))
        with_corpus = c % 4 >= 2
        # A prompt, then text that comes back to it: pieces of it between those of other prompts.
        first, second = ids[3 * c % len(ids)][:220], ids[(3 * c + 30) % len(ids)][:120]
        text = first + second[:40] + first[20:90] + second[20:110] + first[60:140]
        begin = min(len(first) + 10, len(text) - sum(step_tokens) * STEPS // len(step_tokens) - 8)
        if c >= CONTEXTS:
            text = [token % FEW_IDS for token in text]
        corpus = None
        if with_corpus:
            corpus = Trie(settings["max_tree_depth"])
            for document in documents:
                corpus.start()
                for token in document:
                    corpus.append(token)
        own = Trie(settings["max_tree_depth"])
        own.start()
        for token in text[:begin]:
            own.append(token)
        case = {"settings": settings, "corpus": with_corpus, "text": text, "begin": begin, "steps": []}
        n = begin
        for step in range(STEPS):
            room = min(settings["max_spec_tokens"], POSITIONS - n)
            tokens, parents, _ = propose(text[:n], own, corpus, settings, room)
            case["steps"].append([n, tokens] + ([parents] if settings["max_branches"] > 1 else []))
            for token in text[n:n + step_tokens[step % len(step_tokens)]]:
                own.append(token)
                n += 1
        out["cases"].append(case)
    with open(sys.argv[-1], "w", encoding="utf-8") as file:
        json.dump(out, file, separators=(",", ":"))
        file.write("\n")


if __name__ == "__main__":
    main()
