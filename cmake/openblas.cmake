# Finds OpenBLAS with its C interface and makes the imported target tapedeck::openblas. Used by our own build and by the
# installed package alike. A file name proves nothing (a libblas without cblas is found as easily), so a small product is
# compiled, linked and run.
#
# To point at another copy: -DTAPEDECK_OPENBLAS_LIBRARY=<file> -DTAPEDECK_OPENBLAS_INCLUDE=<folder with cblas.h>.

include_guard(GLOBAL)
find_package(Threads REQUIRED)

function(tapedeck_openblas_missing why)
  message(FATAL_ERROR
    "OpenBLAS with its C interface (cblas.h), built for threads, is needed: ${why}\n"
    "On Debian or Ubuntu: apt-get install libopenblas-pthread-dev\n"
    "Elsewhere: set TAPEDECK_OPENBLAS_LIBRARY to the library and TAPEDECK_OPENBLAS_INCLUDE to the folder of its cblas.h.")
endfunction()

# Debian's folders of the pthread flavour come first, because the plain names follow whatever flavour was chosen last.
find_package(PkgConfig QUIET)
if(PkgConfig_FOUND)
  pkg_check_modules(TAPEDECK_PC_OPENBLAS QUIET openblas)
endif()
find_library(TAPEDECK_OPENBLAS_LIBRARY NAMES openblasp openblas
  HINTS /usr/lib/${CMAKE_LIBRARY_ARCHITECTURE}/openblas-pthread ${TAPEDECK_PC_OPENBLAS_LIBRARY_DIRS})
find_path(TAPEDECK_OPENBLAS_INCLUDE cblas.h
  HINTS /usr/include/${CMAKE_LIBRARY_ARCHITECTURE}/openblas-pthread ${TAPEDECK_PC_OPENBLAS_INCLUDE_DIRS}
  PATH_SUFFIXES openblas)
mark_as_advanced(TAPEDECK_OPENBLAS_LIBRARY TAPEDECK_OPENBLAS_INCLUDE)
if(NOT TAPEDECK_OPENBLAS_LIBRARY)
  tapedeck_openblas_missing("no libopenblas was found.")
elseif(NOT TAPEDECK_OPENBLAS_INCLUDE)
  tapedeck_openblas_missing("${TAPEDECK_OPENBLAS_LIBRARY} is here, its header cblas.h is not.")
endif()

add_library(tapedeck::openblas UNKNOWN IMPORTED GLOBAL)
set_target_properties(tapedeck::openblas PROPERTIES
  IMPORTED_LOCATION "${TAPEDECK_OPENBLAS_LIBRARY}"
  INTERFACE_INCLUDE_DIRECTORIES "${TAPEDECK_OPENBLAS_INCLUDE}"
  INTERFACE_LINK_LIBRARIES "Threads::Threads;m")
if(TAPEDECK_OPENBLAS_LIBRARY MATCHES "\\.a$")
  # A static OpenBLAS also holds LAPACK objects that need Fortran's library; none of them is linked for CBLAS calls.
  set_property(TARGET tapedeck::openblas APPEND PROPERTY INTERFACE_LINK_LIBRARIES ${CMAKE_DL_LIBS})
endif()

set(tapedeck_openblas_key "${TAPEDECK_OPENBLAS_LIBRARY} ${TAPEDECK_OPENBLAS_INCLUDE} ${CMAKE_CXX_COMPILER}")
if(NOT TAPEDECK_OPENBLAS_TESTED STREQUAL tapedeck_openblas_key)
  set(tapedeck_openblas_probe [=[
#include <cblas.h>
#include <cstdio>
int main() {
  const double a[] = {1, 2, 3, 4}, b[] = {5, 6, 7, 8}, right[] = {19, 22, 43, 50};
  double c[4] = {};
  cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, 2, 2, 2, 1.0, a, 2, b, 2, 0.0, c, 2);
  for (int i = 0; i < 4; ++i) {
    if (c[i] != right[i]) return std::printf("a product of two 2 x 2 matrices came out wrong"), 1;
  }
#ifdef OPENBLAS_THREAD
  const char* kind[] = {"serial", "pthread", "OpenMP"};
  int parallel = openblas_get_parallel();
  std::printf("%s, %s, %d threads", openblas_get_config(), kind[parallel], openblas_get_num_threads());
  if (parallel == OPENBLAS_SEQUENTIAL) return 3;
#else
  std::printf("BLAS of unknown make");
#endif
  return 0;
}
]=])
  if(CMAKE_CROSSCOMPILING AND NOT CMAKE_CROSSCOMPILING_EMULATOR)
    message(STATUS "OpenBLAS: ${TAPEDECK_OPENBLAS_LIBRARY} (cross-compiling: not run)")
    return()
  endif()
  unset(tapedeck_openblas_ran CACHE)
  unset(tapedeck_openblas_built CACHE)
  try_run(tapedeck_openblas_ran tapedeck_openblas_built SOURCE_FROM_VAR probe.cpp tapedeck_openblas_probe
    LINK_LIBRARIES tapedeck::openblas
    COMPILE_OUTPUT_VARIABLE tapedeck_openblas_log RUN_OUTPUT_VARIABLE tapedeck_openblas_said)
  if(NOT tapedeck_openblas_built)
    tapedeck_openblas_missing(
      "a call of cblas_dgemm does not build with ${TAPEDECK_OPENBLAS_LIBRARY}:\n${tapedeck_openblas_log}")
  elseif(tapedeck_openblas_ran EQUAL 3)
    tapedeck_openblas_missing("${TAPEDECK_OPENBLAS_LIBRARY} is the serial flavour (${tapedeck_openblas_said}), \
which gives wrong results when two threads call it.")
  elseif(NOT tapedeck_openblas_ran EQUAL 0)
    tapedeck_openblas_missing("a call of cblas_dgemm in ${TAPEDECK_OPENBLAS_LIBRARY} failed: \
${tapedeck_openblas_said} (${tapedeck_openblas_ran})")
  endif()
  set(TAPEDECK_OPENBLAS_TESTED "${tapedeck_openblas_key}" CACHE INTERNAL "what the probe ran with")
  set(TAPEDECK_OPENBLAS_SAID "${tapedeck_openblas_said}" CACHE INTERNAL "what the probe printed")
endif()
if(NOT tapedeck_FIND_QUIETLY)
  message(STATUS "BLAS: ${TAPEDECK_OPENBLAS_SAID} (${TAPEDECK_OPENBLAS_LIBRARY})")
endif()
