#!/usr/bin/env bash
# Builds what tests/gpu/run.sh needs of the engine into build/gpu-carry, with the shared libraries it was
# linked to, for a machine with a GPU that has no packages: some 30 MB to be carried there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
cmake --preset cpu -DSPECD_TESTS=ON > /dev/null
cmake --build --preset cpu --target engine_check
carry=build/gpu-carry
rm -rf "$carry"
mkdir -p "$carry/lib"
cp build/cpu/bin/engine_check "$carry/"
strip "$carry/engine_check"
cp -r build/cpu/plugins "$carry/plugins"  # not stripped: their hashes stand in the manifests
ldd build/cpu/bin/engine_check | grep -oE '/[^ ]+' | sort -u | xargs -I{} cp -L {} "$carry/lib/"
# These alone where the machine's own C library will do.
mkdir "$carry/lib/own"
for name in libspdlog libfmt libcrypto libutf8proc; do cp -L "$carry"/lib/$name.so* "$carry/lib/own/"; done
du -sh "$carry"
