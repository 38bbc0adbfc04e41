"""AIPerf: completions and chats, streamed, with the daemon's /metrics scraped meanwhile. What it reports of drafts, from
the replies and from the scrapes, is what the daemon counted.
"""
import json

from common import HTTP, MODEL, REFERENCE, TARGET, WORK, Watch, check, check_close, check_equal, run

REQUESTS, TOKENS = 24, 48

inputs = WORK / "inputs.jsonl"
inputs.write_text("".join(json.dumps({"text": entry["text"]}) + "\n" for entry in REFERENCE))


def scraped(export, family):
    """What a counter gained between the first scrape and the last, over all its labels."""
    check(family in export["metrics"], f"AIPerf scraped no {family}")
    return sum(series["stats"]["total"] for series in export["metrics"][family]["series"])


for kind, path in (("completions", "/v1/completions"), ("chat", "/v1/chat/completions")):
    folder = WORK / kind
    with Watch() as watch:
        run(["aiperf", "profile", "--model", MODEL, "--url", HTTP, "--endpoint-type", kind, "--endpoint", path,
             "--streaming", "--input-file", inputs, "--custom-dataset-type", "single_turn", "--tokenizer", TARGET,
             "--request-count", REQUESTS, "--concurrency", 4, "--osl", TOKENS, "--use-server-token-count",
             "--extra-inputs", "temperature:0", "--extra-inputs", "ignore_eos:true",
             "--extra-inputs", "metrics:summary",  # vLLM's server has an option for it, specd a field
             "--artifact-dir", folder, "--ui", "none"], cwd=WORK)
    watch.check_outcomes(REQUESTS)

    report = json.loads((folder / "profile_export_aiperf.json").read_text())
    check_equal(report["error_summary"], [], "errors that AIPerf counted")
    check_equal(report["request_error_rate"]["avg"], 0, "rate of errors")
    check_equal(report["request_count"]["avg"], REQUESTS, "requests that AIPerf counted")
    check_equal(report["total_usage_completion_tokens"]["avg"], REQUESTS * TOKENS, "completion tokens")
    check(report["time_to_first_token"]["avg"] < report["request_latency"]["avg"], "the first token came last")
    check(watch.drafted > 0, "nothing was drafted")
    check_equal((report["total_accepted_draft_tokens"]["avg"], report["total_draft_tokens"]["avg"]),
                (watch.accepted, watch.drafted), "accepted and drafted in the replies, and in /metrics")
    check_close(report["spec_decode_overall_draft_acceptance_rate"]["avg"], 100 * watch.accepted / watch.drafted, 1e-6,
                "acceptance rate in percent")

    export = json.loads((folder / "server_metrics_export.json").read_text())
    check_equal(export["summary"]["endpoints_successful"], [f"{HTTP}/metrics"], "scraped endpoints")
    for family in ("num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_accepted_tokens_per_pos"):
        check_equal(scraped(export, f"vllm:spec_decode_{family}"), watch[f"vllm:spec_decode_{family}_total"],
                    f"vllm:spec_decode_{family} as scraped")
    check_equal(scraped(export, "vllm:generation_tokens"), REQUESTS * TOKENS, "vllm:generation_tokens as scraped")
    check_equal(scraped(export, "vllm:request_success"), REQUESTS, "vllm:request_success as scraped")
    print(f"-> {kind}: {watch.accepted:.0f} of {watch.drafted:.0f} drafted tokens accepted, in replies, scrapes and /metrics")
