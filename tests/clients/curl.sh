#!/usr/bin/env bash
# curl, as the documents of the servers that specd stands in for print it. Run by run.sh.
set -euo pipefail

work=$SPECD_WORK
trap 'echo "FAILED: line $LINENO"; cat "$work/answer"' ERR
# same JQ TEXT: the last answer, read by the jq program, is TEXT.
same() {
  local got
  got=$(jq -r "$1" "$work/answer")
  if [ "$got" != "$2" ]; then
    printf 'FAILED: %s of the answer is %q, expected %q:\n' "$1" "$got" "$2"
    cat "$work/answer"
    exit 1
  fi
}
# sum SERIES: over all labels, from /metrics.
sum() { curl -sf "$SPECD_HTTP/metrics" | awk -v s="$1" 'index($1, s "{") == 1 { n += $2 } END { print n + 0 }'; }

echo "-- OpenAI, vLLM"
curl -sf "$SPECD_HTTP/v1/models" > "$work/answer"
same '.data[0].id' "$SPECD_MODEL"
curl -sf "$SPECD_HTTP/v1/completions" -H "Content-Type: application/json" \
  -d "{\"model\": \"$SPECD_MODEL\", \"prompt\": \"def main():\", \"max_tokens\": 7, \"temperature\": 0}" > "$work/answer"
same .usage.completion_tokens 7
# A body of more than a mebibyte makes curl ask first (Expect: 100-continue).
jq -n '{prompt: "def main():", max_tokens: 3, ignored: ("x" * 1500000)}' > "$work/large"
curl -sf "$SPECD_HTTP/v1/completions" -H "Content-Type: application/json" -d "@$work/large" > "$work/answer"
same .usage.completion_tokens 3

echo "-- Triton's tutorial of speculative decoding with TRT-LLM, word for word"
curl -X POST localhost:8000/v2/models/tensorrt_llm/generate \
  -d '{"text_input": "What is ML?", "sampling_param_max_tokens": 50}' > "$work/answer"
same 'keys | join(" ")' 'model_name model_version text_output'
same .model_name tensorrt_llm
same .model_version 1
same '.text_output | startswith("What is ML?")' true

drafted=$(sum specd_spec_decode_num_draft_tokens_total)
accepted=$(sum specd_spec_decode_num_accepted_tokens_total)
curl -X POST localhost:8000/v2/models/tensorrt_llm/generate \
  -d '{"text_input": "What is ML?", "sampling_param_max_tokens": 50, "sampling_param_return_perf_metrics": true}' | jq > "$work/answer"
same '.text_output | startswith("What is ML?")' true
# These are texts there, numbers included.
same '[.acceptance_rate, .total_accepted_draft_tokens, .total_draft_tokens] | map(type) | unique | join(" ")' string
for _ in $(seq 100); do # the daemon counts a request after its last byte
  if [ "$(sum specd_requests_running)" = 0 ]; then break; fi
  sleep 0.1
done
drafted=$(($(sum specd_spec_decode_num_draft_tokens_total) - drafted))
accepted=$(($(sum specd_spec_decode_num_accepted_tokens_total) - accepted))
same .total_draft_tokens $drafted
same .total_accepted_draft_tokens $accepted
same "(.acceptance_rate | tonumber) - $accepted / $drafted | fabs < 1e-6" true
echo "-> acceptance: $accepted of $drafted drafted tokens, as in /metrics"

echo "-- the backend's own document"
curl -X POST localhost:8000/v2/models/tensorrt_llm/generate -d '{"text_input": "The future of AI is", "sampling_param_max_tokens":10}' | jq > "$work/answer"
same '.text_output | startswith("The future of AI is")' true

echo "-- the tutorial with vLLM, with this model's name"
curl -X POST localhost:8000/v2/models/tensorrt_llm/generate -d '{"text_input": "What is Triton Inference Server?", "parameters": {"stream": false, "temperature": 0}}' | jq > "$work/answer"
same '.text_output | startswith("What is Triton Inference Server?")' true

echo "-- a stream: events of server-sent events, without [DONE]"
curl -sN -X POST localhost:8000/v2/models/tensorrt_llm/generate_stream \
  -d '{"text_input": "def main():", "sampling_param_max_tokens": 20, "streaming": true}' > "$work/events"
if grep -qv -e '^data: {' -e '^\r\?$' "$work/events" || [ "$(grep -c '^data: {' "$work/events")" -lt 2 ]; then
  echo "FAILED: not several events of JSON:"
  cat "$work/events"
  exit 1
fi
sed -n 's/^data: //p' "$work/events" | jq -s '{text: map(.text_output) | join("")}' > "$work/streamed"
curl -s -X POST localhost:8000/v2/models/tensorrt_llm/generate \
  -d '{"text_input": "def main():", "sampling_param_max_tokens": 20}' > "$work/answer"
same .text_output "$(jq -r .text "$work/streamed")"
