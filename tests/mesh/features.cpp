// SPDX-License-Identifier: Apache-2.0
#include "tessera/tests/mesh/features.h"

#include "tessera/tests/mesh/fields.h"
#include "tessera/tests/support/tiny_experts.h"

namespace tessera::mesh_tests {
namespace {

// Of f64, in which all runs are unless a feature says otherwise.
constexpr double kRounding = 1e-10;

}  // namespace

std::vector<Feature> features(const std::string& folder) {
  const std::string text = folder + "/text.txt";
  const Words save{kSave, "true", "--checkpoint.interval", "1"};
  const Words validation{"--validation.enable", "true", "--validation.dataset_path", text,
                         "--validation.steps",  "2",    "--validation.freq",         "1"};
  const Words f32{"--training.dtype", "float32"};
  const auto gpt2 = [](const Words& more) {
    return joined(train::split("--model.name gpt2 --model.flavor debugmodel --model.dim 32 "
                               "--model.n_layers 2 --model.n_heads 4 --model.vocab_size 260"),
                  more);
  };
  return {
      // Models.
      {.name = "gpt2", .words = gpt2({}), .kind = "model"},
      {.name = "gpt2_dropout",
       .words = gpt2({"--model.embedding_dropout", "0.2", "--model.residual_dropout", "0.2"}),
       .kind = "model"},
      {.name = "experts",
       .words = joined(train::tiny_experts(),
                       {"--model.n_kv_heads", "2", "--model.z_loss_coeff", "1e-3"}),
       .kind = "model"},
      {.name = "llama4",  // layers whose attention is cut into chunks, and one that sees all
       .words = train::split("--model.name llama4 --model.flavor debugmodel --model.dim 32 "
                             "--model.n_layers 4 --model.n_heads 4 --model.n_kv_heads 2 "
                             "--model.ffn_dim 32 --model.vocab_size 260 --model.num_experts 4 "
                             "--model.moe_inter_dim 16 --model.attention_chunk_size 6"),
       .kind = "model"},
      {.name = "tied",
       .words = joined(train::tiny_model(), {"--model.enable_weight_tying", "true"}),
       .kind = "model"},
      {.name = "capacity", .words = {"--model.capacity_factor", "1"}, .needs = "experts"},
      {.name = "balance_loss", .words = {"--model.balance_loss_coeff", "0.1"}, .needs = "experts"},
      {.name = "forced_balance",
       .words = {"--debug.moe_force_load_balance", "true"},
       .needs = "experts"},

      // Meshes.
      {.name = "fully_shard", .words = {}, .ranks = 2, .moves = kRounding, .cuts = 2},
      {.name = "replicate", .words = {kReplicate, "2"}, .ranks = 2, .moves = kRounding, .cuts = 2},
      {.name = "reshard_always",
       .words = {kReshard, "always"},
       .moves = 0,
       .kind = "reshard",
       .needs = "fully_shard"},
      {.name = "reshard_never",
       .words = {kReshard, "never"},
       .moves = 0,
       .kind = "reshard",
       .needs = "fully_shard"},
      // The norm is rounded to f32, and its last digit changes how far gradients are clipped.
      {.name = "pipeline",
       .words = {kPipeline, "2"},
       .ranks = 2,
       .moves = 10 * kRounding,
       .kind = "pipeline"},
      {.name = "looped_pipeline",  // stages for the embedding, each layer and the head
       .words = {kPipeline, "2", kSchedule, "Interleaved1F1B"},
       .ranks = 2,
       .moves = 10 * kRounding,
       .kind = "pipeline"},
      {.name = "tensor", .words = {kTensor, "2"}, .ranks = 2, .moves = kRounding},
      {.name = "whole_sequences",
       .words = {kSequenceParallel, "false"},
       .moves = kRounding,
       .needs = "tensor"},
      {.name = "whole_logits",
       .words = {"--parallelism.disable_loss_parallel", "true"},
       .moves = kRounding,
       .needs = "tensor"},
      {.name = "context",
       .words = {kContext, "2"},
       .ranks = 2,
       .moves = kRounding,
       .kind = "context"},
      {.name = "context_in_order",
       .words = {kContext, "2", kBalancer, "none"},
       .ranks = 2,
       .moves = kRounding,
       .kind = "context"},
      {.name = "ring",
       .words = {kContext, "2", kRotate, "alltoall"},
       .ranks = 2,
       .moves = kRounding,
       .kind = "context"},
      {.name = "ulysses",
       .words = {kContext, "2", kUlysses, "2"},
       .ranks = 2,
       .moves = kRounding,
       .kind = "context"},
      {.name = "expert_parallel",
       .words = {kExpert, "2"},
       .ranks = 2,
       .moves = kRounding,
       .needs = "experts",
       .cuts = 2},
      {.name = "padded_experts",  // with room for all
       .words = {"--parallelism.expert_parallel_padding", "4"},
       .moves = kRounding,
       .needs = "expert_parallel"},

      // How a step is computed.
      {.name = "micro_batches", .words = {}, .moves = kRounding, .cuts = 2},
      {.name = "recompute_all", .words = {kRecompute, "full"}, .moves = 0, .kind = "recompute"},
      {.name = "recompute_ops",
       .words = {kRecompute, "selective"},
       .moves = 0,
       .kind = "recompute"},
      {.name = "recompute_layers",
       .words = {kRecompute, "selective", "--activation_checkpoint.selective_ac_option", "2"},
       .moves = 0,
       .kind = "recompute"},
      {.name = "memory_budget",
       .words = {kRecompute, "memory_budget", "--activation_checkpoint.memory_budget", "0.4"},
       .moves = 0,
       .kind = "recompute"},
      {.name = "separate_qkv", .words = {"--model.fused_qkv", "false"}, .moves = kRounding},
      {.name = "threads", .words = {"--threads", "2"}, .moves = kRounding},
      {.name = "deterministic", .words = {"--debug.deterministic", "true"}, .moves = 0},

      // What watches a run.
      {.name = "detect_anomaly", .words = {"--debug.detect_anomaly", "true"}, .moves = 0},
      {.name = "compared_replicas", .words = {"--debug.replica_check_freq", "1"}, .moves = 0},
      {.name = "profiler",
       .words = {"--profiler.enable_profiling", "true", "--profiler.profile_freq", "2",
                 "--profiler.profiler_warmup", "0"},
       .moves = 0},
      {.name = "tensorboard", .words = {"--metrics.enable_tensorboard", "true"}, .moves = 0},
      {.name = "flight_record", .words = {"--comm.trace_buf_size", "0"}, .moves = 0},
      {.name = "validation", .words = validation, .moves = 0},
      {.name = "samples", .words = {"--sample.tokens", "3"}, .moves = 0},
      {.name = "checkpoints", .words = save, .moves = 0, .kind = "save"},
      {.name = "async_checkpoints",
       .words = joined(save, {"--checkpoint.async_mode", "async"}),
       .moves = 0,
       .kind = "save"},
      {.name = "hugging_face_save",
       .words = joined(save, {"--checkpoint.last_save_in_hf", "true", kModelOnly, "true"}),
       .moves = 0,
       .kind = "save"},

      // Numbers.
      {.name = "mixed_bf16",
       .words = joined(f32, {"--training.mixed_precision_param", "bfloat16"}),
       .kind = "dtype",
       .noise = 3e-2},
      {.name = "all_bf16",
       .words = {"--training.dtype", "bfloat16", "--training.mixed_precision_param", "bfloat16",
                 "--optimizer.state_dtype", "bfloat16"},
       .kind = "dtype",
       .noise = 5e-2},
      {.name = "clipping", .words = {"--training.max_norm", "0.1"}},
      {.name = "parameter_groups",
       .words = {"--optimizer.param_groups", "norm weight_decay=0 lr=1e-3"}},
      {.name = "cosine", .words = {"--lr_scheduler.decay_type", "cosine"}},

      // Data.
      {.name = "documents_joined", .words = {kPacking, "concat"}, .kind = "packing"},
      {.name = "in_order", .words = {"--dataloader.shuffle", "false"}},
      {.name = "fine_tuning",
       .words = {"--dataloader.path", "tests/goldens/fine_tuning.jsonl", "--dataloader.format",
                 "prompt_completion", "--training.seq_len", "48"},
       .kind = "data"},
      {.name = "mixture",
       .words = {"--dataloader.path", "", "--dataloader.mixture", text + " weight=3,README.md"},
       .kind = "data"},
      {.name = "prefetch", .words = {"--dataloader.num_prefetch_batches", "5"}, .moves = 0},
  };
}

std::vector<Exception> exceptions() {
  std::vector<Exception> all{
      {"experts", "hugging_face_save",
       "[--checkpoint.last_save_in_hf] [hugging_face] load_balance_coeff 0.001 cannot be expressed "
       "in config.json of qwen3_moe: expected 0"},
      {"fine_tuning", "documents_joined",
       "[--dataloader.packing] concat is given, but examples of --dataloader.format "
       "prompt_completion never see each other; leave it out"},
      {"fine_tuning", "validation",
       "text.txt is no .jsonl, which --dataloader.format prompt_completion needs"}};
  // Their balancer deals the tokens of a sequence to ranks.
  for (const char* context : {"context", "ring", "ulysses"}) {
    all.push_back({"gpt2_dropout", context});
    all.push_back({"forced_balance", context});
    all.push_back({"capacity", context,
                   "[--model.capacity_factor] 1: experts take the first tokens of a sequence, "
                   "whose order --parallelism.context_parallel_load_balancer changes; give that "
                   "none, or --model.capacity_factor 0"});
  }
  return all;
}

}  // namespace tessera::mesh_tests
