#!/bin/sh
# Arrows run core <- ops <- nn <- models <- examples, and heavy headers stay inside .cpp files.
#   check_includes.sh <source folder>   exits 1 and lists every include that breaks a rule
#   check_includes.sh --self-test       plants wrong includes and expects each to be found
set -eu

check() { # <source folder>
  find "$1/core" "$1/ops" "$1/nn" "$1/models" "$1/examples" \( -name '*.h' -o -name '*.h.in' -o -name '*.cpp' \) -exec awk -v root="$1/" '
    BEGIN { rank["core"] = 1; rank["ops"] = 2; rank["nn"] = 3; rank["models"] = 4; rank["examples"] = 5 }
    function complain(why) { print file ":" FNR ": " $0 ": " why; wrong = 1 }
    FNR == 1 { file = substr(FILENAME, length(root) + 1); split(file, part, "/"); own = part[1] }
    /^[ \t]*#[ \t]*include/ {
      if (match($0, /[<"]tapedeck\/[a-z]+\//)) {
        other = substr($0, RSTART + 10, RLENGTH - 11)
        if (!(other in rank)) complain("no such folder")
        else if (rank[other] > rank[own]) complain(own " must not use " other)
      } else if ($0 ~ /"/ && own != "examples") {
        complain("write <tapedeck/folder/file.h>")
      }
      if (file ~ /\.h(\.in)?$/ && $0 ~ /[<"](CLI|nlohmann)\//) complain("in .cpp files only")
    }
    END { exit wrong }' {} +
}

if [ "$1" != --self-test ]; then
  check "$1"
  exit
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/core" "$scratch/ops" "$scratch/nn" "$scratch/models" "$scratch/examples"
echo '#include <tapedeck/core/tensor.h>' >"$scratch/ops/right.cpp"
echo '#include <nlohmann/json.hpp>' >"$scratch/nn/right.cpp"
echo '#include <tapedeck/models/trainer.h>' >"$scratch/examples/right.cpp"
check "$scratch" || { echo "right includes were reported"; exit 1; }
plant() { # <file> <include>
  printf '// first line\n%s\n' "$2" >"$scratch/$1"
  if check "$scratch" >"$scratch/report"; then
    echo "not caught in $1: $2"
    exit 1
  fi
  grep -q "^$1:2: " "$scratch/report" || { echo "caught, but not as $1:2:"; cat "$scratch/report"; exit 1; }
  rm "$scratch/$1"
}
plant core/wrong.h '#include <tapedeck/ops/matmul.h>'
plant ops/wrong.cpp '  #  include "tapedeck/nn/linear.h"'
plant nn/wrong.cpp '#include <tapedeck/models/trainer.h>'
plant models/wrong.h '#include <CLI/CLI.hpp>'
plant core/wrong.h '#include <nlohmann/json.hpp>'
plant core/wrong.cpp '#include "tensor.h"'
plant core/wrong.h.in '#include <CLI/CLI.hpp>'
plant core/wrong.cpp '#include <tapedeck/tests/op_samples.h>'
