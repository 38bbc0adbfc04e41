#!/bin/sh
# Runs engine_check on the fake CUDA device, to show that it runs and that texts are equal; its
# figures mean nothing here.
#   on_fake_device.sh ENGINE_CHECK ZOO PLUGINS LIBRARIES
set -e
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 700 "$work"
SPECD_CUDA_LIBRARY=$4/libspecd_cuda_fake.so "$1" --zoo "$2" --plugins "$3" --work "$work" \
  --shapes none --ballast-bytes 40000000 --json "$work/engine.json"
test -s "$work/engine.json"
