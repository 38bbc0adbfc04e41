#!/usr/bin/env bash
# Real clients, in pinned versions, against a real daemon with the small model of this tree (tests/clients/README.md):
#
#   bash tests/clients/run.sh                  all
#   bash tests/clients/run.sh openai lm_eval   some of: curl openai lm_eval aiperf triton genai_perf page
#
# Installs packages from Debian and PyPI at first, into $SPECD_CLIENTS_CACHE (build/clients). The daemon and its
# clients then run in a network namespace of their own: the ports of Triton's tutorial are free there, and nothing can
# be downloaded. Exit code 0: every client passed, the daemon's books balance, and it ended with 0.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. host/install_deps.sh

all=(curl openai lm_eval aiperf triton genai_perf page)
clients=("$@")
if [ $# -eq 0 ]; then clients=("${all[@]}"); fi
for client in "${clients[@]}"; do
  case " ${all[*]} " in
    *" $client "*) ;;
    *) echo "usage: bash tests/clients/run.sh [CLIENT...], each one of: ${all[*]}; not '$client'" >&2; exit 2 ;;
  esac
done

cache=${SPECD_CLIENTS_CACHE:-build/clients}
step() { printf '\n== %s\n' "$*"; }

# environment NAME: the virtual environment of requirements/NAME.txt, made anew when that file has changed.
environment() {
  local wanted=tests/clients/requirements/$1.txt folder=$cache/$1
  if cmp -s "$wanted" "$folder/installed.txt"; then return 0; fi
  rm -rf "$folder"
  # --no-deps: the file names every package, so that none comes in a version that it does not name.
  /usr/bin/python3 -m venv "$folder" && "$folder/bin/pip" -q install --no-deps -r "$wanted" &&
    cp "$wanted" "$folder/installed.txt"
}

if [ "${SPECD_CLIENTS_ALONE:-}" != yes ]; then
  step "Packages (${clients[*]})"
  # libb64 is for perf_analyzer, chromium for the live page.
  specd_install "${specd_build_packages[@]}" python3 python3-venv iproute2 curl jq libb64-0d chromium || exit 1
  specd_continue_as_owner bash tests/clients/run.sh "$@"
  mkdir -p "$cache"
  for client in "${clients[@]}"; do
    case "$client" in curl | page) continue ;; esac
    environment "$client" || { echo "tests/clients: $client cannot be installed" >&2; exit 1; }
  done
  step "Build (build/cpu)"
  if [ ! -f build/cpu/CMakeCache.txt ]; then cmake --preset cpu > /dev/null || exit 1; fi
  cmake --build --preset cpu --target specd specd_plugins || exit 1
  alone=(unshare --net)
  if [ "$(id -u)" -ne 0 ]; then alone=(unshare --map-current-user --keep-caps --net); fi
  SPECD_CLIENTS_ALONE=yes exec "${alone[@]}" bash tests/clients/run.sh "${clients[@]}"
fi
ip link set lo up || exit 1

work=$(mktemp -d)
daemon=
clean_up() {
  if [ -n "$daemon" ]; then kill -9 "$daemon" 2>/dev/null; fi
  rm -rf "$work"
}
trap clean_up EXIT
# A model folder as Triton's tutorial names it, and the drafters of that tutorial: a trained head and a draft model.
cat > "$work/specd.yaml" <<YAML
listen: unix:$work/specd.sock
http: {listen: '127.0.0.1:8000'}
kserve: {listen: '127.0.0.1:8001', insecure: true, metrics_listen: '127.0.0.1:8002'}
engine: {max_sequences: 8}
model:
  name: tensorrt_llm
  path: $PWD/configs/zoo/pico-target
  kv: {dtype: f32}  # as the reference computes
  chat_template: $PWD/tests/reference/chat_templates/chatml.jinja
draft_models:
  - {name: pico-draft, path: $PWD/configs/zoo/pico-draft}
plugins:
  directories: [$PWD/build/cpu/plugins]
  cache_directory: $work/plugin-cache
default_route: eagle3
routes:
  eagle3:
    drafter:
      plugin: specd.drafter.eagle3
      config: {weights: $PWD/configs/zoo/pico-eagle3, mode: chain, draft_tokens: 3}
    verifier: {plugin: specd.verifier.match}
  draft_target:
    drafter:
      plugin: specd.drafter.draft_target
      config: {model: pico-draft, draft_tokens: 3}
    verifier: {plugin: specd.verifier.match}
  prompt_lookup:
    drafter: {plugin: specd.drafter.prompt_lookup}
    verifier: {plugin: specd.verifier.match}
YAML
build/cpu/bin/specd serve --config "$work/specd.yaml" > "$work/specd.log" 2>&1 < /dev/null &
daemon=$!
for _ in $(seq 600); do
  if grep -q ' ready on unix:' "$work/specd.log" || ! kill -0 "$daemon" 2>/dev/null; then break; fi
  sleep 0.1
done
if ! grep -q ' ready on unix:' "$work/specd.log"; then
  echo "specd did not start:" >&2
  cat "$work/specd.log" >&2
  exit 1
fi

export SPECD_HTTP=http://127.0.0.1:8000 SPECD_KSERVE=127.0.0.1:8001 SPECD_TRITON_METRICS=http://127.0.0.1:8002
export SPECD_MODEL=tensorrt_llm SPECD_ROOT=$PWD
# What clients leave in temporary and home folders goes with the work folder.
export PYTHONUNBUFFERED=1 HOME=$work TMPDIR=$work
table=()
failed=0
# try NAME COMMAND...: runs it and notes how it ended. What it printed is shown if it failed, else its lines with `-> `.
try() {
  local name=$1 start=$SECONDS result=passed
  shift
  mkdir "$work/$name"
  step "$name"
  if SPECD_WORK=$work/$name timeout 600 "$@" > "$work/$name.log" 2>&1 < /dev/null; then
    grep '^-> ' "$work/$name.log"
  else
    result=FAILED
    failed=1
    tail -n 100 "$work/$name.log"
  fi
  table+=("$(printf '%-11s %s (%d s)' "$name" "$result" $((SECONDS - start)))")
}
for client in "${clients[@]}"; do
  case "$client" in
    curl) try curl bash tests/clients/curl.sh ;;
    page) try page /usr/bin/python3 tests/host/page/page_test.py build/cpu/bin/specd ;;  # has a daemon of its own
    *) try "$client" "$cache/$client/bin/python" "tests/clients/${client}_client.py" ;;
  esac
done
try books /usr/bin/python3 tests/clients/books.py

kill "$daemon"
wait "$daemon"
code=$?
daemon=
if [ $code -ne 0 ]; then
  failed=1
  table+=("specd ended with $code")
  tail -n 100 "$work/specd.log"
fi
printf '\nclients:\n'
printf '  %s\n' "${table[@]}"
exit $failed
