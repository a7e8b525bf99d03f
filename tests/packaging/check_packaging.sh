#!/bin/sh
# check_packaging.sh <step> <source folder> <build folder> <cmake>
#
# The library as others get it. Every step works in <build folder>/packaging:
#   install           installs to the prefix that find_package and pkg_config use
#   find_package      configures, builds and runs consumer.cpp and own_op.cpp as a project of their own
#   version           find_package takes this version, and refuses the next minor and major one
#   add_subdirectory  the same for consumer.cpp, with the source folder below the project
#   pkg_config        compiles and runs consumer.cpp with what pkg-config says; exits 77 where there is none
#   page              docs/your_own_op.md shows own_op.cpp, all of it and in order, and what it prints; pages ask for
#                     this version
#   blas              without CBLAS, or with another BLAS, configuring fails and says what to install
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

configure() { # <source> <folder> [cmake options...]
  from=$1
  folder=$2
  shift 2
  rm -rf "${work:?}/$folder"
  run "$folder.configure" "$cmake" -S "$from" -B "$work/$folder" -G "$(cached CMAKE_GENERATOR)" \
    -DCMAKE_CXX_COMPILER="$(cached CMAKE_CXX_COMPILER)" "$@"
}

blas_library=$(cached TAPEDECK_OPENBLAS_LIBRARY)
blas_include=$(cached TAPEDECK_OPENBLAS_INCLUDE)

project() { # <folder> [cmake options...]
  folder=$1
  shift
  configure "$here/$folder" "$folder" -DTAPEDECK_OPENBLAS_LIBRARY="$blas_library" \
    -DTAPEDECK_OPENBLAS_INCLUDE="$blas_include" "$@" || return 1
  run "$folder.build" "$cmake" --build "$work/$folder" --parallel "${TAPEDECK_JOBS:-2}"
}

version=$(cached CMAKE_PROJECT_VERSION)
major=${version%%.*}
minor=${version#*.}
minor=${minor%%.*}

consumer_says='[[3. 7.]]'
own_op_says='hypot [ 5.         13.          1.58113883]
order 1: hypot match, rms_norm match
order 2: hypot match, rms_norm match'

# Pages that show find_package ask for this version.
pages_ask() { # <pages...>
  grep -o 'find_package(tapedeck [0-9.]*' "$@" >"$work/$step.asked" || return 1
  if grep -v "find_package(tapedeck $major\.$minor\$" "$work/$step.asked"; then return 1; fi
}

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
  project find_package -DCMAKE_PREFIX_PATH="$1" -DVERSION_REQUEST="$major.$minor" -DCMAKE_CXX_FLAGS="$flags" || return 1
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
  cflags="$cflags -DEXPECTED_VERSION=\"$(pkg-config --modversion tapedeck)\""
  # shellcheck disable=SC2086  # lists of words
  run "$step.compile" "$(cached CMAKE_CXX_COMPILER)" -std=c++20 $flags $cflags "$here/consumer.cpp" \
    -o "$work/$step.consumer" $libs -Wl,-rpath,"$(pkg-config --variable=libdir tapedeck)" || return 1
  says "$work/$step.consumer" "$consumer_says"
}

finds_version() { # <version request>
  configure "$here/find_package" version -DCMAKE_PREFIX_PATH="$prefix" -DVERSION_REQUEST="$1" \
    -DTAPEDECK_OPENBLAS_LIBRARY="$blas_library" -DTAPEDECK_OPENBLAS_INCLUDE="$blas_include"
}

# Configuring the library fails, and says why and what to install. The lines of CMake's message are its own.
refuses() { # <why> [cmake options...]
  why=$1
  shift
  if configure "$source" no_blas -DTAPEDECK_TESTS=OFF -DTAPEDECK_EXAMPLES=OFF -DTAPEDECK_BENCH=OFF "$@" >/dev/null; then
    echo "configured in spite of: $why"
    return 1
  fi
  said=$(tr -s '\n ' '  ' <"$work/no_blas.configure.log")
  for text in "$why" "apt-get install libopenblas-pthread-dev" "set TAPEDECK_OPENBLAS_LIBRARY"; do
    case $said in
      *"$text"*) ;;
      *)
        cat "$work/no_blas.configure.log"
        echo "expected in the message: $text"
        return 1
        ;;
    esac
  done
}

blas_of() { # <name>, its source from standard input: builds $work/<name>
  run "$1" "$(cached CMAKE_CXX_COMPILER)" -shared -fPIC -x c++ - -o "$work/$1"
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
  version)
    finds_version "$version"
    for other in "$major.$((minor + 1))" "$((major + 1)).0"; do
      caught "version $version given for $other" finds_version "$other"
      grep -q "version: $version" "$work/version.configure.log" || { cat "$work/version.configure.log"; exit 1; }
    done
    ;;
  # Without optimisation, because all of the library is compiled once more.
  add_subdirectory)
    project add_subdirectory -DTAPEDECK="$source" -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O0
    says "$work/add_subdirectory/consumer" "$consumer_says"
    ;;
  pkg_config)
    command -v pkg-config >/dev/null 2>&1 || exit 77
    pkg_config "$prefix"
    ;;
  page)
    page "$source/docs/your_own_op.md"
    pages_ask "$source"/docs/*.md "$source/CHANGELOG.md"
    ;;
  blas)
    mkdir -p "$work/empty"
    PKG_CONFIG_LIBDIR=$work/empty
    export PKG_CONFIG_LIBDIR
    unset PKG_CONFIG_PATH
    refuses "no libopenblas was found" -DCMAKE_FIND_ROOT_PATH="$work/empty" -DCMAKE_FIND_ROOT_PATH_MODE_LIBRARY=ONLY
    refuses "its header cblas.h is not" -DTAPEDECK_OPENBLAS_LIBRARY="$blas_library" \
      -DCMAKE_FIND_ROOT_PATH="$work/empty" -DCMAKE_FIND_ROOT_PATH_MODE_INCLUDE=ONLY
    echo 'extern "C" void dgemm_() {}' | blas_of libfortran.so
    refuses "a call of cblas_dgemm does not build" -DTAPEDECK_OPENBLAS_LIBRARY="$work/libfortran.so" \
      -DTAPEDECK_OPENBLAS_INCLUDE="$blas_include"
    echo 'extern "C" void cblas_dgemm() {}
      extern "C" int openblas_get_parallel() { return 1; }
      extern "C" int openblas_get_num_threads() { return 1; }
      extern "C" const char* openblas_get_config() { return "fake"; }' | blas_of libwrong.so
    refuses "came out wrong" -DTAPEDECK_OPENBLAS_LIBRARY="$work/libwrong.so" \
      -DTAPEDECK_OPENBLAS_INCLUDE="$blas_include"
    echo '#include <cblas.h>
      extern "C" void cblas_dgemm(CBLAS_ORDER, CBLAS_TRANSPOSE, CBLAS_TRANSPOSE, blasint, blasint, blasint, double,
                                  const double* a, blasint, const double* b, blasint, double, double* c, blasint) {
        for (int i = 0; i < 4; ++i) c[i] = a[i / 2 * 2] * b[i % 2] + a[i / 2 * 2 + 1] * b[2 + i % 2];
      }
      extern "C" int openblas_get_parallel() { return 0; }
      extern "C" int openblas_get_num_threads() { return 1; }
      extern "C" char* openblas_get_config() { static char text[] = "fake"; return text; }' |
      CPLUS_INCLUDE_PATH=$blas_include blas_of libserial.so
    refuses "is the serial flavour" -DTAPEDECK_OPENBLAS_LIBRARY="$work/libserial.so" \
      -DTAPEDECK_OPENBLAS_INCLUDE="$blas_include"
    caught "a BLAS that is fit" refuses "" -DTAPEDECK_OPENBLAS_LIBRARY="$blas_library" \
      -DTAPEDECK_OPENBLAS_INCLUDE="$blas_include"
    ;;
  catches_planted)
    planted=$work/planted
    rm -rf "$planted"
    sed 's|mean(square(x)|mean((x)|' "$source/docs/your_own_op.md" >"$work/planted.md"
    caught "a line of the page that is not the program's" page "$work/planted.md"
    sed 's|order 2: hypot match|order 2: hypot mismatch|' "$source/docs/your_own_op.md" >"$work/planted.md"
    caught "a result on the page that is not the program's" page "$work/planted.md"
    echo 'find_package(tapedeck 9.9 REQUIRED)' >"$work/planted.md"
    caught "a page that asks for another version" pages_ask "$work/planted.md"
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
