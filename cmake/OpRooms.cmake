# SPDX-License-Identifier: Apache-2.0
# op_rooms(<room>...): the rooms of kernels/. A room is complete or the configuration fails: <room>/<room>.{h,cpp,cu} and
# <room>_test.cpp must exist, and a folder that is not listed is an error (but for `cudnn`, `mask`, `norms`, `shared`, `products` and those that begin with `_`).
# Writes tessera/kernels/rooms.h, which includes all public headers of the rooms and lists their ops as
# `tessera::KernelRooms`: what the op tables are made of, and the umbrella header.
# With TESSERA_INCOMPLETE_ROOMS a gap is a warning, and a room without header or CPU source is left out.
function(op_rooms)
  set(severity SEND_ERROR)
  if(TESSERA_INCOMPLETE_ROOMS)
    set(severity WARNING)
  endif()

  set(rooms ${ARGN})
  set(left_out)
  foreach(room IN LISTS ARGN)
    foreach(file ${room}.h ${room}.cpp ${room}.cu ${room}_test.cpp)
      if(NOT EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/${room}/${file})
        message(${severity} "kernels/${room}: missing ${file}; a room has ${room}.h, ${room}.cpp, ${room}.cu and "
          "${room}_test.cpp (see kernels/README.md)")
        if(file MATCHES "^${room}\\.(h|cpp)$")
          list(REMOVE_ITEM rooms ${room})
          list(APPEND left_out ${room})
        endif()
      endif()
    endforeach()
  endforeach()

  file(GLOB folders CONFIGURE_DEPENDS LIST_DIRECTORIES true RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} *)
  list(FILTER folders EXCLUDE REGEX "^[_.]|\\.|^(cudnn|mask|norms|shared|products)$")
  foreach(folder IN LISTS folders)
    if(NOT folder IN_LIST ARGN AND IS_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}/${folder})
      message(${severity} "kernels/${folder} exists but is not in op_rooms(...) of kernels/CMakeLists.txt: add its name "
        "there, or nothing will build it")
      list(APPEND left_out ${folder})
    endif()
  endforeach()

  # Looking again when a room's files come or go.
  file(GLOB _ CONFIGURE_DEPENDS */*.h */*.cpp */*.cu)

  set(includes)
  foreach(room IN LISTS rooms)
    file(GLOB headers RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR}/${room}/*.h)
    list(FILTER headers EXCLUDE REGEX "_impl\\.h$")
    list(APPEND includes ${headers})
  endforeach()
  list(TRANSFORM includes REPLACE "(.+)" "#include \"tessera/kernels/\\1\"")
  list(TRANSFORM rooms REPLACE "(.+)" "op::\\1_ops" OUTPUT_VARIABLE lists)
  list(JOIN includes "\n" includes)
  list(JOIN lists ",\n    " lists)
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/include/rooms/tessera/kernels/rooms.h @ONLY CONTENT
"// All rooms of kernels/. Written by op_rooms() in kernels/CMakeLists.txt.
#pragma once

#include \"tessera/core/op.h\"
@includes@

namespace tessera {
using KernelRooms = ConcatOps<
    @lists@>;
}  // namespace tessera
")
  list(REMOVE_DUPLICATES left_out)
  list(JOIN left_out "|" left_out)
  set(TESSERA_LEFT_OUT_ROOMS "${left_out}" PARENT_SCOPE)
endfunction()
