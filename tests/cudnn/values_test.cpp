// SPDX-License-Identifier: Apache-2.0
// Our declarations of cuDNN's interface against its header.
#include "tessera/kernels/cudnn/api_impl.h"

#include <gtest/gtest.h>

#if __has_include(<cudnn_graph.h>)
#include <cudnn_graph.h>
#endif

namespace tessera::cudnn {
namespace {

#if __has_include(<cudnn_graph.h>)
template <class E> constexpr int number(E e) { return static_cast<int>(e); }
#define TESSERA_SAME(ours, cudnns) EXPECT_EQ(number(ours), number(cudnns))

TEST(CudnnValues, AreTheHeaders) {
  TESSERA_SAME(Status::success, CUDNN_STATUS_SUCCESS);
  TESSERA_SAME(Status::not_supported, CUDNN_STATUS_NOT_SUPPORTED);
  TESSERA_SAME(DataType::f32, CUDNN_DATA_FLOAT);
  TESSERA_SAME(DataType::f16, CUDNN_DATA_HALF);
  TESSERA_SAME(DataType::i32, CUDNN_DATA_INT32);
  TESSERA_SAME(DataType::bf16, CUDNN_DATA_BFLOAT16);
  TESSERA_SAME(DataType::boolean, CUDNN_DATA_BOOLEAN);
  TESSERA_SAME(Kind::pointwise, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  TESSERA_SAME(Kind::engine_config, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
  TESSERA_SAME(Kind::engine_heuristics, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  TESSERA_SAME(Kind::execution_plan, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  TESSERA_SAME(Kind::operation_pointwise, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  TESSERA_SAME(Kind::operation_graph, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  TESSERA_SAME(Kind::variant_pack, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  TESSERA_SAME(Kind::tensor, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  TESSERA_SAME(Kind::matmul, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  TESSERA_SAME(Kind::operation_matmul, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  TESSERA_SAME(Kind::reduction, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  TESSERA_SAME(Kind::operation_reduction, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  TESSERA_SAME(Kind::operation_reshape, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  TESSERA_SAME(Kind::device_properties, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  TESSERA_SAME(Attribute::pointwise_mode, CUDNN_ATTR_POINTWISE_MODE);
  TESSERA_SAME(Attribute::pointwise_math_type, CUDNN_ATTR_POINTWISE_MATH_PREC);
  TESSERA_SAME(Attribute::pointwise_axis, CUDNN_ATTR_POINTWISE_AXIS);
  TESSERA_SAME(Attribute::heuristics_mode, CUDNN_ATTR_ENGINEHEUR_MODE);
  TESSERA_SAME(Attribute::heuristics_graph, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
  TESSERA_SAME(Attribute::heuristics_results, CUDNN_ATTR_ENGINEHEUR_RESULTS);
  TESSERA_SAME(Attribute::heuristics_device, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP);
  TESSERA_SAME(Attribute::plan_handle, CUDNN_ATTR_EXECUTION_PLAN_HANDLE);
  TESSERA_SAME(Attribute::plan_config, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
  TESSERA_SAME(Attribute::plan_workspace, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
  TESSERA_SAME(Attribute::plan_device, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP);
  TESSERA_SAME(Attribute::operation_pointwise_how, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
  TESSERA_SAME(Attribute::operation_pointwise_x, CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
  TESSERA_SAME(Attribute::operation_pointwise_b, CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
  TESSERA_SAME(Attribute::operation_pointwise_t, CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
  TESSERA_SAME(Attribute::operation_pointwise_y, CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
  TESSERA_SAME(Attribute::graph_handle, CUDNN_ATTR_OPERATIONGRAPH_HANDLE);
  TESSERA_SAME(Attribute::graph_operations, CUDNN_ATTR_OPERATIONGRAPH_OPS);
  TESSERA_SAME(Attribute::tensor_alignment, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT);
  TESSERA_SAME(Attribute::tensor_type, CUDNN_ATTR_TENSOR_DATA_TYPE);
  TESSERA_SAME(Attribute::tensor_dims, CUDNN_ATTR_TENSOR_DIMENSIONS);
  TESSERA_SAME(Attribute::tensor_strides, CUDNN_ATTR_TENSOR_STRIDES);
  TESSERA_SAME(Attribute::tensor_id, CUDNN_ATTR_TENSOR_UNIQUE_ID);
  TESSERA_SAME(Attribute::tensor_is_virtual, CUDNN_ATTR_TENSOR_IS_VIRTUAL);
  TESSERA_SAME(Attribute::tensor_is_value, CUDNN_ATTR_TENSOR_IS_BY_VALUE);
  TESSERA_SAME(Attribute::pack_ids, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  TESSERA_SAME(Attribute::pack_pointers, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  TESSERA_SAME(Attribute::pack_workspace, CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
  TESSERA_SAME(Attribute::matmul_math_type, CUDNN_ATTR_MATMUL_COMP_TYPE);
  TESSERA_SAME(Attribute::operation_matmul_a, CUDNN_ATTR_OPERATION_MATMUL_ADESC);
  TESSERA_SAME(Attribute::operation_matmul_b, CUDNN_ATTR_OPERATION_MATMUL_BDESC);
  TESSERA_SAME(Attribute::operation_matmul_c, CUDNN_ATTR_OPERATION_MATMUL_CDESC);
  TESSERA_SAME(Attribute::operation_matmul_how, CUDNN_ATTR_OPERATION_MATMUL_DESC);
  TESSERA_SAME(Attribute::reduction_operator, CUDNN_ATTR_REDUCTION_OPERATOR);
  TESSERA_SAME(Attribute::reduction_math_type, CUDNN_ATTR_REDUCTION_COMP_TYPE);
  TESSERA_SAME(Attribute::operation_reduction_x, CUDNN_ATTR_OPERATION_REDUCTION_XDESC);
  TESSERA_SAME(Attribute::operation_reduction_y, CUDNN_ATTR_OPERATION_REDUCTION_YDESC);
  TESSERA_SAME(Attribute::operation_reduction_how, CUDNN_ATTR_OPERATION_REDUCTION_DESC);
  TESSERA_SAME(Attribute::operation_reshape_x, CUDNN_ATTR_OPERATION_RESHAPE_XDESC);
  TESSERA_SAME(Attribute::operation_reshape_y, CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
  TESSERA_SAME(Attribute::device_json, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION);
  TESSERA_SAME(AttributeType::handle, CUDNN_TYPE_HANDLE);
  TESSERA_SAME(AttributeType::data_type, CUDNN_TYPE_DATA_TYPE);
  TESSERA_SAME(AttributeType::boolean, CUDNN_TYPE_BOOLEAN);
  TESSERA_SAME(AttributeType::int64, CUDNN_TYPE_INT64);
  TESSERA_SAME(AttributeType::pointer, CUDNN_TYPE_VOID_PTR);
  TESSERA_SAME(AttributeType::heuristics_mode, CUDNN_TYPE_HEUR_MODE);
  TESSERA_SAME(AttributeType::pointwise_mode, CUDNN_TYPE_POINTWISE_MODE);
  TESSERA_SAME(AttributeType::descriptor, CUDNN_TYPE_BACKEND_DESCRIPTOR);
  TESSERA_SAME(AttributeType::reduction_operator, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE);
  TESSERA_SAME(AttributeType::text, CUDNN_TYPE_CHAR);
  TESSERA_SAME(Pointwise::add, CUDNN_POINTWISE_ADD);
  TESSERA_SAME(Pointwise::multiply, CUDNN_POINTWISE_MUL);
  TESSERA_SAME(Pointwise::divide, CUDNN_POINTWISE_DIV);
  TESSERA_SAME(Pointwise::subtract, CUDNN_POINTWISE_SUB);
  TESSERA_SAME(Pointwise::exp, CUDNN_POINTWISE_EXP);
  TESSERA_SAME(Pointwise::log, CUDNN_POINTWISE_LOG);
  TESSERA_SAME(Pointwise::identity, CUDNN_POINTWISE_IDENTITY);
  TESSERA_SAME(Pointwise::greater, CUDNN_POINTWISE_CMP_GT);
  TESSERA_SAME(Pointwise::greater_equal, CUDNN_POINTWISE_CMP_GE);
  TESSERA_SAME(Pointwise::index, CUDNN_POINTWISE_GEN_INDEX);
  TESSERA_SAME(Pointwise::select, CUDNN_POINTWISE_BINARY_SELECT);
  TESSERA_SAME(Reduction::add, CUDNN_REDUCE_TENSOR_ADD);
  TESSERA_SAME(Reduction::max, CUDNN_REDUCE_TENSOR_MAX);
  TESSERA_SAME(Heuristics::by_model, CUDNN_HEUR_MODE_A);
}
#endif

}  // namespace
}  // namespace tessera::cudnn
