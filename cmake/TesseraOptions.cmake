# SPDX-License-Identifier: Apache-2.0
# Options and the flags that every target shares (tessera_flags).
include(GNUInstallDirs)

option(TESSERA_CUDA "Build libtessera_cuda.so; needs nvcc" OFF)
option(TESSERA_CUDA_EMULATION "Build libtessera_cuda.so for devices emulated on the CPU; for tests" OFF)
option(TESSERA_TESTS "Build the tests and examples" ${PROJECT_IS_TOP_LEVEL})
option(TESSERA_BENCH "Build the benchmarks" OFF)
option(TESSERA_INCOMPLETE_ROOMS "Warn about incomplete op rooms instead of failing; for work in progress" OFF)
option(TESSERA_CHECK_LOCKS "Check at run time who holds the locks of dist/, as builds without NDEBUG do" OFF)

if(TESSERA_CUDA AND TESSERA_CUDA_EMULATION)
  message(FATAL_ERROR "TESSERA_CUDA and TESSERA_CUDA_EMULATION both build libtessera_cuda.so: choose one")
endif()
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
set(CMAKE_BUILD_RPATH_USE_ORIGIN ON)  # a folder of programs and libraries can be carried elsewhere
set(CMAKE_INSTALL_RPATH $ORIGIN $ORIGIN/../${CMAKE_INSTALL_LIBDIR})

# ccache sees paths relative to the sources, so that all presets and clones share their objects; the sloppiness is what it asks
# for before it takes precompiled headers. It depends on the compiler's list of headers: no second run of the preprocessor.
find_program(TESSERA_CCACHE ccache)
mark_as_advanced(TESSERA_CCACHE)
if(TESSERA_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}
    CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_DEPEND=1 ${TESSERA_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()

# Bits must not depend on contraction; instruction sets above the baseline are chosen at run time.
add_library(tessera_flags INTERFACE)
set(_cxx_flags -Wall -Wextra -Wnon-virtual-dtor -Wcast-align -Woverloaded-virtual
  -Wno-psabi  # what takes or returns a vector is inlined, so its calling convention is moot
  -ffp-contract=off -fno-math-errno -fno-trapping-math
  -ffile-prefix-map=${PROJECT_SOURCE_DIR}/=)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND _cxx_flags -Wshadow -Wno-restrict)  # g++ 12 sees overlaps in std::string's operator+ (GCC bug 105651)
else()
  list(APPEND _cxx_flags
    -Wno-unknown-pragmas  # `GCC ivdep`, which spares a check of aliases
    -Wno-bitwise-instead-of-logical -Wno-bitwise-conditional-parentheses  # (a > b) | (a != a) ? a : b has no branch
    -Wno-undefined-var-template)  # RowOf<Op>::row: the linker says which op stands in no list
endif()
set(_cuda_flags -Wall -ffp-contract=off)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  list(APPEND _cxx_flags -march=x86-64-v2)
  list(APPEND _cuda_flags -march=x86-64-v2)
endif()
list(JOIN _cuda_flags "," _cuda_flags)
target_compile_options(tessera_flags INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:${_cxx_flags}>"
  "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=${_cuda_flags};--expt-relaxed-constexpr;--extended-lambda;--fmad=false>")

if(TESSERA_CHECK_LOCKS)
  target_compile_definitions(tessera_flags INTERFACE TESSERA_CHECK_LOCKS)
endif()

# By default a precompiled header is a system header, and what it includes warns of nothing.
set(CMAKE_PCH_PROLOGUE "")
# tessera_precompile(<target> <header>...): what most of its sources include, parsed once. g++ and clang only. The target's own
# flags and include folders compile it, so a header that the layering forbids is not found here either.
set(_precompile_flags)  # what ccache asks for
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(_precompile_flags -fpch-preprocess)
elseif(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  set(_precompile_flags "SHELL:-Xclang -fno-pch-timestamp")
endif()
function(tessera_precompile target)
  if(_precompile_flags)
    target_precompile_headers(${target} PRIVATE ${ARGN})
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${_precompile_flags}>")
  endif()
endfunction()

# tessera_precompiled_like(<target> <other>): the header of a target with the same flags, which sees no more than this one.
function(tessera_precompiled_like target other)
  if(_precompile_flags)
    target_precompile_headers(${target} REUSE_FROM ${other})
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${_precompile_flags}>")
  endif()
endfunction()
