// SPDX-License-Identifier: Apache-2.0
// The part of CUPTI's interface that Tessera calls, with NVIDIA's names and meanings; of records
// the fields that it reads.
#pragma once

#include "cuda_runtime_api.h"

#define CUPTIAPI
#define CUPTI_API_VERSION 130001

enum CUptiResult {
  CUPTI_SUCCESS = 0,
  CUPTI_ERROR_INVALID_PARAMETER = 1,
  CUPTI_ERROR_MAX_LIMIT_REACHED = 12,
  CUPTI_ERROR_QUEUE_EMPTY = 13,
};
enum CUpti_ActivityKind {
  CUPTI_ACTIVITY_KIND_MEMCPY = 1,
  CUPTI_ACTIVITY_KIND_MEMSET = 2,
  CUPTI_ACTIVITY_KIND_KERNEL = 3,
  CUPTI_ACTIVITY_KIND_DRIVER = 4,
  CUPTI_ACTIVITY_KIND_RUNTIME = 5,
  CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL = 10,
  CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION = 39,
};
enum CUpti_ActivityFlag { CUPTI_ACTIVITY_FLAG_FLUSH_FORCED = 1 };
enum CUpti_ExternalCorrelationKind { CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0 = 3 };

using CUcontext = void*;
struct CUpti_Activity {
  CUpti_ActivityKind kind;
};
struct CUpti_ActivityAPI {
  CUpti_ActivityKind kind;
  uint32_t correlationId;
};
struct CUpti_ActivityKernel10 {
  CUpti_ActivityKind kind;
  uint64_t start, end;
  uint32_t deviceId, streamId, correlationId;
  const char* name;
};
struct CUpti_ActivityMemcpy6 {
  CUpti_ActivityKind kind;
  uint64_t start, end, bytes;
  uint32_t deviceId, streamId, correlationId;
};
struct CUpti_ActivityMemset4 {
  CUpti_ActivityKind kind;
  uint64_t start, end, bytes;
  uint32_t deviceId, streamId, correlationId;
};
struct CUpti_ActivityExternalCorrelation {
  CUpti_ActivityKind kind;
  CUpti_ExternalCorrelationKind externalKind;
  uint64_t externalId;
  uint32_t correlationId;
};

using CUpti_BuffersCallbackRequestFunc = void(CUPTIAPI*)(uint8_t** buffer, size_t* size,
                                                         size_t* most_records);
using CUpti_BuffersCallbackCompleteFunc = void(CUPTIAPI*)(CUcontext context, uint32_t stream,
                                                          uint8_t* buffer, size_t size,
                                                          size_t valid);

extern "C" {
CUDA_EMULATION_API CUptiResult cuptiGetVersion(uint32_t* version);
CUDA_EMULATION_API CUptiResult cuptiGetTimestamp(uint64_t* time);
CUDA_EMULATION_API CUptiResult cuptiGetResultString(CUptiResult result, const char** text);
CUDA_EMULATION_API CUptiResult cuptiActivityRegisterCallbacks(
    CUpti_BuffersCallbackRequestFunc request, CUpti_BuffersCallbackCompleteFunc complete);
CUDA_EMULATION_API CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind);
CUDA_EMULATION_API CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind);
CUDA_EMULATION_API CUptiResult cuptiActivityFlushAll(uint32_t flag);
CUDA_EMULATION_API CUptiResult cuptiActivityGetNextRecord(uint8_t* buffer, size_t valid,
                                                          CUpti_Activity** record);
CUDA_EMULATION_API CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext context, uint32_t stream,
                                                                 size_t* dropped);
CUDA_EMULATION_API CUptiResult
cuptiActivityPushExternalCorrelationId(CUpti_ExternalCorrelationKind kind, uint64_t id);
CUDA_EMULATION_API CUptiResult
cuptiActivityPopExternalCorrelationId(CUpti_ExternalCorrelationKind kind, uint64_t* last);
}
