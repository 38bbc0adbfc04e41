#!/usr/bin/env bash
# On a machine with an NVIDIA GPU, its driver, nvcc and g++, and nothing else: builds the CUDA backend as it
# is shipped, checks every op on the device, and measures.
#
#   bash tests/gpu/run.sh [FOLDER]    results and binaries there; build/gpu when not given
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
out=${1:-build/gpu}
mkdir -p "$out/obj"

cpp=(g++ -std=c++20 -O2 -ffp-contract=off -fno-math-errno -fPIC -I. -Ikernels/include)
cuda=(nvcc -std=c++20 -O3 --fmad=false -Xcompiler=-fPIC,-fvisibility=hidden -I. -Ikernels/include
  -gencode=arch=compute_80,code=sm_80 -gencode=arch=compute_90,code='[sm_90,compute_90]' --threads 3)
{
  for file in kernels/cuda/*.cu; do
    echo "${cuda[*]@Q} -c $file -o $out/obj/$(basename "$file").o"
  done
  # The reference: scalar ops alone.
  for op in attention draw elementwise matmul rmsnorm rope; do
    echo "${cpp[*]@Q} -fno-exceptions -DSPECD_ISA=scalar -DSPECD_ISA_LEVEL=0 -c kernels/cpu/$op.cc -o $out/obj/$op.o"
  done
  for file in common_ops cpu_ops worker_pool; do
    echo "${cpp[*]@Q} -DSPECD_KERNELS_X86=0 -c kernels/cpu/$file.cc -o $out/obj/$file.o"
  done
  echo "${cpp[*]@Q} -Wall -Wextra -c tests/gpu/kernel_check.cc -o $out/obj/kernel_check.o"
} | xargs -d '\n' -P "$(nproc)" -I{} bash -c '{}'
nvcc -shared -o "$out/libspecd_cuda.so" "$out"/obj/*.cu.o
g++ -o "$out/kernel_check" "$out"/obj/{attention,draw,elementwise,matmul,rmsnorm,rope,common_ops,cpu_ops,worker_pool,kernel_check}.o \
  -ldl -pthread
[ -n "${SPECD_GPU_BUILD_ONLY:-}" ] && exit 0

nvidia-smi --query-gpu=name,driver_version --format=csv,noheader || true
seed=${SPECD_GPU_SEED:-$RANDOM}
"$out/kernel_check" "$out/libspecd_cuda.so" --seed "$seed" --json "$out/kernels.json"
if command -v compute-sanitizer > /dev/null; then
  for tool in memcheck racecheck; do
    log="$out/$tool.log"
    if ! timeout 120 compute-sanitizer --tool $tool --error-exitcode 3 \
         "$out/kernel_check" "$out/libspecd_cuda.so" --seed "$seed" --rates 0 > "$log" 2>&1; then
      echo "compute-sanitizer $tool did not pass, see $log:"
      grep -E 'FAILED|ERROR SUMMARY|RACECHECK SUMMARY|Error|Hazard|Internal' "$log" | head -5
      failed=1
    fi
  done
fi
exit ${failed:-0}
