"""GenAI-Perf as Triton's tutorial of speculative decoding calls it: KServe's gRPC through perf_analyzer."""
import csv
import json
import os
import sys
import sysconfig
from pathlib import Path

from common import KSERVE, MODEL, ROOT, TARGET, WORK, Watch, check, check_equal, run

inputs = WORK / "converted.jsonl"
inputs.write_text("".join(json.dumps({"text": file.read_text()[:400]}) + "\n"
                          for file in sorted((ROOT / "configs/prompts").glob("*.py"))))
# perf_analyzer links with CUDA's runtime, also where it measures no GPU; the package of PyPI has it.
libraries = Path(sysconfig.get_path("purelib")) / "nvidia/cuda_runtime/lib"
environment = {**os.environ, "LD_LIBRARY_PATH": str(libraries), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

for streaming in ([], ["--streaming"]):
    export = f"my_profile_export{len(streaming)}.json"
    with Watch() as watch:
        printed = run(["genai-perf", "profile", "-m", MODEL, "--service-kind", "triton", "--backend", "tensorrtllm",
                       "--input-file", inputs, "--tokenizer", TARGET, "--profile-export-file", export,
                       "--url", f"localhost:{KSERVE.split(':')[1]}", "--concurrency", "1", *streaming],
                      cwd=WORK, env=environment)
    profile, = (WORK / "artifacts").rglob(export)
    requests = json.loads(profile.read_text())["experiments"][0]["requests"]
    texts = ["".join(output["text_output"] for output in request["response_outputs"]) for request in requests]
    check(len(texts) >= 10 and all(texts), f"{len(texts)} requests, {sum(not text for text in texts)} without a text")
    # perf_analyzer lets requests of its last window end unrecorded.
    watch.check_outcomes(watch["requests_stop"] + watch["requests_length"])
    check(watch["requests_stop"] + watch["requests_length"] >= len(texts), "more requests than the daemon finished")
    check(watch.accepted > 0, "nothing was accepted")
    table, = (WORK / "artifacts").rglob(export.replace(".json", "_genai_perf.csv"))
    rows = {row[0]: row[1:] for row in csv.reader(table.open()) if row}
    check_equal(float(rows["Request Count (count)"][0]), len(texts), "requests in the report")
    check("Output Sequence Length (tokens)" in rows, "the report has no output length")
    print(f"  {len(texts)} requests; {watch.accepted:.0f} of {watch.drafted:.0f} drafted tokens accepted")
