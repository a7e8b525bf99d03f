# Flags for our own targets. Nothing here reaches a project that uses the library.

# tapedeck_find(<package> <Debian package>): find_package that says what to install.
function(tapedeck_find name debian)
  find_package(${name} QUIET GLOBAL)
  if(NOT ${name}_FOUND)
    message(FATAL_ERROR "${name} was not found. On Debian or Ubuntu: apt-get install ${debian}")
  endif()
  message(STATUS "${name} ${${name}_VERSION}${${name}_VERSION_STRING}")
endfunction()

set(TAPEDECK_WARNINGS
  -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wold-style-cast -Wdouble-promotion -Wnon-virtual-dtor
  -Woverloaded-virtual -Wcast-qual -Wformat=2 -Wimplicit-fallthrough -Wextra-semi -Wundef -Wno-psabi)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # -Wrestrict of g++ 12 fires falsely on std::string concatenation (GCC bug 105651).
  list(APPEND TAPEDECK_WARNINGS -Wduplicated-cond -Wlogical-op -Wredundant-move -Wno-restrict)
  if(TAPEDECK_SANITIZE)
    # GCC's flow analysis reads the sanitizers' own branches as paths that leave variables unset.
    list(APPEND TAPEDECK_WARNINGS -Wno-maybe-uninitialized)
  endif()
endif()

# tapedeck_dev_flags(<target>): warnings, sanitizers and checked containers, none of it passed on to users.
function(tapedeck_dev_flags target)
  if(NOT PROJECT_IS_TOP_LEVEL)
    return()
  endif()
  target_compile_options(${target} PRIVATE ${TAPEDECK_WARNINGS} $<$<BOOL:${TAPEDECK_WERROR}>:-Werror>)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF)
  if(TAPEDECK_POISON)
    target_compile_definitions(${target} PRIVATE _GLIBCXX_ASSERTIONS)
  endif()
  if(TAPEDECK_SANITIZE)
    target_compile_options(${target} PRIVATE
      -fsanitize=${TAPEDECK_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
    target_link_options(${target} PRIVATE -fsanitize=${TAPEDECK_SANITIZE})
  endif()
endfunction()
