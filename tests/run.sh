#!/usr/bin/env bash
# Installs what is missing, builds and tests on a Debian 12 machine (tests/README.md: what runs where):
#
#   bash tests/run.sh              cpu: everything but what is labelled long
#   bash tests/run.sh --sanitized  asan and tsan: the tests that tests/sanitized.cmake lists
#   bash tests/run.sh --all        cpu, asan and tsan with every test that is built there, tidy with every
#                                  check, each fuzzer for a minute
#   bash tests/run.sh --nightly    as --all, with a longer storm, ten minutes of each fuzzer, the full
#                                  product of the identity matrices, defects in the CUDA kernels, and real
#                                  clients, which come from PyPI
#   bash tests/run.sh --all STAGE...     these stages of it alone, as its summary names them
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. host/install_deps.sh

mode=${1:-} by_folder=ON
case "$mode" in
  '' | --sanitized) ;;
  --all) by_folder=OFF ;;
  --nightly) by_folder=OFF; export SPECD_STORM_SECONDS=60 ;;
  *) echo "usage: bash tests/run.sh [--sanitized | --all | --nightly] [STAGE...]" >&2; exit 2 ;;
esac
chosen_stages=("${@:2}")

specd_install "${specd_build_packages[@]}" "${specd_test_packages[@]}" || exit 1
specd_continue_as_owner bash tests/run.sh "$@"

# Without these ccache does not cache what uses a precompiled header.
export CCACHE_SLOPPINESS=pch_defines,time_macros
# More tests at a time than processors: many wait for a daemon or a deadline.
jobs=$(($(nproc) + 3))
summary=() reports=()
failed=0

# stage NAME COMMAND...: runs it, unless others were chosen, and notes how it ended.
stage() {
  local name=$1 start=$SECONDS result=passed
  shift
  if [ ${#chosen_stages[@]} -gt 0 ] && [[ " ${chosen_stages[*]} " != *" $name "* ]]; then return; fi
  printf '\n== %s\n' "$name"
  if ! "$@"; then
    result=FAILED
    failed=1
  fi
  summary+=("$name $result ($((SECONDS - start)) s)")
}

# preset NAME [LABEL]: builds and runs every test, or those with the label.
preset() {
  local name=$1 target=all chosen=() alone=OFF fresh=()
  if [ $# -gt 1 ]; then
    target=$2_tests
    chosen=(-L "$2")
  elif [ "$by_folder" = ON ]; then
    chosen=(-LE long)
  fi
  # In the stage tsan of --all each test compiles alone, so a missing #include is found.
  if [ "$name" = tsan ] && [ "$by_folder" = OFF ]; then alone=ON; fi
  # A folder that was configured for another compiler would lose its options.
  if [ "$name" != cpu ]; then fresh=(--fresh); fi
  rm -f "build/$name/junit.xml"
  reports+=("build/$name/junit.xml")
  cmake --preset "$name" "${fresh[@]}" -DSPECD_TESTS=ON -DSPECD_BY_FOLDER="$by_folder" \
    -DCMAKE_DISABLE_PRECOMPILE_HEADERS="$alone" \
    -DCMAKE_CXX_COMPILER_LAUNCHER=ccache -DCMAKE_C_COMPILER_LAUNCHER=ccache > /dev/null &&
    cmake --build --preset "$name" --target "$target" &&
    ctest --preset "$name" "${chosen[@]}" --no-tests=error -j "$jobs" \
      --output-junit "$PWD/build/$name/junit.xml"
}

full_product() {
  SPECD_NIGHTLY=1 ctest --preset cpu -R 'FullProduct|Bundles.follow|StepNthFailure.of_a_trained_head|Verifiers.(follow|rejection_accepts)' --no-tests=error -j "$(nproc)"
}

if [ "$mode" != --sanitized ]; then stage cpu preset cpu; fi
case "$mode" in
  --sanitized)
    stage asan preset asan asan
    stage tsan preset tsan tsan
    ;;
  --all | --nightly)
    stage tidy python3 tests/tidy.py build/cpu --all
    stage asan preset asan
    stage tsan preset tsan
    ;;
esac
case "$mode" in
  --all) stage fuzz bash tests/fuzz/run.sh 60 ;;
  --nightly)
    stage fuzz bash tests/fuzz/run.sh 600
    stage 'full product' full_product
    stage mutants python3 tests/device/emulated/mutants.py build/cpu
    stage clients bash tests/clients/run.sh
    ;;
esac

if [ ${#summary[@]} -lt ${#chosen_stages[@]} ]; then
  echo "tests/run.sh: of the stages ${chosen_stages[*]}, ran ${#summary[@]}: ${mode:-the default} has no others" >&2
  [ ${#summary[@]} -gt 0 ] || exit 2
  failed=1
fi
# What failed comes last, where a long log is read first.
if [ $failed -ne 0 ]; then python3 tests/failures.py "${reports[@]}"; fi
printf '\nspecd tests:'
printf ' %s;' "${summary[@]}"
if [ $failed -eq 0 ]; then printf ' all passed\n'; else printf ' FAILED\n'; fi
exit $failed
