# SPDX-License-Identifier: Apache-2.0
# Tests: few programs, one ctest entry per test. Tests run in the source folder, so goldens are "tests/goldens/...".
# A test whose suite name or parameter contains "Cuda" needs a GPU and gets the label gpu instead of its program's label.
# The targets unit_tests, law_tests, golden_tests and mesh_tests build the programs of one label.
if(TESSERA_TESTS)
  enable_testing()
  include(GoogleTest)
  add_custom_target(unit_tests)
  add_custom_target(law_tests)
  add_custom_target(golden_tests)
  add_custom_target(mesh_tests)
endif()

# tessera_discover_tests(<program> <filter> <label> [<prefix> [<VARIABLE=set:value>]]): the program's tests whose name the filter
# lets pass, with a prefix before their names. Those labelled gpu run on emulated devices where the tree has some, with the
# variable in place of TESSERA_NO_CUDA_MEMORY_CACHING (one, since a list of them does not pass through). Discovery runs when
# ctest starts, so that a build never runs tests.
function(tessera_discover_tests name filter label)
  set(prefix)
  set(devices)
  if(ARGC GREATER 3)  # beyond ARGC, ARGV3 would be the caller's
    set(prefix ${ARGV3})
  endif()
  if(label STREQUAL "gpu" AND TESSERA_CUDA_EMULATION)
    set(variable TESSERA_NO_CUDA_MEMORY_CACHING=set:1)
    if(ARGC GREATER 4)
      set(variable ${ARGV4})
    endif()
    set(devices ENVIRONMENT TESSERA_EMULATED_DEVICES=2 ENVIRONMENT_MODIFICATION ${variable})
  endif()
  gtest_discover_tests(${name} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
    NO_PRETTY_VALUES TEST_FILTER "${filter}" TEST_PREFIX "${prefix}"
    PROPERTIES LABELS ${label} TIMEOUT 300 ${devices})
endfunction()

# tessera_test_program(<name> LABEL <label> SOURCES <file>... LINK <target>... [PRECOMPILE <header>...])
function(tessera_test_program name)
  cmake_parse_arguments(arg "" "LABEL" "SOURCES;LINK;PRECOMPILE" ${ARGN})
  if(NOT arg_SOURCES)
    return()
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE ${arg_LINK} tessera_flags tessera_test_support)
  if(arg_PRECOMPILE)
    tessera_precompile(${name} <gtest/gtest.h> ${arg_PRECOMPILE})
  endif()
  add_dependencies(${arg_LABEL}_tests ${name})
  set(on_gpu "*Cuda*.*:*.*/*Cuda*")
  tessera_discover_tests(${name} "-${on_gpu}" ${arg_LABEL})
  tessera_discover_tests(${name} "${on_gpu}" gpu)
endfunction()

# One program per module from its *_test.cpp, linked to the module's archive and no further up: the layering holds for
# tests too, but for the rooms' tests, which differentiate and so see autograd.
function(tessera_module_tests)
  tessera_include_root(tests ${PROJECT_SOURCE_DIR}/tests root)
  file(GLOB support CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/support/*.cpp)
  add_library(tessera_test_support INTERFACE)
  target_include_directories(tessera_test_support INTERFACE ${root})
  target_sources(tessera_test_support INTERFACE ${support})
  # Tests wait for what they test: optimising them costs a fresh build two minutes and saves a run seconds.
  target_compile_options(tessera_test_support INTERFACE $<$<CONFIG:Release>:-O1>)
  if(support MATCHES "/main\\.cpp")
    target_link_libraries(tessera_test_support INTERFACE GTest::gtest)
  else()
    target_link_libraries(tessera_test_support INTERFACE GTest::gtest_main)
  endif()

  # Worth it where a program has many files.
  set(rooms <tessera/kernels/fill/fill.h> <tessera/kernels/pointwise/pointwise.h> <tessera/kernels/views/views.h>)
  set(precompile_kernels <tessera/autograd/autograd.h> ${rooms})
  set(precompile_dist <tessera/dist/dtensor.h> <tessera/tests/support/ranks.h> <tessera/tests/support/trials.h> ${rooms})
  set(precompile_train <tessera/train/run/trainer.h> <tessera/dist/dtensor.h> <filesystem> <nlohmann/json.hpp> ${rooms})

  get_property(modules GLOBAL PROPERTY TESSERA_MODULES)
  foreach(module IN LISTS modules)
    set(source ${PROJECT_SOURCE_DIR}/${module})
    file(GLOB tests CONFIGURE_DEPENDS ${source}/*_test.cpp ${source}/*/*_test.cpp)
    list(FILTER tests EXCLUDE REGEX "/_[^/]*/[^/]*$")
    if(TESSERA_LEFT_OUT_ROOMS)
      list(FILTER tests EXCLUDE REGEX "/kernels/(${TESSERA_LEFT_OUT_ROOMS})/")
    endif()
    tessera_test_program(tessera_${module}_tests LABEL unit SOURCES ${tests}
      LINK tessera_${module} $<$<STREQUAL:${module},kernels>:tessera_autograd>
      PRECOMPILE ${precompile_${module}})
  endforeach()
  tessera_precompiled_like(tessera_autograd_tests tessera_kernels_tests)
  tessera_precompiled_like(tessera_nn_tests tessera_dist_tests)
  tessera_precompiled_like(tessera_models_tests tessera_dist_tests)
endfunction()
