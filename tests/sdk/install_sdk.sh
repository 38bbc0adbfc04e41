#!/usr/bin/env bash
# install_sdk.sh SOURCE_ROOT WORK: installs the SDK to WORK/prefix without building anything else.
set -eu
rm -rf "$2"
mkdir -p "$2"
cmake -S "$1/sdk" -B "$2/sdk" > "$2/log" || { cat "$2/log"; exit 1; }
cmake --install "$2/sdk" --prefix "$2/prefix" >> "$2/log"
find "$2/prefix" -name specd_sdkConfig.cmake | grep -q .
# What an author reads and copies.
documents=$2/prefix/share/specd
for file in sdk/README.md sdk/template/drafter_bigram.cc sdk/template_c/drafter_bigram.c \
            sdk/tools/pickle_to_safetensors.py sdk/zoo/README.md sdk/zoo/recipe/quantize.py \
            plugin_api/README.md plugin_api/CHANGELOG.md plugin_api/abi/v0.txt; do
  cmp "$1/$file" "$documents/$file"
done
