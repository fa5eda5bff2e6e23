// SPDX-License-Identifier: Apache-2.0
// What is called of cuDNN's backend API: types, values and functions of its binary interface
// (cudnn_graph.h, cuDNN 9), so that neither building nor linking needs cuDNN. A test compares the
// values with the header if it is installed.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera::cudnn {

using Handle = void*;
using Descriptor = void*;

enum class Status : int { success = 0, not_supported = 3000 };  // and the 999 after it

enum class DataType : int { f32 = 0, f16 = 2, i32 = 4, bf16 = 9, boolean = 11 };

enum class Kind : int {
  pointwise = 0,
  engine_config = 3,
  engine_heuristics = 4,
  execution_plan = 5,
  operation_pointwise = 13,
  operation_graph = 15,
  variant_pack = 16,
  tensor = 17,
  matmul = 18,
  operation_matmul = 19,
  reduction = 21,
  operation_reduction = 22,
  operation_reshape = 31,
  device_properties = 38,
};

enum class Attribute : int {
  pointwise_mode = 0,
  pointwise_math_type = 1,
  pointwise_axis = 9,
  heuristics_mode = 200,
  heuristics_graph = 201,
  heuristics_results = 202,
  heuristics_device = 204,
  plan_handle = 400,
  plan_config = 401,
  plan_workspace = 402,
  plan_device = 407,
  operation_pointwise_how = 750,
  operation_pointwise_x = 751,
  operation_pointwise_b = 752,
  operation_pointwise_y = 753,
  operation_pointwise_t = 758,
  graph_handle = 800,
  graph_operations = 801,
  tensor_alignment = 900,
  tensor_type = 901,
  tensor_dims = 902,
  tensor_strides = 903,
  tensor_id = 906,
  tensor_is_virtual = 907,
  tensor_is_value = 908,
  pack_ids = 1000,
  pack_pointers = 1001,
  pack_workspace = 1003,
  matmul_math_type = 1500,
  operation_matmul_a = 1520,
  operation_matmul_b = 1521,
  operation_matmul_c = 1522,
  operation_matmul_how = 1523,
  reduction_operator = 1600,
  reduction_math_type = 1601,
  operation_reduction_x = 1610,
  operation_reduction_y = 1611,
  operation_reduction_how = 1612,
  operation_reshape_x = 2200,
  operation_reshape_y = 2201,
  device_json = 2702,
};

enum class AttributeType : int {
  handle = 0,
  data_type = 1,
  boolean = 2,
  int64 = 3,
  pointer = 6,
  heuristics_mode = 8,
  pointwise_mode = 14,
  descriptor = 15,
  reduction_operator = 18,
  text = 24,
};

enum class Pointwise : int {
  add = 0,
  multiply = 1,
  divide = 6,
  subtract = 9,
  exp = 13,
  log = 15,
  identity = 21,
  greater = 302,
  greater_equal = 303,
  index = 501,   // along an axis
  select = 601,  // t ? x : b
};

enum class Reduction : int { add = 0, max = 3 };

enum class Heuristics : int { by_model = 3 };  // mode A

// The functions that are called: X(name here, name in the library, result, parameters).
#define TESSERA_CUDNN_FUNCTIONS(X)                                                \
  X(version, cudnnGetVersion, size_t, ())                                         \
  X(create, cudnnCreate, Status, (Handle*))                                       \
  X(destroy, cudnnDestroy, Status, (Handle))                                      \
  X(set_stream, cudnnSetStream, Status, (Handle, void*))                          \
  X(error_name, cudnnGetErrorString, const char*, (Status))                       \
  X(last_error, cudnnGetLastErrorString, void, (char*, size_t))                   \
  X(create_descriptor, cudnnBackendCreateDescriptor, Status, (Kind, Descriptor*)) \
  X(destroy_descriptor, cudnnBackendDestroyDescriptor, Status, (Descriptor))      \
  X(set_attribute, cudnnBackendSetAttribute, Status,                              \
    (Descriptor, Attribute, AttributeType, int64_t, const void*))                 \
  X(get_attribute, cudnnBackendGetAttribute, Status,                              \
    (Descriptor, Attribute, AttributeType, int64_t, int64_t*, void*))             \
  X(finalize, cudnnBackendFinalize, Status, (Descriptor))                         \
  X(execute, cudnnBackendExecute, Status, (Handle, Descriptor, Descriptor))

struct Functions {
#define X(name, symbol, result, parameters) result(*name) parameters = nullptr;
  TESSERA_CUDNN_FUNCTIONS(X)
#undef X
};

}  // namespace tessera::cudnn
