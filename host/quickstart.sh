#!/usr/bin/env bash
# From a fresh Debian 12 to tokens: installs what is missing, builds, serves the small model of this
# tree, compares plain decoding with four drafters on real prompts. Needs root or sudo, and nothing but
# the Debian archive from the network.
#
#   bash host/quickstart.sh           build, compare, stop
#   bash host/quickstart.sh --serve   and leave the daemon running
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. host/install_deps.sh

serve=no
case "${1:-}" in
  '') ;;
  --serve) serve=yes ;;
  *) echo "usage: bash host/quickstart.sh [--serve]" >&2; exit 2 ;;
esac

work=build/quickstart
socket=$work/specd.sock
daemon=
log=$work/specd.log
clean_up() {
  if [ -n "$daemon" ]; then
    kill "$daemon" 2>/dev/null || true
    wait "$daemon" 2>/dev/null || true
  fi
}
trap clean_up EXIT

step() { printf '\n== %s\n' "$*"; }

# $1: a configuration. Returns when the daemon answers.
start_daemon() {
  : > "$log"
  # A process group of its own: with --serve it outlives this terminal.
  setsid build/cpu/bin/specd serve --config "$1" >> "$log" 2>&1 < /dev/null &
  daemon=$!
  for _ in $(seq 600); do
    if grep -q ' ready on unix:' "$log"; then return 0; fi
    if ! kill -0 "$daemon" 2>/dev/null; then break; fi
    sleep 0.1
  done
  echo "specd did not start:" >&2
  cat "$log" >&2
  return 1
}
stop_daemon() {
  kill "$daemon"
  wait "$daemon"
  daemon=
}

step "Packages"
specd_install "${specd_build_packages[@]}"
echo "all there"
specd_continue_as_owner bash host/quickstart.sh "$@"

step "Build (build/cpu)"
launcher=()
if command -v ccache >/dev/null; then
  launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache -DCMAKE_C_COMPILER_LAUNCHER=ccache)
fi
tests=OFF
# A tree that tests/run.sh has built keeps its tests.
if grep -qs '^SPECD_TESTS:BOOL=ON' build/cpu/CMakeCache.txt; then tests=ON; fi
cmake --preset cpu -DSPECD_TESTS=$tests "${launcher[@]}" > /dev/null
cmake --build --preset cpu --target specd specctl specd-bench specd_plugins

mkdir -p "$work"
ctl() { build/cpu/bin/specctl --socket "$socket" "$@"; }
runs=(--prompts configs/prompts --max-tokens 128 --temperature 0.8,0 --seed 1)

step "Recording what plain decoding writes, for the replay route"
# The replay route needs the recording, so the first start has a recording of nothing.
echo '{"sequences": []}' > "$work/replay.json"
start_daemon configs/quickstart.yaml
ctl record --route off "${runs[@]}" -o "$work/recorded.json"
stop_daemon
mv "$work/recorded.json" "$work/replay.json"
echo "$(find configs/prompts -name '*.py' | wc -l) prompts, two samplings each"

step "Start"
start_daemon configs/quickstart.yaml
cat "$log"

step "One prompt, streamed (configs/prompts/tree_walk.py, temperature 0.8, route prompt_lookup)"
tail -n 3 configs/prompts/tree_walk.py
ctl generate --prompt-file configs/prompts/tree_walk.py --temperature 0.8 --seed 1 --max-tokens 128 \
  --route prompt_lookup

step "The same prompts on five routes"
result=0
ctl compare --routes off,prompt_lookup,draft_target,eagle3,replay "${runs[@]}" --repeat 2 || result=$?
cat <<'TEXT'

tokens/s       median decode speed of one request alone
accepted/step  drafted tokens that were accepted, per step; each step writes one more by itself
identical      the token ids equal those of plain decoding, at every seed and every draft
Read the rows at temperature 0.8 first. The small model soon repeats itself when it decodes greedily,
and repetition is what prompt lookup guesses best: the greedy rows flatter it. `eagle3` is a head of one
layer, trained for this model (configs/zoo/HEADS_CARD.md). `replay` proposes a recording of the very same
text: the most that any drafter could gain here.
TEXT
if [ $result -ne 0 ]; then
  echo "quickstart: the comparison failed (exit code $result)" >&2
  exit $result
fi

step "The same on a target that streams from memory"
# The small model fits the processor's caches. The ballast emits the same tokens with weights that do not.
ballast=$work/ballast-512MB
if [ ! -d "$ballast" ]; then
  build/cpu/bin/specd-bench ballast --bytes 512MB configs/zoo/pico-target "$ballast"
fi
# Ballast writes the same tokens, so the recording of the small model serves it too.
build/cpu/bin/specd-bench run --config configs/quickstart.yaml --model "$ballast" \
  --routes prompt_lookup,draft_target,eagle3,replay --prompts configs/prompts --limit 3 \
  --max-tokens 64 --temperature 0.8,0 --seed 1 --repeat 1 || result=$?
cat <<'TEXT'

tau    tokens per step        S      speed by that of `off`, with its 95 % interval
eta    S / tau: how much of the guessed tokens becomes speed. A step that checks guesses costs more than a
       plain one where weights come from caches, and nearly the same where they stream from memory.
`off (again)` shows the noise of this run. host/bench/README.md explains specd-bench.
TEXT
if [ $result -ne 0 ]; then
  echo "quickstart: the comparison failed (exit code $result)" >&2
  exit $result
fi

step "What next (as user $(id -un 2>/dev/null || id -u), in $PWD)"
cat <<TEXT
  build/cpu/bin/specd serve --config configs/minimal.yaml &
  build/cpu/bin/specctl --socket build/specd.sock generate --prompt 'def main():' --temperature 0.8
  build/cpu/bin/specctl --socket build/specd.sock routes
  configs/README.md explains the configuration, sdk/README.md how to write a drafter of your own.
  bash tests/run.sh runs the tests.
TEXT
if [ $serve = yes ]; then
  echo "The daemon still runs: process $daemon, socket $socket, log $log. Stop it with: kill $daemon"
  disown "$daemon"
  daemon=
fi
