"""What the clients' scripts share: where the daemon is, its counters, its prompts, and how a check fails.

Only the standard library: each script runs in the virtual environment of its own client. run.sh sets

    SPECD_HTTP            http://127.0.0.1:8000, the API of OpenAI, /metrics and Triton's HTTP
    SPECD_KSERVE          127.0.0.1:8001, KServe's gRPC
    SPECD_TRITON_METRICS  http://127.0.0.1:8002
    SPECD_MODEL           the model's name
    SPECD_ROOT            the root of this tree
    SPECD_WORK            an empty folder for the client's files
"""
import json
import math
import os
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

HTTP = os.environ["SPECD_HTTP"]
KSERVE = os.environ["SPECD_KSERVE"]
TRITON_METRICS = os.environ["SPECD_TRITON_METRICS"]
MODEL = os.environ["SPECD_MODEL"]
ROOT = Path(os.environ["SPECD_ROOT"])
WORK = Path(os.environ["SPECD_WORK"])

TARGET = ROOT / "configs/zoo/pico-target"  # its tokenizer.json serves clients that count tokens themselves

# Prompts with the 64 tokens that a numpy model writes after them, greedy (configs/zoo/recipe/reference.py).
REFERENCE = json.loads((ROOT / "configs/zoo/reference/reference.json").read_text())["prompts"]


def check(holds, what):
    """Ends the client's script as failed unless `holds`."""
    if not holds:
        raise SystemExit(f"FAILED: {what}")


def check_equal(got, expected, what):
    check(got == expected, f"{what}\n  got      {got!r}\n  expected {expected!r}")


def check_close(got, expected, tolerance, what):
    """`tolerance` is absolute. Not a number is close to nothing."""
    check(math.isfinite(got) and abs(got - expected) <= tolerance,
          f"{what}\n  got      {got!r}\n  expected {expected!r}, within {tolerance}")


def counters(server=HTTP):
    """Name of a series -> sum of its values over all labels; of the outcomes of requests also one by one."""
    sums = {}
    with urllib.request.urlopen(f"{server}/metrics", timeout=30) as reply:
        text = reply.read().decode()
    for line in text.splitlines():
        if line.startswith("#") or not line:
            continue
        name, labels, value = re.fullmatch(r"([a-zA-Z_:][\w:]*)(\{.*\})? (\S+)", line).groups()
        keys = [name]
        if name == "specd_requests_total":
            keys.append("requests_" + re.search(r'outcome="(\w+)"', labels).group(1))
        for key in keys:
            sums[key] = sums.get(key, 0.0) + float(value)
    return sums


class Watch:
    """What a client's requests added to the daemon's counters.

        with Watch() as watch: ...requests...
        watch["requests_length"], watch.drafted, watch.accepted
    """

    def __enter__(self):
        self._before = counters()
        return self

    def __exit__(self, kind, value, trace):
        if kind is None:
            self._after = settled_counters()

    def __getitem__(self, series):
        check(series in self._after, f"/metrics has no series {series}")
        return self._after[series] - self._before.get(series, 0.0)

    @property
    def drafted(self):
        return self["vllm:spec_decode_num_draft_tokens_total"]

    @property
    def accepted(self):
        return self["vllm:spec_decode_num_accepted_tokens_total"]

    def check_outcomes(self, finished):
        """`finished` requests ended with a text, and none in another way."""
        check_equal(self["requests_stop"] + self["requests_length"], finished, "requests that the daemon finished")
        for outcome in ("error", "refused", "cancelled"):
            check_equal(self["requests_" + outcome], 0, f"requests that ended with `{outcome}`")


def settled_counters():
    """Counters once nothing runs: a client can have its last byte before the daemon has counted the request."""
    end = time.monotonic() + 30
    while True:
        now = counters()
        if now["specd_requests_running"] == now["specd_requests_waiting"] == now["specd_kv_blocks_used"] == 0:
            return now
        check(time.monotonic() < end, "requests still run or hold pages 30 s after their client ended")
        time.sleep(0.05)


def run(command, timeout_s=300, **kwargs):
    """Runs a program of the client's environment and returns what it printed; a failure ends the script."""
    command = [str(word) for word in command]
    command[0] = str(Path(sys.executable).parent / command[0])
    print("$", *command, flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout_s,
                          **kwargs)
    print(done.stdout, flush=True)
    check_equal(done.returncode, 0, f"exit code of {Path(command[0]).name}")
    return done.stdout
