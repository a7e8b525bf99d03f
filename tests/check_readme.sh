#!/bin/sh
# check_readme.sh <source folder> <build folder> <cmake>
#
# Holds README.md to what it says:
# - a ```cpp block with `int main` is built against the installed library, as a user's project would, and run; when the
#   next block is ```text, that is its exact output;
# - any other ```cpp block is compiled as a file of its own that sees all public headers and namespace tapedeck;
# - each `./dev <command>` of a ```sh block is one that `./dev help` lists.
set -eu
root=$1
build=$2
cmake=$3
work=$build/readme
rm -rf "$work"
mkdir -p "$work/project"

cached() { sed -n "s|^$1:[A-Z]*=||p" "$build/CMakeCache.txt"; }

# Blocks become numbered files: 01.cpp, 02.text, 03.sh, ...
awk -v out="$work/project" '
  /^```/ {
    if (inside) { close(file); inside = 0 }
    else { inside = 1; kind = substr($0, 4); if (kind == "") kind = "plain"
           file = sprintf("%s/%02d.%s", out, ++count, kind); printf "" > file }
    next
  }
  inside { print > file }
  END { if (inside) { print "README.md: a code block is not closed"; exit 1 } }' "$root/README.md"

wrong=0
complain() {
  printf '%s\n' "README.md: $*"
  wrong=1
}

"$root/dev" help >"$work/help"
for file in "$work"/project/*.sh; do
  [ -e "$file" ] || continue
  for command in $(sed -n 's|.*\./dev  *\([a-z-]*\).*|\1|p' "$file"); do
    grep -q "^  $command " "$work/help" || complain "./dev $command is not a command that ./dev help lists"
  done
done

"$cmake" --install "$build" --prefix "$work/prefix" >"$work/install.log" 2>&1 || { cat "$work/install.log"; exit 1; }
{
  for folder in core ops nn models; do
    (cd "$work/prefix/include" && find "tapedeck/$folder" -name '*.h' 2>/dev/null) | sort | sed 's|.*|#include <&>|'
  done
  echo 'using namespace tapedeck;'
} >"$work/project/all.h"
{
  echo 'cmake_minimum_required(VERSION 3.25)'
  echo 'project(readme LANGUAGES CXX)'
  echo 'find_package(tapedeck REQUIRED)'
  for file in "$work"/project/*.cpp; do
    [ -e "$file" ] || continue
    name=$(basename "$file" .cpp)
    if grep -q 'int main' "$file"; then
      echo "add_executable(block_$name $name.cpp)"
    else
      echo "add_library(block_$name OBJECT $name.cpp)"
      echo "target_compile_options(block_$name PRIVATE -include \${CMAKE_CURRENT_SOURCE_DIR}/all.h)"
    fi
    echo "target_link_libraries(block_$name PRIVATE tapedeck::tapedeck)"
  done
} >"$work/project/CMakeLists.txt"

sanitize=$(cached TAPEDECK_SANITIZE)
"$cmake" -S "$work/project" -B "$work/build" -G "$(cached CMAKE_GENERATOR)" -DCMAKE_PREFIX_PATH="$work/prefix" \
  -DCMAKE_CXX_COMPILER="$(cached CMAKE_CXX_COMPILER)" -DCMAKE_CXX_FLAGS="${sanitize:+-fsanitize=$sanitize}" \
  >"$work/configure.log" 2>&1 || { cat "$work/configure.log"; exit 1; }
"$cmake" --build "$work/build" >"$work/build.log" 2>&1 || { cat "$work/build.log"; exit 1; }

ran=0
for file in "$work"/project/*.cpp; do
  [ -e "$file" ] || continue
  name=$(basename "$file" .cpp)
  [ -x "$work/build/block_$name" ] || continue
  ran=$((ran + 1))
  if ! "$work/build/block_$name" >"$work/$name.out" 2>"$work/$name.err"; then
    complain "code block $name failed: $(cat "$work/$name.err")"
    continue
  fi
  next=$(printf '%02d' $((${name#0} + 1)))
  if [ -e "$work/project/$next.text" ] && ! diff -u "$work/project/$next.text" "$work/$name.out"; then
    complain "code block $name prints something else than the README says"
  fi
done
echo "README.md: $ran programs ran"
exit $wrong
