#!/usr/bin/env bash
# pin_layout.sh PREFIX WORK: a plugin that names the SDK's version with its layout gets this SDK; one that
# names another layout is told at configure time what was found. Without a version it gets the plain one.
set -eu
prefix=$1 work=$2
rm -rf "$work"
layout=$(sed -n 's/.*SPECD_ABI_LAYOUT "\(.*\)".*/\1/p' "$prefix/include/specd/plugin_api/abi_layout.h")
digits=${layout#*-}
version=0.1.0.$((16#${digits:0:7}))

# configure VERSION: a project that asks for it; its output is in $work/VERSION.log (any.log without).
configure() {
  local name=${1:-any}
  mkdir -p "$work/$name"
  cat > "$work/$name/CMakeLists.txt" <<TEXT
cmake_minimum_required(VERSION 3.25)
project(pinned LANGUAGES C)
find_package(specd_sdk $1 REQUIRED)
message(STATUS "layout of this SDK: \${specd_sdk_ABI_LAYOUT}")
message(STATUS "version of this SDK: \${specd_sdk_VERSION};")
TEXT
  cmake -S "$work/$name" -B "$work/$name/build" -DCMAKE_PREFIX_PATH="$prefix" > "$work/$name.log" 2>&1
}

for good in "$version" 0.1.0 ""; do
  log=$work/${good:-any}.log
  configure "$good" || { cat "$log"; exit 1; }
  grep -q "layout of this SDK: $layout" "$log" && grep -q "version of this SDK: $version;" "$log" || {
    cat "$log"; exit 1; }
done
for other in 0.1.0.1 0.2.0; do
  if configure "$other"; then echo "an SDK $version was taken for $other"; exit 1; fi
  grep -q "version: $version (plugin layout $layout)" "$work/$other.log" || {
    cat "$work/$other.log"; exit 1; }
done
