"""Decode of a random 1B Llama in transformers, plain and with an assistant, for comparison with engine_check.

Usage: beside.py OUT.json. Needs torch with CUDA and transformers; prints and writes tokens per second.
"""
import json
import sys
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def model(hidden, ffn, layers, heads):
    config = LlamaConfig(vocab_size=128256, hidden_size=hidden, intermediate_size=ffn,
                         num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=8,
                         max_position_embeddings=8192)
    with torch.device("cuda"):
        torch.manual_seed(1)
        return LlamaForCausalLM(config).to(torch.bfloat16).eval()


def tokens_per_second(target, prompt, n, **more):
    def run():
        torch.cuda.synchronize()
        start = time.perf_counter()
        target.generate(prompt, min_new_tokens=n, max_new_tokens=n, do_sample=False, **more)
        torch.cuda.synchronize()
        return n / (time.perf_counter() - start)
    run()
    return sorted(run() for _ in range(3))[1]


def main():
    target, assistant = model(2048, 8192, 16, 32), model(512, 2048, 4, 8)
    prompt = torch.randint(0, 1000, (1, 128), device="cuda")
    with torch.inference_mode():
        results = {"transformers 1b decode, tokens/s": tokens_per_second(target, prompt, 128),
                   "transformers 1b assisted, tokens/s":
                       tokens_per_second(target, prompt, 128, assistant_model=assistant)}
    for name, value in results.items():
        print(f"  {name:44} {value:12.4g}")
    with open(sys.argv[1], "w", encoding="utf-8") as out:
        json.dump(results, out, indent=1)


if __name__ == "__main__":
    main()
