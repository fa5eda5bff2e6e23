// SPDX-License-Identifier: Apache-2.0
// Fields of the command line that the tables of runs have in common.
#pragma once

namespace tessera::mesh_tests {

inline constexpr const char *kPipeline = "--parallelism.pipeline_parallel_degree",
                            *kSchedule = "--parallelism.pipeline_parallel_schedule",
                            *kLayersPerStage = "--parallelism.pipeline_parallel_layers_per_stage",
                            *kReplicate = "--parallelism.data_parallel_replicate_degree",
                            *kShard = "--parallelism.data_parallel_shard_degree",
                            *kReshard = "--parallelism.fsdp_reshard_after_forward",
                            *kContext = "--parallelism.context_parallel_degree",
                            *kBalancer = "--parallelism.context_parallel_load_balancer",
                            *kRotate = "--parallelism.context_parallel_rotate_method",
                            *kUlysses = "--parallelism.context_parallel_ulysses_degree",
                            *kTensor = "--parallelism.tensor_parallel_degree",
                            *kSequenceParallel = "--parallelism.enable_sequence_parallel",
                            *kExpert = "--parallelism.expert_parallel_degree",
                            *kExpertTensor = "--parallelism.expert_tensor_parallel_degree",
                            *kSteps = "--training.steps", *kSave = "--checkpoint.enable",
                            *kModelOnly = "--checkpoint.last_save_model_only",
                            *kRecompute = "--activation_checkpoint.mode",
                            *kPacking = "--dataloader.packing";

}  // namespace tessera::mesh_tests
