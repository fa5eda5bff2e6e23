// SPDX-License-Identifier: Apache-2.0
#include "tessera/tests/mesh/integration.h"

#include "tessera/tests/mesh/fields.h"

#include <algorithm>
#include <cctype>
#include <sstream>

namespace tessera::mesh_tests {
std::vector<Item> items() {
  const Words full_save{kSave, "true", kModelOnly, "false"};
  const Words three{kShard, "2", kContext, "2", kTensor, "2"};
  const Words dense_qwen{"--recipe", "qwen3_debugmodel", "--model.head_dim", "8"},
      qwen_on_three = joined(dense_qwen, three);
  const Words experts{"--recipe", "qwen3_debugmodel_moe_small", "--model.moe_inter_dim", "12"};
  const Words llama4{"--recipe", "llama4_debugmodel", "--model.moe_inter_dim", "12"};
  const auto pipeline = [](const char* degree, const char* schedule, const Words& more = {}) {
    // Of six layers, as torchtitan's debug model.
    return joined({kPipeline, degree, kSchedule, schedule, "--model.n_layers", "6"}, more);
  };
  const Words again{"--overwrite", "true"};
  const Words pipelined_three =
      pipeline("2", "1F1B", joined({kShard, "2", kTensor, "2"}, full_save));
  return {
      {.name = "default",
       .ranks = 4,
       .runs = {{"--profiler.enable_profiling", "true", "--profiler.profile_freq", "5",
                 "--metrics.enable_tensorboard", "true"}},
       .files = {"profiling/traces/iteration_10/rank0_trace.json",
                 "profiling/traces/iteration_10/rank3_trace.json", "tb"},
       .transport = ""},
      {.name = "2d_eager", .ranks = 4, .runs = {{kTensor, "2"}}, .transport = "messages"},
      {.name = "2d_eager_no_sp", .ranks = 4, .runs = {{kTensor, "2", kSequenceParallel, "false"}}},
      {.name = "full_checkpoint",
       .ranks = 4,
       .runs = {full_save, joined(full_save, {kSteps, "20"})},
       .files = {"checkpoint/step-10/rank-00003.safetensors",
                 "checkpoint/step-20/rank-00003.safetensors"},
       .steps = 20,
       .transport = ""},
      {.name = "last_save_model_only_fp32",
       .ranks = 4,
       .runs = {{kSave, "true", kModelOnly, "true", "--checkpoint.export_dtype", "float32"}},
       .files = {"checkpoint/step-10/manifest.json"}},
      {.name = "last_save_model_only_bf16",
       .ranks = 4,
       .runs = {{kSave, "true", kModelOnly, "true", "--checkpoint.export_dtype", "bfloat16"}},
       .files = {"checkpoint/step-10/manifest.json"}},
      {.name = "optimizer_bf16_states",
       .ranks = 2,
       .runs = {{"--optimizer.state_dtype", "bfloat16"}}},
      {.name = "ddp", .ranks = 4, .runs = {{kReplicate, "4", kShard, "1"}}, .transport = ""},
      {.name = "hsdp", .ranks = 4, .runs = {{kReplicate, "2", kShard, "2"}}, .transport = "pairs"},
      {.name = "cp", .ranks = 4, .runs = {{kContext, "4"}}, .transport = ""},
      {.name = "cp_allgather", .ranks = 4, .runs = {{kContext, "4", kRotate, "allgather"}}},
      {.name = "cp_alltoall",
       .ranks = 4,
       .runs = {{kContext, "4", kRotate, "alltoall"}},
       .transport = "messages"},
      {.name = "hsdp+tp",
       .ranks = 8,
       .runs = {{kReplicate, "2", kShard, "2", kTensor, "2"}},
       .transport = ""},
      {.name = "fsdp+cp", .ranks = 4, .runs = {{kShard, "2", kContext, "2"}}, .transport = "pairs"},
      {.name = "hsdp+cp_without_dp_shard",
       .ranks = 4,
       .runs = {{kReplicate, "2", kShard, "1", kContext, "2"}}},
      {.name = "hsdp+cp_with_dp_shard",
       .ranks = 8,
       .runs = {{kReplicate, "2", kShard, "2", kContext, "2"}}},
      {.name = "fsdp+tp+cp", .ranks = 8, .runs = {three}, .transport = "messages"},
      {.name = "pp_1f1b", .ranks = 2, .runs = {pipeline("2", "1F1B")}, .transport = ""},
      {.name = "pp_gpipe", .ranks = 2, .runs = {pipeline("2", "GPipe")}},
      {.name = "pp_dp_1f1b",
       .ranks = 4,
       .runs = {pipeline("2", "1F1B"),
                pipeline("2", "1F1B", joined(again, {kLayersPerStage, "4"}))}},
      {.name = "pp_dp_gpipe", .ranks = 4, .runs = {pipeline("2", "GPipe")}},
      {.name = "pp_tp", .ranks = 4, .runs = {pipeline("2", "1F1B", {kTensor, "2"})}},
      {.name = "pp_tp_gpipe",
       .ranks = 4,
       .runs = {pipeline("2", "GPipe", {kTensor, "2"})},
       .transport = "messages"},
      {.name = "pp_dp_tp",
       .ranks = 8,
       .runs = {pipelined_three, joined(pipelined_three, {kSteps, "20"})},
       .steps = 20,
       .transport = "pairs"},
      {.name = "pp_looped_1f1b",
       .ranks = 4,
       .runs = {pipeline("4", "Interleaved1F1B"),
                pipeline("4", "Interleaved1F1B", joined(again, {kLayersPerStage, "1"}))},
       .transport = "messages"},
      {.name = "pp_looped_zero_bubble",
       .ranks = 4,
       .runs = {pipeline("4", "InterleavedZeroBubble", {kRecompute, "full"})},
       .transport = ""},
      {.name = "pp_zbv",
       .ranks = 2,
       .runs = {pipeline("2", "ZBVZeroBubble", {kRecompute, "full"})},
       .transport = "messages"},
      {.name = "pp_custom_csv",
       .ranks = 2,
       .runs = {pipeline("2", "1F1B",
                         {"--parallelism.pipeline_parallel_schedule_csv",
                          "tests/mesh/custom_schedule.csv", kRecompute, "full"})}},
      {.name = "pp_dualpipev",  // of experts
       .ranks = 4,
       .runs = {joined(experts, {kPipeline, "2", kSchedule, "DualPipeV", kExpert, "2"})}},
      {.name = "validation_tp_cp_pp",
       .ranks = 8,
       .runs = {pipeline(
           "2", "1F1B",
           {kContext, "2", kTensor, "2", "--validation.enable", "true", "--validation.dataset_path",
            "README.md", "--validation.steps", "2", "--validation.freq", "5"})},
       .steps = 13},  // with validations after 1, 5 and 10
      {.name = "qwen3_fsdp+tp+cp_no_sp",
       .ranks = 8,
       .runs = {joined(qwen_on_three, joined(full_save, {kSequenceParallel, "false"})),
                joined(qwen_on_three, joined(full_save, {kSteps, "20"}))},
       .steps = 20},
      {.name = "qwen3_non_fused_qkv_fsdp+tp+cp",
       .ranks = 8,
       .runs = {joined(qwen_on_three, {"--model.fused_qkv", "false"})}},
      {.name = "fsdp_reshard_always",
       .ranks = 2,
       .runs = {{"--parallelism.fsdp_reshard_after_forward", "always"}}},
      {.name = "optional_checkpoint",
       .ranks = 4,
       .runs = {full_save, joined(full_save, {kSteps, "20", kShard, "2", kTensor, "2",
                                              "--checkpoint.exclude_from_loading",
                                              "lr_scheduler,dataloader,optimizer"})},
       .files = {"checkpoint/step-20/manifest.json"},
       .steps = 20},
      {.name = "gradient_accumulation",
       .ranks = 2,
       .runs = {{"--training.local_batch_size", "8", "--training.global_batch_size", "32"}},
       .transport = "messages"},
      {.name = "fsdp+flex_attn", .ranks = 4, .runs = {{kPacking, "documents", kRecompute, "full"}}},
      {.name = "fsdp+varlen_attn+per_op_sac",
       .ranks = 4,
       .runs = {{kPacking, "documents", kRecompute, "selective",
                 "--activation_checkpoint.selective_ac_option", "op"}}},
      {.name = "test_generate",
       .ranks = 2,
       .runs = {full_save},
       .then = {"generate", "--prompt", "the ", "--tokens", "5", "--checkpoint"}},
      {.name = "dataloader_kwargs",
       .ranks = 2,
       .runs = {{"--dataloader.num_prefetch_batches", "3", "--dataloader.shuffle", "false"}}},
      {.name = "sft",
       .ranks = 2,
       .runs = {{"--dataloader.path", "tests/goldens/fine_tuning.jsonl", "--dataloader.format",
                 "prompt_completion", "--training.seq_len", "48"}}},
      {.name = "qwen3_fsdp+tp", .ranks = 4, .runs = {joined(dense_qwen, {kTensor, "2"})}},
      {.name = "qwen3_moe_fsdp+tp+ep_param_groups",
       .ranks = 4,
       .runs = {joined(experts, {kTensor, "2", kExpert, "4", "--optimizer.param_groups",
                                 "norm weight_decay=0,router lr=1e-3"})},
       .transport = ""},
      {.name = "qwen3_fsdp+tp+ep+etp",
       .ranks = 4,
       .runs = {joined(experts, {kTensor, "2", kExpert, "2", kExpertTensor, "2"})},
       .transport = "messages"},
      {.name = "llama4_pp+fsdp+tp+ep",
       .ranks = 8,
       .runs = {joined(llama4, {kPipeline, "2", kShard, "2", kTensor, "2", kExpert, "4"})}},
      {.name = "moe_memory_estimation",
       .ranks = 4,
       .runs = {joined(experts, {kTensor, "2", kExpert, "4", "--estimate"})},
       .steps = 0},
      {.name = "fsdp2_memory_estimation", .ranks = 2, .runs = {{"--estimate"}}, .steps = 0},
  };
}

std::string test_name(const Item& item) {
  std::string name = item.name;
  std::ranges::replace_if(
      name, [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return name;
}

std::vector<Words> IntegrationTest::commands(const Item& item, const std::string& dump) const {
  const Words base{kSave,
                   "false",
                   kSteps,
                   "10",
                   "--training.local_batch_size",
                   "8",
                   "--lr_scheduler.warmup_steps",
                   "2",
                   "--lr_scheduler.decay_ratio",
                   "0.8"};
  std::vector<Words> all;
  for (const Words& flags : item.runs) all.push_back(train(dump, joined(base, flags)));
  if (!item.then.empty()) all.push_back(joined(item.then, {path(dump)}));
  return all;
}

void IntegrationTest::run_on_threads(const Item& item, const std::string& dump) {
  for (const Words& words : commands(item, dump)) {
    EXPECT_EQ(run(joined(words, {"--ranks", std::to_string(item.ranks)})), 0)
        << item.name << ": " << err_.str() << out_.str();
  }
}

void IntegrationTest::expect_results(const Item& item, const std::string& dump) const {
  for (const std::string& file : item.files)
    EXPECT_TRUE(std::filesystem::exists(path(concat(dump, '/', file)))) << file;
  if (item.steps > 0) {
    EXPECT_EQ(figures(dump).size(), item.steps);
  }
}

std::vector<std::string> IntegrationTest::figures(const std::string& dump) const {
  std::istringstream lines(io::read_file(path(dump + "/metrics.jsonl")));
  std::vector<std::string> all;
  for (std::string line; std::getline(lines, line);)
    all.push_back(line.substr(0, line.find(", \"lr\"")));  // what follows holds times
  return all;
}

}  // namespace tessera::mesh_tests
