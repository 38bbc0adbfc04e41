#!/usr/bin/env bash
# Installs what is missing, builds and tests everything on a Debian 12 machine:
#
#   cpu    all rooms
#   asan   all rooms again under AddressSanitizer and UndefinedBehaviorSanitizer
#   tsan   the engine under ThreadSanitizer, without host: gRPC is not built for it
#   fuzz   every fuzzer of tests/fuzz for a minute
#
#   bash tests/run.sh            all four
#   bash tests/run.sh --fast     cpu only
#   bash tests/run.sh --nightly  all four, a longer storm, ten minutes of each fuzzer, and the full product
#                                of the identity matrix
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. host/install_deps.sh

presets=(cpu asan tsan)
nightly=0
fuzz_seconds=60
case "${1:-}" in
  '') ;;
  --fast) presets=(cpu); fuzz_seconds=0 ;;
  --nightly) nightly=1; fuzz_seconds=600; export SPECD_STORM_SECONDS=60 ;;
  *) echo "usage: bash tests/run.sh [--fast | --nightly]" >&2; exit 2 ;;
esac

specd_install "${specd_build_packages[@]}" "${specd_test_packages[@]}" || exit 1
specd_continue_as_owner bash tests/run.sh "$@"

export ASAN_OPTIONS=detect_leaks=1:abort_on_error=0:strict_string_checks=1
export UBSAN_OPTIONS=print_stacktrace=1
export TSAN_OPTIONS=halt_on_error=1
summary=()
failed=0
for preset in "${presets[@]}"; do
  printf '\n== %s\n' "$preset"
  start=$SECONDS
  if cmake --preset "$preset" -DSPECD_TESTS=ON \
       -DCMAKE_CXX_COMPILER_LAUNCHER=ccache -DCMAKE_C_COMPILER_LAUNCHER=ccache > /dev/null &&
     cmake --build --preset "$preset" &&
     ctest --test-dir "build/$preset" --output-on-failure -j "$(nproc)"; then
    result=passed
  else
    result=FAILED
    failed=1
  fi
  summary+=("$preset $result ($((SECONDS - start)) s)")
done

if [ $fuzz_seconds -gt 0 ]; then
  printf '\n== fuzz\n'
  start=$SECONDS
  if bash tests/fuzz/run.sh $fuzz_seconds; then
    result=passed
  else
    result=FAILED
    failed=1
  fi
  summary+=("fuzz $result ($((SECONDS - start)) s)")
fi

if [ $nightly -eq 1 ]; then
  printf '\n== the full product\n'
  start=$SECONDS
  if SPECD_NIGHTLY=1 ctest --test-dir build/cpu -R FullProduct --output-on-failure -j "$(nproc)"; then
    result=passed
  else
    result=FAILED
    failed=1
  fi
  summary+=("full product $result ($((SECONDS - start)) s)")
fi

printf '\nspecd tests:'
printf ' %s;' "${summary[@]}"
if [ $failed -eq 0 ]; then printf ' all passed\n'; else printf ' FAILED\n'; fi
exit $failed
