#!/usr/bin/env bash
# Builds the fuzzers with clang under ASan and UBSan and runs each for so many seconds, one on every
# processor at a time, from its corpus in the tree. A finding is left in build/fuzz/findings and fails
# the run: shrink it, fix the bug, and add it to the corpus.
#
#   bash tests/fuzz/run.sh [SECONDS=60] [NAME...]
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
seconds=${1:-60}
shift || true
. host/install_deps.sh
specd_install "${specd_build_packages[@]}" "${specd_test_packages[@]}" || exit 1

cmake --preset fuzz -DSPECD_TESTS=ON -DCMAKE_CXX_COMPILER_LAUNCHER=ccache -DCMAKE_C_COMPILER_LAUNCHER=ccache > /dev/null &&
  cmake --build --preset fuzz --target fuzzers || exit 1
names=("$@")
if [ ${#names[@]} -eq 0 ]; then
  for file in build/fuzz/bin/fuzz_*; do names+=("${file#build/fuzz/bin/fuzz_}"); done
fi
mkdir -p build/fuzz/findings build/fuzz/logs
export ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1

# One second is the limit of an input, three under the sanitizers; memory is what the machine of CI can spare.
one() {
  local name=$1 corpus=build/fuzz/corpus/$1 log=build/fuzz/logs/$1.log
  mkdir -p "$corpus"
  if "build/fuzz/bin/fuzz_$name" -max_total_time="$2" -timeout=3 -rss_limit_mb=3072 -max_len=65536 \
       -artifact_prefix="build/fuzz/findings/$name-" -print_final_stats=1 \
       "$corpus" "tests/fuzz/corpus/$name" > "$log" 2>&1; then
    printf 'fuzz %-20s %s executions, %s edges, nothing found\n' "$name" \
      "$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")" \
      "$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$log" | tail -1)"
  else
    printf 'fuzz %-20s FAILED, see %s and build/fuzz/findings\n' "$name" "$log"
    tail -40 "$log"
    return 1
  fi
}
export -f one
printf '%s\n' "${names[@]}" | xargs -P "$(nproc)" -I{} bash -c "one {} $seconds"
