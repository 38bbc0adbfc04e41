#!/usr/bin/env python3
"""Run the target once over training text and keep the states that the heads are trained on.

usage: states.py CORPUS_DIR TARGET_DIR OUT_DIR [--corpus-tokens 500000] [--own-tokens 300000]

Rows of 512 tokens: pieces of CORPUS_DIR/train.tok, and text that the target wrote itself
behind short pieces of it (a third greedily, a third at temperature 0.7, a third at 1.0).
Written to OUT_DIR, one entry a row, corpus and own rows in turn, so that a training run can
start before the last row is there; a second call goes on where the first one stopped:

  tokens.u16 [rows,512]   norm.f16 [rows,512,384]  states after the last norm
  kind.u8 [rows] (1: own text)   taps.f16 [rows,512,3,384]  inputs of layers 2, L/2, L-3
"""
import argparse, os, time
import numpy as np
import torch
import common

BATCH, LEN = 48, common.Rows.LEN


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("corpus"); ap.add_argument("target"); ap.add_argument("out")
    ap.add_argument("--corpus-tokens", type=int, default=500_000)
    ap.add_argument("--own-tokens", type=int, default=300_000)
    a = ap.parse_args()
    torch.set_grad_enabled(False)
    data = np.fromfile(os.path.join(a.corpus, "train.tok"), np.uint16)
    m = common.Target(a.target)
    os.makedirs(a.out, exist_ok=True)
    path = lambda name: os.path.join(a.out, name)
    row = {"tokens.u16": LEN * 2, "norm.f16": LEN * 768, "taps.f16": LEN * 3 * 768, "kind.u8": 1}
    done = os.path.getsize(path("kind.u8")) if os.path.exists(path("kind.u8")) else 0
    done -= done % BATCH
    for name, size in row.items():              # drop what an interrupted call left half written
        with open(path(name), "ab") as f: f.truncate(done * size)
    order = np.random.default_rng(11).permutation(len(data) // LEN)
    want = [-(-n // (LEN * BATCH)) for n in (a.corpus_tokens, a.own_tokens)]
    plan = sorted([((i + 0.5) / want[0], 0, i) for i in range(want[0])] +
                  [((i + 0.5) / want[1], 1, i) for i in range(want[1])])
    start = time.time()
    for n, (_, own, i) in enumerate(plan):
        if n < done // BATCH: continue
        began = time.time()
        if own:
            rng = np.random.default_rng(1000 + i)
            P = int(rng.choice([48, 64, 96, 160]))
            s = rng.integers(0, len(data) - LEN, BATCH)
            ids = np.stack([np.concatenate([[0], data[j:j + P - 1]]) for j in s]).astype(np.int64)
            heat = torch.tensor([0.0, 0.7, 1.0])[torch.arange(BATCH) % 3]
            ids = m.write(torch.from_numpy(ids), LEN - P, heat, torch.Generator().manual_seed(i))
        else:
            s = order[i * BATCH:(i + 1) * BATCH]
            ids = np.stack([data[j * LEN:(j + 1) * LEN] for j in s]).astype(np.int64)
            ids = torch.from_numpy(ids)
        got = [m.forward(b) for b in ids.split(4)]
        put = lambda name, x: open(path(name), "ab").write(x.tobytes())
        put("tokens.u16", ids.numpy().astype(np.uint16))
        put("norm.f16", torch.cat([g[0] for g in got]).half().numpy())
        put("taps.f16", torch.cat([g[1] for g in got]).half().numpy())
        put("kind.u8", np.full(BATCH, own, np.uint8))    # last: a row counts once this is there
        took = time.time() - began
        left = (time.time() - start) / (n + 1 - done // BATCH) * (len(plan) - n - 1)
        what = "own" if own else "corpus"
        print(f"block {n + 1}/{len(plan)} {what} {BATCH * LEN / took:.0f} tok/s "
              f"ETA {left / 60:.1f} min", flush=True)


if __name__ == "__main__":
    main()
