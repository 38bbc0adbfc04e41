#!/usr/bin/env python3
"""Train one head on the states that states.py wrote.

usage: train.py HEAD STATES_DIR TARGET_DIR OUT.pt --minutes 22 [--export DIR]
       HEAD: eagle3, eagle2, medusa, redrafter

The schedule runs on processor time: warm-up, then a cosine to 5 %, and the run ends after
--minutes of it. The checkpoint OUT.pt is written every minute; the same call goes on from it.
--from OLD.pt starts a new schedule from another run's weights. With --export the head is
also written as a published folder each time.
"""
import argparse, json, math, os, time
import numpy as np
import torch
import common, nets
from export import export


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("head", choices=list(nets.HEADS)); ap.add_argument("states")
    ap.add_argument("target"); ap.add_argument("out")
    ap.add_argument("--minutes", type=float, default=20)
    ap.add_argument("--window", type=int, default=256)
    ap.add_argument("--batch", type=int, default=4)
    ap.add_argument("--muon-lr", type=float, default=0.015)
    ap.add_argument("--adam-lr", type=float, default=2e-3)
    ap.add_argument("--warmup", type=int, default=20)
    ap.add_argument("--own", type=float, default=0.5, help="share of the target's own text")
    ap.add_argument("--steps", type=int, help="steps of the training-time test")
    ap.add_argument("--from", dest="old"); ap.add_argument("--export")
    ap.add_argument("--log-every", type=int, default=20)
    a = ap.parse_args()
    torch.manual_seed(1)
    head = nets.HEADS[a.head](common.Target(a.target))
    if a.steps: head.steps = a.steps
    resume = torch.load(a.out) if os.path.exists(a.out) else None
    rows = common.Rows(a.states, a.own, seed=resume["step"] if resume else 0)
    head.initialise(rows)
    state = resume or (torch.load(a.old) if a.old else None)
    if state: head.load({**state["params"], **state["fixed"]})
    for p in head.p.values(): p.requires_grad_(True)
    opt = common.Optimiser(head.p, head.inner(), a.muon_lr, a.adam_lr)
    used, tokens, history = 0.0, 0, []
    if state: history, tokens = state["history"], state["tokens"]
    if resume:
        opt.restore(resume["opt"]); used = resume["used"]
    n = sum(p.numel() for p in head.p.values())
    print(f"{a.head}: {n} parameters", json.dumps(vars(a)), flush=True)

    def save(final=False):
        h = list(history)
        if final: h.append({"minutes": used / 60, "loss": np.mean(recent, 0).tolist()})
        torch.save({"head": a.head, "params": {k: p.detach() for k, p in head.p.items()},
                    "fixed": head.fixed, "opt": opt.state(), "used": used,
                    "step": opt.step, "tokens": tokens, "history": h}, a.out + ".tmp")
        os.replace(a.out + ".tmp", a.out)
        if a.export: export(head, a.export)

    if used >= 60 * a.minutes: return print("this run is complete")
    last, saved, shown, recent = time.process_time(), used, (time.time(), tokens), []
    while used < 60 * a.minutes:
        frac = used / (60 * a.minutes)
        scale = 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * frac))
        scale *= min(1.0, (opt.step + 1) / a.warmup)
        loss, parts = head.loss(*rows.take(a.batch, a.window, head.taps))
        loss.backward()
        gnorm = opt.update(scale)
        tokens += a.batch * a.window
        recent = (recent + [parts])[-100:]
        now = time.process_time(); used += now - last; last = now
        if opt.step % a.log_every == 0:
            speed = (tokens - shown[1]) / (time.time() - shown[0]); shown = time.time(), tokens
            by_step = " ".join(f"{x:.3f}" for x in np.mean(recent[-a.log_every:], 0))
            print(f"step {opt.step} tokens {tokens / 1e6:.3f}M loss {by_step} norm {gnorm:.2f} "
                  f"lr {scale:.3f} {speed:.0f} tok/s ETA {a.minutes - used / 60:.1f} min",
                  flush=True)
        if used - saved > 60: save(); saved = used
    save(True)
    print(f"done: step {opt.step} tokens {tokens} minutes {used / 60:.1f}", flush=True)


if __name__ == "__main__":
    main()
