"""lm-evaluation-harness, `local-completions` with the daemon's tokenizer: a multiple-choice task, whose scores are
log-likelihoods, and one of generated texts. Both are compared with a plain numpy model of the same weights and its
own tokenizer (configs/zoo/recipe), which share no code with specd.
"""
import json
import sys

import numpy as np
from common import HTTP, MODEL, REFERENCE, ROOT, TARGET, WORK, Watch, check, check_close, check_equal, run

sys.path.insert(0, str(ROOT / "configs/zoo/recipe"))
from bpe import Tokenizer  # noqa: E402
from reference import Llama  # noqa: E402

MODEL_NUMPY, TOKENIZER = Llama(str(TARGET)), Tokenizer(str(TARGET))
END_OF_TEXT = 1
MAX_TOKENS = 48
STOPS = ["\n\n", "\n#", "\nclass ", "\n@", "\nfrom ", "\nimport "]  # more than the four that OpenAI allows


def choices_of(lines, at):
    """The line that follows, and three from elsewhere in the file."""
    others = [line for line in lines[::7] if line != lines[at]]
    return [lines[at]] + others[:3]


def choice_documents():
    for file in sorted((ROOT / "configs/prompts").glob("*.py")):
        lines = [line for line in file.read_text().splitlines() if line.strip()]
        for at in (3, len(lines) // 2):
            yield {"context": "\n".join(lines[:at]) + "\n", "choices": choices_of(lines, at), "label": 0}


def log_probabilities(ids):
    logits = MODEL_NUMPY.forward(np.array([ids]))[0].astype(np.float64)
    logits -= logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def score(context, continuation):
    """(log-likelihood, whether it is what greedy decoding writes), of the tokens that the harness sends: those of the
    context without the blanks at its end, then those of the whole text after as many."""
    before = TOKENIZER.encode(context.rstrip())
    after = TOKENIZER.encode(context + continuation)[len(before):]
    rows = log_probabilities(before + after)[len(before) - 1:-1]
    return rows[np.arange(len(rows)), after].sum(), bool((rows.argmax(-1) == after).all())


def greedy_text(prompt):
    """What greedy decoding writes up to the first stop string or <|end_of_text|>."""
    ids = MODEL_NUMPY.greedy([TOKENIZER.encode(prompt)], MAX_TOKENS)[0].tolist()
    if END_OF_TEXT in ids:
        ids = ids[:ids.index(END_OF_TEXT)]
    text = TOKENIZER.decode(ids)
    return text[:min([text.find(stop) for stop in STOPS if stop in text], default=len(text))]


def write_task(name, documents, task):
    (WORK / f"{name}.jsonl").write_text("".join(json.dumps(document) + "\n" for document in documents))
    task = {"task": name, "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": f"{WORK}/{name}.jsonl"}},
            "test_split": "test", "target_delimiter": "", **task}
    (WORK / f"{name}.yaml").write_text(json.dumps(task))  # JSON is YAML, too


def samples(folder, task):
    file, = folder.rglob(f"samples_{task}_*.jsonl")
    return sorted((json.loads(line) for line in file.open()), key=lambda sample: sample["doc_id"])


def compare(folder, choices, texts):
    """-> largest difference of a log-likelihood"""
    results_file, = folder.rglob("results_*.json")
    results = json.loads(results_file.read_text())["results"]
    right = largest = 0
    got = samples(folder, "specd_choice")
    check_equal(len(got), len(choices), "documents with choices")
    for sample, document in zip(got, choices):
        expected = [score(document["context"], choice) for choice in document["choices"]]
        for (answer,), (log_likelihood, greedy) in zip(sample["resps"], expected):
            check_close(float(answer[0]), log_likelihood, 1e-4, f"log-likelihood after {document['context']!r}")
            check_equal(str(answer[1]), str(greedy), f"whether it is greedy, after {document['context']!r}")
            largest = max(largest, abs(float(answer[0]) - log_likelihood))
        right += max(range(4), key=lambda at: expected[at][0]) == document["label"]
    check_equal(results["specd_choice"]["acc,none"], right / len(choices), "accuracy, and that of the reference")
    for sample, document in zip(samples(folder, "specd_text"), texts):
        check_equal(sample["resps"][0][0], document["target"], f"text after {document['prompt']!r}")
    check_equal(results["specd_text"]["exact_match,none"], 1.0, "exact match with the reference")
    print(f"-> accuracy {right}/{len(choices)}; log-likelihoods differ by {largest:.2e} at most")


choices = list(choice_documents())
prompts = [entry["text"] for entry in REFERENCE]
texts = [{"prompt": prompt, "target": greedy_text(prompt)} for prompt in prompts]
check(any(len(text["target"]) > 40 for text in texts), "every text of the reference is short")
write_task("specd_choice", choices, {"output_type": "multiple_choice", "doc_to_text": "{{context}}",
                                     "doc_to_choice": "{{choices}}", "doc_to_target": "label",
                                     "metric_list": [{"metric": "acc"}]})
write_task("specd_text", texts, {"output_type": "generate_until", "doc_to_text": "{{prompt}}",
                                 "doc_to_target": "{{target}}", "metric_list": [{"metric": "exact_match"}],
                                 "generation_kwargs": {"until": STOPS, "max_gen_toks": MAX_TOKENS,
                                                       "do_sample": False}})
for concurrent, batch in ((1, 4), (4, 1)):
    output = WORK / f"concurrent_{concurrent}"
    with Watch() as watch:
        run(["lm_eval", "run", "--model", "local-completions", "--tasks", "specd_choice,specd_text",
             "--include_path", WORK, "--batch_size", batch, "--log_samples", "--output_path", output, "--model_args",
             f"model={MODEL},base_url={HTTP}/v1/completions,num_concurrent={concurrent},max_retries=1"],
            cwd=WORK)
    watch.check_outcomes(sum(len(document["choices"]) for document in choices) + len(texts))
    compare(output, choices, texts)
