#!/bin/sh
# No function of the library may take or return vectors of simd.h: a kernel's clones pass them differently, so a call that
# was not inlined hands over garbage.
set -eu
library=$1
found=$(nm -C "$library" 2>/dev/null | grep '__vector' || true)
if [ -n "$found" ]; then
  printf 'not inlined (TAPEDECK_INLINE or TAPEDECK_LANES is missing):\n%s\n' "$found" >&2
  exit 1
fi
