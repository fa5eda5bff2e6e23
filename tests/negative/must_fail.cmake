# SPDX-License-Identifier: Apache-2.0
# cmake -P must_fail.cmake: the control must build, the case must fail, and its output must match EXPECT.
# SOURCE (and CONTROL, default SOURCE) is C++ text, compiled with INCLUDES (CONTROL_INCLUDES), linked if LINK is given.
# ROOMS instead configures the project in rooms/ with a kernels folder without file REMOVE or with file ADD.
cmake_minimum_required(VERSION 3.25)
file(REMOVE_RECURSE ${FOLDER})
file(MAKE_DIRECTORY ${FOLDER})

function(compile what source includes out)
  set(mode -fsyntax-only)
  if(LINK)
    cmake_path(GET LINK PARENT_PATH library_folder)
    set(mode -shared -fPIC -Wl,--no-undefined -Wl,-rpath,${library_folder} -o ${FOLDER}/${what}.so)
  endif()
  file(WRITE ${FOLDER}/${what}.cpp "${source}\n")
  list(TRANSFORM includes PREPEND -I)
  execute_process(COMMAND ${COMPILER} -std=c++20 -fopenmp ${includes} ${mode} ${FOLDER}/${what}.cpp ${LINK}
    RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  set(${out} "${result};${output}" PARENT_SCOPE)
endfunction()

function(configure what add remove out)
  set(source ${FOLDER}/${what})
  file(COPY ${CMAKE_CURRENT_LIST_DIR}/rooms/ DESTINATION ${source})
  foreach(file twice/twice.h twice/twice.cpp twice/twice.cu twice/twice_test.cpp shared/rows_impl.h _skeleton/skeleton.h ${add})
    file(WRITE ${source}/${file} "")
  endforeach()
  if(remove)
    file(REMOVE ${source}/${remove})
  endif()
  execute_process(COMMAND ${CMAKE_COMMAND} -S ${source} -B ${source}_build -DROOMS=${ROOMS}
      -DMODULES=${CMAKE_CURRENT_LIST_DIR}/../../cmake
    RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  set(${out} "${result};${output}" PARENT_SCOPE)
endfunction()

if(ROOMS)
  configure(control "" "" control)
  configure(case "${ADD}" "${REMOVE}" case)
else()
  if(NOT CONTROL)
    set(CONTROL "${SOURCE}")
  endif()
  compile(control "${CONTROL}" "${CONTROL_INCLUDES}" control)
  compile(case "${SOURCE}" "${INCLUDES}" case)
endif()

list(POP_FRONT control result)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "the control does not build, so the test says nothing:\n${control}")
endif()
list(POP_FRONT case result)
if(result EQUAL 0)
  message(FATAL_ERROR "builds, but must not: ${EXPECT}")
endif()
string(REGEX REPLACE "[ \n]+" " " case_line "${case}")
if(NOT case_line MATCHES "${EXPECT}")
  message(FATAL_ERROR "fails, but without the message '${EXPECT}':\n${case}")
endif()
