#!/usr/bin/env bash
# Builds the parts of the engine that tests/gpu/run.sh needs into build/gpu-carry, together with
# the shared libraries they link, for a machine with a GPU but without packages (README.md).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
cmake --preset cpu -DSPECD_TESTS=ON > /dev/null
cmake --build --preset cpu --target engine_check
carry=build/gpu-carry
rm -rf "$carry"
mkdir -p "$carry/lib"
cp build/cpu/bin/engine_check "$carry/"
strip "$carry/engine_check"
cp -r build/cpu/plugins "$carry/plugins"  # not stripped: the manifests contain their hashes
ldd build/cpu/bin/engine_check | grep -oE '/[^ ]+' | sort -u | xargs -I{} cp -L {} "$carry/lib/"
# Only these where the machine's C library will do.
mkdir "$carry/lib/own"
for name in libspdlog libfmt libcrypto libutf8proc; do cp -L "$carry"/lib/$name.so* "$carry/lib/own/"; done
du -sh "$carry"
