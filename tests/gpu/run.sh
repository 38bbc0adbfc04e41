#!/usr/bin/env bash
# On a machine with an NVIDIA GPU, its driver, nvcc and g++: builds the shipped CUDA backend, checks
# every op on the device, runs the engine on it, and measures.
#
#   bash tests/gpu/run.sh [FOLDER]    results and binaries go there; default build/gpu
#
# The engine needs libraries that a bare machine lacks. If the packages in host/install_deps.sh are
# installed, it is built; otherwise it is taken from build/gpu-carry, made by `bash
# tests/gpu/carry.sh` on a machine that has them; otherwise that part is skipped with a message.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
out=${1:-build/gpu}
mkdir -p "$out/obj"
out=$(cd "$out" && pwd)

cpp=(g++ -std=c++20 -O2 -ffp-contract=off -fno-math-errno -fPIC -I. -Ikernels/include)
cuda=(nvcc -std=c++20 -O3 --fmad=false -Xcompiler=-fPIC,-fvisibility=hidden -I. -Ikernels/include
  -gencode=arch=compute_80,code=sm_80 -gencode=arch=compute_90,code='[sm_90,compute_90]' --threads 3)
{
  for file in kernels/cuda/*.cu; do
    echo "${cuda[*]@Q} -c $file -o $out/obj/$(basename "$file").o"
  done
  # The reference: scalar ops only.
  for op in attention codes draw elementwise float8 integers matmul rmsnorm rope; do
    echo "${cpp[*]@Q} -fno-exceptions -DSPECD_ISA=scalar -DSPECD_ISA_LEVEL=0 -c kernels/cpu/$op.cc -o $out/obj/$op.o"
  done
  for file in common_ops cpu_ops worker_pool; do
    echo "${cpp[*]@Q} -DSPECD_KERNELS_X86=0 -c kernels/cpu/$file.cc -o $out/obj/$file.o"
  done
  for file in tests/gpu/kernel_check/*.cc; do
    echo "${cpp[*]@Q} -Wall -Wextra -c $file -o $out/obj/check_$(basename "$file" .cc).o"
  done
} | xargs -d '\n' -P "$(nproc)" -I{} bash -c '{}'
nvcc -shared -o "$out/libspecd_cuda.so" "$out"/obj/*.cu.o -ldl
nvcc -std=c++20 -O3 -I. -arch=native -o "$out/ceilings" tests/gpu/ceilings.cu 2> "$out/ceilings.log" ||
  nvcc -std=c++20 -O3 -I. -gencode=arch=compute_80,code='[sm_80,compute_80]' -o "$out/ceilings" tests/gpu/ceilings.cu
g++ -o "$out/kernel_check" "$out"/obj/{attention,codes,draw,elementwise,float8,integers,matmul,rmsnorm,rope,common_ops,cpu_ops,worker_pool,check_*}.o \
  -ldl -pthread
[ -n "${SPECD_GPU_BUILD_ONLY:-}" ] && exit 0

failed=0
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader || true
seed=${SPECD_GPU_SEED:-$RANDOM}
"$out/ceilings" --json "$out/ceilings.json" || failed=1
fast=0
export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:-}:/usr/local/cuda/lib64"
if ls /usr/local/cuda/lib64/libcublasLt.so.* > /dev/null 2>&1 || ldconfig -p | grep -q libcublasLt; then fast=1; fi
timeout 100 "$out/kernel_check" "$out/libspecd_cuda.so" --seed "$seed" --json "$out/kernels.json" --fast $fast || failed=1

# ---- the engine
engine=() tests=
if [ -d build/gpu-carry ]; then
  carry=$PWD/build/gpu-carry
  # The tests look for their files where they were built. Plugins are not loaded through a link.
  root=$(cat "$carry/root")
  tests=$root/build/cpu/bin
  if [ ! -e "$root/build/cpu" ] || [ -e "$root/build/cpu/carried" ]; then
    { mkdir -p "$root/build" && rm -rf "$root/build/cpu" && cp -r "$carry/cpu" "$root/build/cpu" &&
      touch "$root/build/cpu/carried"; } || tests=
    for folder in configs tests; do [ -e "$root/$folder" ] || ln -s "$PWD/$folder" "$root/$folder" || tests=; done
  fi
  start=(env "LD_LIBRARY_PATH=$carry/lib/own:${LD_LIBRARY_PATH:-}")
  # Without arguments engine_check prints its usage and exits with 1. If this machine's C library is
  # older than the one it was linked to, use the carried one.
  "${start[@]}" "$carry/cpu/bin/engine_check" > /dev/null 2>&1 && rc=0 || rc=$?
  if [ $rc -ne 1 ]; then
    driver=$(ls -d /usr/lib/x86_64-linux-gnu /usr/lib64 /usr/local/nvidia/lib64 /usr/local/cuda/lib64 2> /dev/null | paste -sd:)
    start=("$carry/lib/ld-linux-x86-64.so.2" --library-path "$carry/lib:$driver")
  fi
  engine=("${start[@]}" "$carry/cpu/bin/engine_check" --zoo configs/zoo --plugins "$carry/cpu/plugins")
elif cmake --preset cpu -DSPECD_HOST=OFF -DSPECD_TESTS=ON -B "$out/cmake" > "$out/cmake.log" 2>&1 &&
     cmake --build "$out/cmake" --target engine_check core_engine_test core_emulated_test >> "$out/cmake.log" 2>&1; then
  start=(env)
  engine=("$out/cmake/bin/engine_check" --zoo configs/zoo --plugins "$out/cmake/plugins")
  tests=$out/cmake/bin
fi
export SPECD_CUDA_LIBRARY=$out/libspecd_cuda.so
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ ${#engine[@]} -gt 0 ]; then
  timeout 240 "${engine[@]}" --work "$work" --json "$out/engine.json" --fast $fast \
    --ballast-bytes "${SPECD_GPU_BALLAST_BYTES:-8000000000}" 2> "$out/engine.log" || failed=1
else
  echo "the engine was not run: it needs what host/install_deps.sh lists, or build/gpu-carry (see tests/gpu/carry.sh)"
fi
if [ -n "$tests" ]; then
  # The engine's tests with their models on the GPU, but those that need the stand-in device or expect a
  # text drafted alike on the CPU.
  echo "tests of the engine on the GPU:"
  not='OnDevice.*:Heads.*:LateCalls.*:CoveringArray.*' running=()
  for i in 0 1 2 3 4 5 6 7; do
    SPECD_TEST_DEVICE=cuda:0 GTEST_TOTAL_SHARDS=8 GTEST_SHARD_INDEX=$i timeout 150 "${start[@]}" \
      "$tests/core_engine_test" --gtest_filter="-$not" > "$out/tests_$i.log" 2>&1 &
    running+=($!)
  done
  timeout 150 "${start[@]}" "$tests/core_emulated_test" > "$out/tests_8.log" 2>&1 &
  running+=($!)
  for i in "${!running[@]}"; do
    if ! wait "${running[i]}"; then
      echo "not all passed, see $out/tests_$i.log:"
      grep -E '^\[  FAILED  \]|Failure' "$out/tests_$i.log" | sort -u | head -5
      tail -n 2 "$out/tests_$i.log"
      failed=1
    fi
  done
  grep -hE '^\[  PASSED  \]' "$out"/tests_*.log || true
else
  echo "the tests of the engine were not run: they are not built here, or their files cannot be put where they look"
fi

# ---- memory and races
if command -v compute-sanitizer > /dev/null; then
  for tool in memcheck racecheck; do
    log="$out/$tool.log"
    timeout 45 compute-sanitizer --tool $tool --error-exitcode 3 \
      "$out/kernel_check" "$out/libspecd_cuda.so" --seed "$seed" --rates 0 --small 1 > "$log" 2>&1 && rc=0 || rc=$?
    if [ $rc -eq 124 ]; then echo "compute-sanitizer $tool: stopped after 45 s and $(grep -c ^ok "$log") checks"; fi
    if [ $rc -ne 0 ] && { [ $rc -ne 124 ] || grep -qE 'Invalid|Hazard|hazard' "$log"; }; then
      echo "compute-sanitizer $tool did not pass, see $log:"
      grep -E 'FAILED|ERROR SUMMARY|RACECHECK SUMMARY|Error|Invalid|azard|Internal' "$log" | head -5
      failed=1
    fi
  done
else
  echo "compute-sanitizer was not run: not installed here"
fi

# ---- another implementation, where it is installed
if python3 -c 'import torch, transformers; assert torch.cuda.is_available()' 2> /dev/null; then
  timeout 90 python3 tests/gpu/beside.py "$out/beside.json" || echo "beside.py did not finish"
else
  echo "PyTorch and transformers were not run: not installed here"
fi
exit $failed
