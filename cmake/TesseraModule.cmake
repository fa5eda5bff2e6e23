# SPDX-License-Identifier: Apache-2.0
# A module: its own include root, objects compiled once, a static archive, its headers and its place in the package.

# The link alone.
function(tessera_include_link name source out)
  set(root ${PROJECT_BINARY_DIR}/include/${name})
  file(MAKE_DIRECTORY ${root}/tessera)
  cmake_path(GET source FILENAME leaf)
  file(RELATIVE_PATH relative ${root}/tessera ${source})
  file(CREATE_LINK ${relative} ${root}/tessera/${leaf} SYMBOLIC)
  set(${out} ${root} PARENT_SCOPE)
endfunction()

# tessera_include_root(<name> <target of the link> <out-var>): <build>/include/<name>/tessera/<last part of the target>.
# One root per module is what makes a forbidden include fail; the link lets headers lie beside their sources.
function(tessera_include_root name source out)
  tessera_include_link(${name} ${source} root)
  foreach(prefix ${root} include/${name})  # __FILE__ is core/tensor.h; the second is what ccache makes of the first
    target_compile_options(tessera_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-ffile-prefix-map=${prefix}/tessera/=>)
  endforeach()
  set(${out} ${root} PARENT_SCOPE)
endfunction()

# tessera_module(<name> [<module>...]): folder <name>, which may include the named modules and what they include.
function(tessera_module name)
  set(source ${PROJECT_SOURCE_DIR}/${name})
  tessera_include_root(${name} ${source} root)

  file(GLOB sources CONFIGURE_DEPENDS ${source}/*.cpp ${source}/*/*.cpp)
  list(FILTER sources EXCLUDE REGEX "_test\\.cpp$|/(mpi|nccl)_library\\.cpp$|/_[^/]*/[^/]*$|/cuda/[^/]*$|/(cuda|sweep)_table\\.cpp$|/train/cli/main\\.cpp$")
  if(TESSERA_LEFT_OUT_ROOMS)
    list(FILTER sources EXCLUDE REGEX "/kernels/(${TESSERA_LEFT_OUT_ROOMS})/")
  endif()
  file(GLOB headers CONFIGURE_DEPENDS RELATIVE ${source} ${source}/*.h ${source}/*/*.h)
  list(FILTER headers EXCLUDE REGEX "_impl\\.h$|^_[^/]*/|^cuda/")
  list(TRANSFORM headers PREPEND ${root}/tessera/${name}/)

  set(objects tessera_${name}_objects)
  set(archive tessera_${name})
  list(TRANSFORM ARGN PREPEND tessera_ OUTPUT_VARIABLE dependencies)

  add_library(${objects} OBJECT ${sources})
  target_include_directories(${objects} PRIVATE ${root})
  target_link_libraries(${objects} PRIVATE tessera_flags ${dependencies})

  add_library(${archive} STATIC $<TARGET_OBJECTS:${objects}>)
  add_library(tessera::${name} ALIAS ${archive})
  target_sources(${archive} PUBLIC FILE_SET HEADERS BASE_DIRS ${root} FILES ${headers})
  target_compile_features(${archive} PUBLIC cxx_std_20)
  target_link_libraries(${archive} PUBLIC ${dependencies})
  set_target_properties(${archive} PROPERTIES
    EXPORT_NAME ${name} LINKER_LANGUAGE CXX VERIFY_INTERFACE_HEADER_SETS ON)

  install(TARGETS ${archive} EXPORT tessera-${name} FILE_SET HEADERS)
  install(EXPORT tessera-${name} NAMESPACE tessera:: FILE tessera-${name}.cmake
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tessera)
  set_property(GLOBAL APPEND PROPERTY TESSERA_MODULES ${name})
endfunction()

# tessera_module_uses(<name> PUBLIC|PRIVATE <target>...): an outside library of a module.
function(tessera_module_uses name visibility)
  target_link_libraries(tessera_${name}_objects PRIVATE ${ARGN})
  target_link_libraries(tessera_${name} ${visibility} ${ARGN})
endfunction()

# libtessera.so from the same objects as the archives, with the umbrella header <tessera/tessera.h>.
function(tessera_shared_library)
  tessera_include_root(all ${PROJECT_SOURCE_DIR}/tessera.h umbrella)
  get_property(modules GLOBAL PROPERTY TESSERA_MODULES)
  add_library(tessera SHARED)
  add_library(tessera::tessera ALIAS tessera)
  foreach(module IN LISTS modules)
    target_sources(tessera PRIVATE $<TARGET_OBJECTS:tessera_${module}_objects>)
    target_include_directories(tessera INTERFACE $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include/${module}>)
    get_target_property(libraries tessera_${module}_objects LINK_LIBRARIES)
    list(FILTER libraries EXCLUDE REGEX "^tessera_")
    target_link_libraries(tessera PRIVATE ${libraries})
  endforeach()
  target_include_directories(tessera INTERFACE
    $<BUILD_INTERFACE:${umbrella}> $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include/rooms>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_compile_features(tessera PUBLIC cxx_std_20)
  target_link_options(tessera PRIVATE -Wl,--no-undefined -Wl,--as-needed)
  set_target_properties(tessera PROPERTIES
    LINKER_LANGUAGE CXX
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  install(TARGETS tessera EXPORT tessera-shared)
  install(FILES tessera.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tessera)
  install(EXPORT tessera-shared NAMESPACE tessera:: FILE tessera-shared.cmake
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tessera)
endfunction()

# The laws and their mutation run as a component, tessera::laws, for ops outside the repository.
function(tessera_laws_library)
  tessera_include_link(laws ${PROJECT_SOURCE_DIR}/tests/laws root)
  tessera_include_link(tests ${PROJECT_SOURCE_DIR}/tests tests)
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/laws/*.cpp)
  list(FILTER sources EXCLUDE REGEX "_test\\.cpp$")
  add_library(tessera_laws_objects OBJECT ${sources})
  target_include_directories(tessera_laws_objects PRIVATE ${root} ${tests})
  target_link_libraries(tessera_laws_objects PRIVATE tessera_flags tessera)
  target_compile_options(tessera_laws_objects PRIVATE $<$<CONFIG:Release>:-O1>)
  add_library(tessera_laws STATIC $<TARGET_OBJECTS:tessera_laws_objects>)
  add_library(tessera::laws ALIAS tessera_laws)
  target_sources(tessera_laws PUBLIC FILE_SET HEADERS BASE_DIRS ${root} FILES ${root}/tessera/laws/judge.h)
  target_link_libraries(tessera_laws PUBLIC tessera)
  set_target_properties(tessera_laws PROPERTIES
    EXPORT_NAME laws LINKER_LANGUAGE CXX VERIFY_INTERFACE_HEADER_SETS ON)
  install(TARGETS tessera_laws EXPORT tessera-laws FILE_SET HEADERS)
  install(EXPORT tessera-laws NAMESPACE tessera:: FILE tessera-laws.cmake
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tessera)
endfunction()

# The `tessera` program: one file over the shared library, so that CUDA's library finds the same copy of the core.
function(tessera_program main)
  add_executable(tessera_program ${main})
  target_link_libraries(tessera_program PRIVATE tessera tessera_flags)
  set_target_properties(tessera_program PROPERTIES OUTPUT_NAME tessera)
  install(TARGETS tessera_program)
endfunction()

# Libraries of device code, opened at run time, so nothing links them: libtessera_cuda.so, every Op::cuda and the CUDA side of
# core, and libtessera_sweep.so, variants of kernels for bench_kernels.
function(tessera_cuda_library)
  set(kernels ${PROJECT_SOURCE_DIR}/kernels)
  file(GLOB sources CONFIGURE_DEPENDS
    ${PROJECT_SOURCE_DIR}/core/cuda/*.cpp ${PROJECT_SOURCE_DIR}/core/cuda/*.cu ${kernels}/*/*.cu)
  list(FILTER sources EXCLUDE REGEX "/_[^/]*/[^/]*$|_sweep\\.cu$")
  set(check ${PROJECT_SOURCE_DIR}/core/cuda/check_cuda.cpp)
  string(REPLACE ";" ", " architectures "${CMAKE_CUDA_ARCHITECTURES}")
  set_source_files_properties(${check} PROPERTIES
    COMPILE_DEFINITIONS "TESSERA_CUDA_ARCHITECTURES=\"${architectures}\"")
  tessera_device_library(tessera_cuda ${sources} ${kernels}/cuda_table.cpp)
  if(NOT TESSERA_CUDA_EMULATION)
    install(TARGETS tessera_cuda)
  endif()
  file(GLOB sweeps CONFIGURE_DEPENDS ${kernels}/*/*_sweep.cu)
  tessera_device_library(tessera_sweep ${sweeps} ${kernels}/sweep_table.cpp ${check})
endfunction()

# It must link without undefined symbols, which is how a missing kernel shows. With TESSERA_CUDA_EMULATION the C++ compiler
# builds the same sources for devices that tests/cuda_emulation emulates; their warnings are nvcc's matter.
function(tessera_device_library name)
  add_library(${name} SHARED ${ARGN})
  target_link_libraries(${name} PRIVATE tessera tessera_flags)
  target_link_options(${name} PRIVATE -Wl,--no-undefined)
  if(TESSERA_CUDA_EMULATION)
    set(options -xc++ -w -include cuda_runtime.h $<$<CONFIG:Release>:-O1>)
    if(CMAKE_CXX_FLAGS MATCHES "undefined")  # time to compile, for what the address sanitizer sees too
      list(APPEND options -fno-sanitize=null,bounds,object-size,pointer-overflow,vptr)
    endif()
    set_source_files_properties(${ARGN} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "${options}")
    target_compile_definitions(${name} PRIVATE __CUDA_ARCH__=900)  # device code, in rooms that ask
    target_link_libraries(${name} PRIVATE tessera_cuda_emulation)
  else()
    target_link_libraries(${name} PRIVATE CUDA::cudart CUDA::cublasLt)
    set_target_properties(${name} PROPERTIES CUDA_RUNTIME_LIBRARY Shared)
  endif()
endfunction()

# libtessera_<name>.so from one <name>_library.cpp, which wraps an outside library (MPI, NCCL) in a table of functions. Opened
# at run time; it uses nothing of Tessera, so it fits archives and the shared library alike.
function(tessera_wrapped_library name source)
  add_library(tessera_${name} SHARED ${source})
  target_include_directories(tessera_${name} PRIVATE ${PROJECT_BINARY_DIR}/include/dist)
  target_link_libraries(tessera_${name} PRIVATE tessera_flags ${ARGN})
  target_link_options(tessera_${name} PRIVATE -Wl,--no-undefined -Wl,--as-needed)
  if(NOT (TESSERA_CUDA_EMULATION AND name STREQUAL "nccl"))
    install(TARGETS tessera_${name})
  endif()
endfunction()

# find_package(tessera): a file per component, so that one that was not built is named in the error.
function(tessera_package)
  include(CMakePackageConfigHelpers)
  get_property(modules GLOBAL PROPERTY TESSERA_MODULES)
  set(TESSERA_COMPONENTS ${modules})
  set(folder ${CMAKE_INSTALL_LIBDIR}/cmake/tessera)
  configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/tesseraConfig.cmake.in
    ${PROJECT_BINARY_DIR}/tesseraConfig.cmake INSTALL_DESTINATION ${folder})
  write_basic_package_version_file(${PROJECT_BINARY_DIR}/tesseraConfigVersion.cmake
    COMPATIBILITY SameMinorVersion)
  install(FILES ${PROJECT_BINARY_DIR}/tesseraConfig.cmake ${PROJECT_BINARY_DIR}/tesseraConfigVersion.cmake
    DESTINATION ${folder})
endfunction()
