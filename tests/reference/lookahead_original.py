"""Runs the authors' own program (hao-ai-lab/LookaheadDecoding) on a checkpoint and records its windows and guesses.

Needs transformers 4.36, accelerate, einops and torch on the CPU. Two things are put in its place: its random initial
tokens, by lookahead_reference.initial_token(), and one line that feeds the pool of POOL_FROM_PROMPT with the last
accepted token in place of each of them.
"""
import os
import random
import shutil
import sys
import tempfile

from lookahead_reference import initial_token

# window, ngram, guesses, pool_from_prompt
SETTINGS = [(7, 5, 7, 0), (4, 3, 4, 1), (5, 4, 2, 0), (15, 5, 15, 1), (10, 3, 1, 0), (2, 8, 4, 1)]
NEW_TOKENS = 80


def load(checkout):
    """The original's module, patched."""
    copy = tempfile.mkdtemp()
    shutil.copytree(os.path.join(checkout, "lade"), os.path.join(copy, "lade"))
    path = os.path.join(copy, "lade/decoding.py")
    with open(path, encoding="utf-8") as f:
        source = f.read()
    wrong = "all_old_tokens.append(hits[max_hit])"
    assert wrong in source
    with open(path, "w", encoding="utf-8") as f:
        f.write(source.replace(wrong, "all_old_tokens.append(hits[hit_idx])"))
    sys.path.insert(0, copy)
    os.environ["USE_LADE"] = "1"
    import lade
    shutil.rmtree(copy)
    return lade


def record(folder, checkout, prompts):
    """{"recorded_from": ..., "recorded": [context]}; a step has the original's levels and guesses, what its target says
    after the last level, and what it committed."""
    import torch
    import transformers
    lade = load(checkout)
    lade.augment_all()
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, torch_dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    forward, choice, contexts = model.jforward_multilevel, random.choice, []
    for prompt, (window, ngram, guesses, from_prompt) in zip(prompts, SETTINGS):
        lade.config_lade(WINDOW_SIZE=window, LEVEL=ngram, GUESS_SET_SIZE=guesses, POOL_FROM_PROMPT=from_prompt, DEBUG=0)
        passes, drawn = [], []

        def draw(tokens):
            drawn.append(initial_token(tokens, len(drawn)))
            return drawn[-1]

        def watched(**kwargs):
            levels = [list(level) for level in kwargs["past_tokens"] if level is not None]
            flat = kwargs["guess_tokens"] or []
            out = forward(**kwargs)
            passes.append({"position": int(kwargs["position_ids"][0, -1]), "levels": levels,
                           "guesses": [flat[i:i + ngram - 1] for i in range(0, len(flat), ngram - 1)],
                           "top1": out.inp_logits.argmax(-1)[0].tolist()})
            return out

        random.choice, model.jforward_multilevel = draw, watched
        with torch.no_grad():
            text = model.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                                  do_sample=False, max_new_tokens=NEW_TOKENS)[0].tolist()
        random.choice = choice
        for this, after in zip(passes, passes[1:]):
            this["committed"] = text[this["position"] + 1:after["position"] + 1]
        steps = [{key: value for key, value in step.items() if key != "position"} for step in passes[:-1]]
        contexts.append({"window": window, "ngram": ngram, "guesses": guesses, "pool_from_prompt": bool(from_prompt),
                         "prompt": prompt, "steps": steps})
        print("original", window, ngram, guesses, len(steps), "steps")
    return {"recorded_from": "hao-ai-lab/LookaheadDecoding eed010d (lade 0.0.2), transformers "
                             f"{transformers.__version__}, torch {torch.__version__}", "recorded": contexts}
