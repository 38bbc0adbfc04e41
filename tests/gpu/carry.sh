#!/usr/bin/env bash
# Builds what tests/gpu/run.sh needs of the engine and its tests into build/gpu-carry, together with the
# shared libraries they link, for a machine with a GPU but without packages (README.md).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
programs=(engine_check core_engine_test core_emulated_test step_replay)
cmake --preset cpu -DSPECD_TESTS=ON > /dev/null
cmake --build --preset cpu --target "${programs[@]}"
carry=build/gpu-carry
rm -rf "$carry"
mkdir -p "$carry/cpu/bin" "$carry/cpu/tests/core/plugin" "$carry/lib/own"
for program in "${programs[@]}"; do strip -o "$carry/cpu/bin/$program" "build/cpu/bin/$program"; done
# Not stripped: the manifests contain their hashes.
cp -r build/cpu/plugins build/cpu/test_plugins "$carry/cpu/"
cp -r build/cpu/tests/core/plugin/fixtures "$carry/cpu/tests/core/plugin/"
find "$carry" -name CMakeFiles -prune -exec rm -rf {} +
ldd build/cpu/bin/engine_check | grep -oE '/[^ ]+' | sort -u | xargs -I{} cp -L {} "$carry/lib/"
# Only these where the machine's C library will do.
for name in libspdlog libfmt libcrypto libutf8proc; do cp -L "$carry"/lib/$name.so* "$carry/lib/own/"; done
pwd > "$carry/root"  # where the tests look for their files
du -sh "$carry"
