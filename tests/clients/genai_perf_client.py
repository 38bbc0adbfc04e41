"""GenAI-Perf as Triton's tutorial of speculative decoding calls it: KServe's gRPC through perf_analyzer, in windows of
ten seconds. Then a given number of requests, streamed and with their metrics, so that its acceptance can be compared.
"""
import csv
import json
import os
import sys
import sysconfig
from pathlib import Path

from common import KSERVE, MODEL, ROOT, TARGET, WORK, Watch, check, check_equal, run

inputs = WORK / "converted_humaneval.jsonl"
inputs.write_text("".join(json.dumps({"text": file.read_text()[:400]}) + "\n"
                          for file in sorted((ROOT / "configs/prompts").glob("*.py"))))
# perf_analyzer is linked with CUDA's runtime, which PyPI has as a package.
environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
               "LD_LIBRARY_PATH": str(Path(sysconfig.get_path("purelib")) / "nvidia/cuda_runtime/lib")}


def profile(name, *more):
    """What each request got, the rows of the report, and what the daemon counted."""
    export = f"{name}.json"
    with Watch() as watch:
        printed = run(["genai-perf", "profile", "-m", MODEL, "--service-kind", "triton", "--backend", "tensorrtllm",
                       "--input-file", inputs, "--tokenizer", TARGET, "--profile-export-file", export,
                       "--url", KSERVE.replace("127.0.0.1", "localhost"), "--concurrency", "1", *more],
                      cwd=WORK, env=environment)
    check("unreachable metrics URL" not in printed, "GenAI-Perf found no metrics on port 8002")
    file, = (WORK / "artifacts").rglob(export)
    replies = [request["response_outputs"] for request in json.loads(file.read_text())["experiments"][0]["requests"]]
    texts = ["".join(output.get("text_output", "") for output in outputs) for outputs in replies]
    check(texts and all(texts), f"{len(texts)} requests, {texts.count('')} of them without a text")
    table, = (WORK / "artifacts").rglob(f"{name}_genai_perf.csv")
    with table.open() as rows:
        report = {row[0]: row[1:] for row in csv.reader(rows) if row}
    check_equal(float(report["Request Count (count)"][0]), len(texts), "requests in the report")
    check(float(report["Output Sequence Length (tokens)"][0]) > 1, "the report has no output")
    finished = watch["requests_stop"] + watch["requests_length"]
    watch.check_outcomes(finished)
    check(finished >= len(texts), f"{len(texts)} requests in the report, the daemon finished {finished}")
    check(watch.accepted > 0, "nothing was accepted")
    return replies, report, watch


replies, _, watch = profile("my_profile_export")
check(len(replies) >= 3, f"{len(replies)} requests in three windows of ten seconds")
print(f"-> {len(replies)} requests as in the tutorial; {watch.accepted:.0f} of {watch.drafted:.0f} drafted tokens accepted")

replies, report, watch = profile("with_metrics", "--streaming", "--request-count", "12",
                                 "--extra-inputs", "sampling_param_return_perf_metrics:true")
check_equal(len(replies), 12, "requests")
check(all(len(outputs) > 1 for outputs in replies), "a streamed text came in one piece")
check("Inter Token Latency (ms)" in report, "the report has no time between tokens")
sums = [sum(int(output[name]) for outputs in replies for output in outputs if output.get(name))
        for name in ("total_accepted_draft_tokens", "total_draft_tokens")]
check_equal(sums, [watch.accepted, watch.drafted], "accepted and drafted in the replies, and in /metrics")
print(f"-> 12 requests, streamed; {sums[0]} of {sums[1]} drafted tokens accepted, as in /metrics")
