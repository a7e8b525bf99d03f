#!/bin/sh
# check.sh <test program> <scratch folder>
#
# PyTorch writes a model, Tapedeck reads it and writes one of its own, PyTorch reads that; each finds the other's logits.
# Exits 77 where python3 has no torch.
set -eu
tests=$1
work=$2
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
python=''
for candidate in python3 /usr/bin/python3; do
  if "$candidate" -c 'import torch' 2>/dev/null; then
    python=$candidate
    break
  fi
done
if [ -z "$python" ]; then
  echo "python3 has no torch here (Debian: python3-torch): not checked"
  exit 77
fi
rm -rf "$work"
mkdir -p "$work"
"$python" "$here/study.py" write "$work/from_torch.safetensors" 7
TAPEDECK_TORCH_FILE=$work/from_torch.safetensors TAPEDECK_TORCH_OUT=$work/to_torch.safetensors \
  "$tests" --test-suite=torch
"$python" "$here/study.py" check "$work/to_torch.safetensors"
# The check itself notices a wrong weight.
"$python" - "$work/to_torch.safetensors" "$work/damaged.safetensors" <<'P'
import sys
data = bytearray(open(sys.argv[1], "rb").read())
data[-len(data) // 2] ^= 0x40
open(sys.argv[2], "wb").write(data)
P
if "$python" "$here/study.py" check "$work/damaged.safetensors" 2>/dev/null; then
  echo "study.py check accepts a damaged file" >&2
  exit 1
fi
