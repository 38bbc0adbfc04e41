#!/usr/bin/env python3
"""Write a head's checkpoint as a published folder: config.json and model.safetensors (bfloat16).

usage: export.py CHECKPOINT.pt TARGET_DIR OUT_DIR
"""
import json, os, sys
import torch
import common, nets


def export(head, folder):
    os.makedirs(folder, exist_ok=True)
    tensors = {**{k: head.p[k] for k in sorted(head.p)}, **head.fixed}
    common.write_safetensors(os.path.join(folder, "model.safetensors"), tensors)
    with open(os.path.join(folder, "config.json"), "w") as f:
        f.write(json.dumps(head.config(), indent=2) + "\n")


def main():
    ckpt, target, out = sys.argv[1:4]
    state = torch.load(ckpt)
    head = nets.HEADS[state["head"]](common.Target(target))
    head.p, head.fixed = dict(state["params"]), dict(state["fixed"])
    head.ready()
    export(head, out)
    size = os.path.getsize(os.path.join(out, "model.safetensors"))
    print(f"{out}: {sum(p.numel() for p in head.p.values())} parameters, {size} bytes")


if __name__ == "__main__":
    main()
