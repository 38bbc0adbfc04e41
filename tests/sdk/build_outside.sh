#!/usr/bin/env bash
# build_outside.sh FOLDER PREFIX WORK BUNDLE...: copies FOLDER out of the tree, builds it against
# only the SDK at PREFIX, and checks every bundle: manifest, hash, and exactly one exported symbol.
set -eu
folder=$1 prefix=$2 work=$3
shift 3
rm -rf "$work"
mkdir -p "$work"
cp -R "$folder" "$work/source"
cmake -S "$work/source" -B "$work/build" -DCMAKE_PREFIX_PATH="$prefix" \
      -DCMAKE_C_FLAGS="-Wall -Wextra -pedantic -Werror" \
      -DCMAKE_CXX_FLAGS="-Wall -Wextra -pedantic -Werror" > "$work/log" || { cat "$work/log"; exit 1; }
cmake --build "$work/build" >> "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
cmake --install "$work/build" --prefix "$work/installed" >> "$work/log"
layout=$(sed -n 's/.*SPECD_ABI_LAYOUT "\(.*\)".*/\1/p' "$prefix/include/specd/plugin_api/abi_layout.h")
for bundle in "$@"; do
  for at in "$work/build/plugins/$bundle" "$work"/installed/lib*/specd/plugins/"$bundle" \
            "$work"/installed/lib/*/specd/plugins/"$bundle"; do
    [ -d "$at" ] || continue
    library=$at/$bundle.so
    exports=$(nm -D --defined-only "$library" | awk '{print $NF}')
    if [ "$exports" != specd_plugin_entry_v0 ]; then
      echo "$library exports: $exports"; exit 1
    fi
    for file in "$at"/*; do
      [ "$file" != "$at/plugin.json" ] || continue
      hash=$(sha256sum "$file" | cut -d' ' -f1)
      grep -q "\"${file##*/}\": \"sha256:$hash\"" "$at/plugin.json" || { echo "$file: wrong hash"; exit 1; }
    done
    grep -q "\"abi\": \"$layout\"" "$at/plugin.json" || { echo "$at: wrong layout"; exit 1; }
    checked=$at
  done
  case ${checked:-} in
    "$work"/installed/*) ;;
    *) echo "$bundle was not built and installed"; exit 1 ;;
  esac
  unset checked
done
