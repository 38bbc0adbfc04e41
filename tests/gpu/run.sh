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
  for op in attention draw elementwise matmul rmsnorm rope; do
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
g++ -o "$out/kernel_check" "$out"/obj/{attention,draw,elementwise,matmul,rmsnorm,rope,common_ops,cpu_ops,worker_pool,check_*}.o \
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
engine=()
if [ -x build/gpu-carry/engine_check ]; then
  carry=$PWD/build/gpu-carry
  engine=(env "LD_LIBRARY_PATH=$carry/lib/own:${LD_LIBRARY_PATH:-}" "$carry/engine_check")
  # Without arguments engine_check prints its usage and exits with 1. If this machine's C library is
  # older than the one it was linked to, use the carried one.
  "${engine[@]}" > /dev/null 2>&1 && rc=0 || rc=$?
  if [ $rc -ne 1 ]; then
    driver=$(ls -d /usr/lib/x86_64-linux-gnu /usr/lib64 /usr/local/nvidia/lib64 /usr/local/cuda/lib64 2> /dev/null | paste -sd:)
    engine=("$carry/lib/ld-linux-x86-64.so.2" --library-path "$carry/lib:$driver" "$carry/engine_check")
  fi
  engine+=(--zoo configs/zoo --plugins "$carry/plugins")
elif cmake --preset cpu -DSPECD_HOST=OFF -DSPECD_TESTS=ON -B "$out/cmake" > "$out/cmake.log" 2>&1 &&
     cmake --build "$out/cmake" --target engine_check >> "$out/cmake.log" 2>&1; then
  engine=("$out/cmake/bin/engine_check" --zoo configs/zoo --plugins "$out/cmake/plugins")
fi
if [ ${#engine[@]} -gt 0 ]; then
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  SPECD_CUDA_LIBRARY=$out/libspecd_cuda.so timeout 240 "${engine[@]}" --work "$work" --json "$out/engine.json" \
    --fast $fast --ballast-bytes "${SPECD_GPU_BALLAST_BYTES:-8000000000}" || failed=1
else
  echo "the engine was not run: it needs what host/install_deps.sh lists, or build/gpu-carry (see tests/gpu/carry.sh)"
fi

# ---- another implementation, where it is installed
if python3 -c 'import torch, transformers; assert torch.cuda.is_available()' 2> /dev/null; then
  timeout 60 python3 tests/gpu/beside.py "$out/beside.json" || echo "beside.py did not finish"
else
  echo "PyTorch and transformers were not run: not installed here"
fi

# ---- memory and races
if command -v compute-sanitizer > /dev/null; then
  for tool in memcheck racecheck; do
    log="$out/$tool.log"
    if ! timeout 45 compute-sanitizer --tool $tool --error-exitcode 3 \
         "$out/kernel_check" "$out/libspecd_cuda.so" --seed "$seed" --rates 0 --small 1 > "$log" 2>&1; then
      echo "compute-sanitizer $tool did not pass, see $log:"
      grep -E 'FAILED|ERROR SUMMARY|RACECHECK SUMMARY|Error|Hazard|Internal' "$log" | head -5
      failed=1
    fi
  done
else
  echo "compute-sanitizer was not run: not installed here"
fi
exit $failed
