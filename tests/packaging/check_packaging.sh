#!/bin/sh
# check_packaging.sh <step> <source folder> <build folder> <cmake>
#
# The library as others get it. Every step works in <build folder>/packaging:
#   install           installs to the prefix that find_package and pkg_config use
#   find_package      configures, builds and runs consumer.cpp and own_op.cpp as a project of their own
#   add_subdirectory  the same for consumer.cpp, with the source folder below the project
#   pkg_config        compiles and runs consumer.cpp with what pkg-config says; exits 77 where there is none
#   page              docs/your_own_op.md shows own_op.cpp, all of it and in order, and what it prints
#   catches_planted   the checks above fail when they should
set -eu
step=$1
source=$2
build=$3
cmake=$4
here=$source/tests/packaging
work=$build/packaging
prefix=$work/prefix
mkdir -p "$work"

cached() { sed -n "s|^$1:[A-Z]*=||p" "$build/CMakeCache.txt"; }

sanitize=$(cached TAPEDECK_SANITIZE)
flags="$(cached CMAKE_CXX_FLAGS)${sanitize:+ -fsanitize=$sanitize}"

run() { # <log> <command...>: the log is shown only where the command fails
  log=$work/$1.log
  shift
  "$@" >"$log" 2>&1 || {
    cat "$log"
    return 1
  }
}

says() { # <program> <text>: it exits 0 and prints the text
  "$1" >"$work/$step.said" || {
    cat "$work/$step.said"
    echo "$1 failed"
    return 1
  }
  [ "$(cat "$work/$step.said")" = "$2" ] || {
    printf '%s\n' "$1: expected" "$2" "got" "$(cat "$work/$step.said")"
    return 1
  }
}

project() { # <folder> [cmake options...]
  folder=$1
  shift
  rm -rf "${work:?}/$folder"
  run "$folder.configure" "$cmake" -S "$here/$folder" -B "$work/$folder" -G "$(cached CMAKE_GENERATOR)" \
    -DCMAKE_CXX_COMPILER="$(cached CMAKE_CXX_COMPILER)" \
    -DTAPEDECK_OPENBLAS_LIBRARY="$(cached TAPEDECK_OPENBLAS_LIBRARY)" \
    -DTAPEDECK_OPENBLAS_INCLUDE="$(cached TAPEDECK_OPENBLAS_INCLUDE)" "$@" || return 1
  run "$folder.build" "$cmake" --build "$work/$folder" --parallel "${TAPEDECK_JOBS:-2}"
}

consumer_says='[[3. 7.]]'
own_op_says='hypot [ 5.         13.          1.58113883]
order 1: hypot match, rms_norm match
order 2: hypot match, rms_norm match'

# The page's ```cpp blocks, one after the other with an empty line between, are the program; its ```text block is what
# the program prints.
page() { # <page>
  for kind in cpp text; do
    awk -v kind="$kind" '
      /^```/ { inside = !inside; taken = inside && $0 == "```" kind; if (taken && count++) print ""; next }
      taken { print }' "$1" >"$work/$step.$kind"
  done
  printf '%s\n' "$own_op_says" | diff -u - "$work/$step.text" || return 1
  diff -u "$here/own_op.cpp" "$work/$step.cpp"
}

find_package() { # <prefix>
  project find_package -DCMAKE_PREFIX_PATH="$1" -DCMAKE_CXX_FLAGS="$flags" || return 1
  says "$work/find_package/consumer" "$consumer_says" || return 1
  says "$work/find_package/own_op" "$own_op_says"
}

# What the package says must be enough: only the place of its .pc file is added to pkg-config's own.
pkg_config() { # <prefix>
  file=$(find "$1" -name tapedeck.pc)
  PKG_CONFIG_PATH=${file%/*}${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
  export PKG_CONFIG_PATH
  cflags=$(pkg-config --cflags tapedeck) || return 1
  libs=$(pkg-config --static --libs tapedeck) || return 1
  # shellcheck disable=SC2086  # lists of words
  run "$step.compile" "$(cached CMAKE_CXX_COMPILER)" -std=c++20 $flags $cflags "$here/consumer.cpp" \
    -o "$work/$step.consumer" $libs -Wl,-rpath,"$(pkg-config --variable=libdir tapedeck)" || return 1
  says "$work/$step.consumer" "$consumer_says"
}

caught() { # <what> <command...>
  what=$1
  shift
  if ("$@") >"$work/$step.caught" 2>&1; then
    echo "not caught: $what"
    exit 1
  fi
}

case $step in
  install)
    rm -rf "$prefix"
    run install "$cmake" --install "$build" --prefix "$prefix"
    ;;
  find_package) find_package "$prefix" ;;
  # Without optimisation, because all of the library is compiled once more.
  add_subdirectory)
    project add_subdirectory -DTAPEDECK="$source" -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O0
    says "$work/add_subdirectory/consumer" "$consumer_says"
    ;;
  pkg_config)
    command -v pkg-config >/dev/null 2>&1 || exit 77
    pkg_config "$prefix"
    ;;
  page) page "$source/docs/your_own_op.md" ;;
  catches_planted)
    planted=$work/planted
    rm -rf "$planted"
    sed 's|mean(square(x)|mean((x)|' "$source/docs/your_own_op.md" >"$work/planted.md"
    caught "a line of the page that is not the program's" page "$work/planted.md"
    sed 's|order 2: hypot match|order 2: hypot mismatch|' "$source/docs/your_own_op.md" >"$work/planted.md"
    caught "a result on the page that is not the program's" page "$work/planted.md"
    caught "a wrong result" says "$work/find_package/consumer" '[[3. 8.]]'
    if command -v pkg-config >/dev/null 2>&1; then
      cp -R "$prefix" "$planted" # a moved prefix works; one that lacks a header or a library does not
      pkg_config "$planted"
      mv "$planted/include/tapedeck/core/shape.h" "$planted/shape.h"
      caught "a header that was not installed" pkg_config "$planted"
      mv "$planted/shape.h" "$planted/include/tapedeck/core/shape.h"
      pc=$(find "$planted" -name tapedeck.pc)
      sed 's|zlib||; s|, *openblas||; s|[^ ]*openblas[^ ]*||' "$pc" >"$planted/pc"
      mv "$planted/pc" "$pc"
      caught "a library that the .pc file does not name" pkg_config "$planted"
    fi
    ;;
  *)
    echo "check_packaging.sh: unknown step '$step'" >&2
    exit 2
    ;;
esac
