// SPDX-License-Identifier: Apache-2.0
// A field that nothing reads cannot exist: each one, set to another value, must change what a tiny
// run does. What it does is all that it prints, the files that it leaves, the ops that it calls,
// the collectives that it sends and the error that ends it, without times. A new field needs a line
// here only if its other values cannot be made up, or if its effect shows only beside other fields.
#include "tessera/core/op_row.h"
#include "tessera/dist/comm_trace.h"
#include "tessera/dist/launch/run.h"
#include "tessera/nn/io/files.h"
#include "tessera/tests/support/folder_test.h"
#include "tessera/tests/support/process.h"
#include "tessera/train/run/faults.h"
#include "tessera/train/run/trainer.h"
#include "tessera/train/tokenizer/train_bpe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <sstream>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

struct Probe {
  Words beside = {};  ///< fields that both runs have
  Words values = {};  ///< to try; none: chosen by type and range
};

const Words kGpt2{"--model.name", "gpt2", "--model.flavor", "debugmodel"};

// Fields that a plain run does not show, and values that cannot be made up.
std::map<std::string, Probe> probes(const std::string& folder) {
  const Words selective{"--activation_checkpoint.mode", "selective"};
  const Words validation{"--validation.enable", "--validation.dataset_path", folder + "/held"};
  const Words saving{"--checkpoint.enable"}, profiling{"--profiler.enable_profiling"};
  const auto with_experts = [](Words words) {
    words.insert(words.end(), {"--model.name", "qwen3", "--model.flavor", "debugmodel_moe_small",
                               "--model.num_experts", "4", "--model.moe_inter_dim", "12"});
    return words;
  };
  const Words tensor_parallel{"--ranks", "2", "--parallelism.tensor_parallel_degree", "2"};
  const Words context_parallel{"--ranks", "2", "--parallelism.context_parallel_degree", "2"};
  const Words pipeline{"--ranks",
                       "2",
                       "--parallelism.pipeline_parallel_degree",
                       "2",
                       "--model.n_layers",
                       "4",
                       "--training.local_batch_size",
                       "4"};
  const Words lines{"--dataloader.path", folder + "/lines.jsonl"};
  const Words pairs{lines[0], lines[1], "--dataloader.format", "prompt_completion"};
  // A run that begins with another's last checkpoint, which is of step 4.
  const Words from_other{"--checkpoint.enable", "--checkpoint.initial_load_path", folder + "/first",
                         "--training.steps", "6"};
  Words dropout = kGpt2;
  dropout.insert(dropout.end(),
                 {"--model.residual_dropout", "0.5", "--activation_checkpoint.mode", "full"});
  Words whole_of_other = from_other;
  whole_of_other.emplace_back("--checkpoint.no-initial_load_model_only");
  const Words yarn{"--model.rope_scaling", "yarn"};
  const Words longrope{"--model.rope_scaling",      "longrope", "--model.rope_short_factors", "1,2",
                       "--model.rope_long_factors", "1,4"};
  const Words exporting{"--checkpoint.enable", "--checkpoint.last_save_in_hf"};
  std::string every_id = "[0";
  for (int id = 1; id < 300; ++id) every_id += concat(',', id);
  return {
      {"recipe", {{}, {"llama3_1b"}}},
      {"model.name", {{"--model.flavor", "debugmodel"}, {"gpt2"}}},
      {"model.flavor", {{}, {"1B"}}},
      {"dump_folder", {{}, {folder + "/elsewhere"}}},
      {"hf_assets_path", {{}, {folder + "/tokenizer.json"}}},
      {"overwrite", {{"--dump_folder", folder + "/used"}, {"true"}}},
      {"ranks", {{}, {"2"}}},
      {"parallelism.data_parallel_replicate_degree", {{"--ranks", "2"}, {"2"}}},
      {"parallelism.data_parallel_shard_degree", {{"--ranks", "2"}, {"2", "1"}}},
      {"parallelism.context_parallel_degree", {{"--ranks", "2"}, {"2"}}},
      {"parallelism.context_parallel_load_balancer", {context_parallel, {}}},
      {"parallelism.context_parallel_rotate_method", {context_parallel, {}}},
      {"parallelism.context_parallel_ulysses_degree", {context_parallel, {"2"}}},
      {"parallelism.tensor_parallel_degree", {{"--ranks", "2"}, {"2"}}},
      {"parallelism.pipeline_parallel_degree", {{"--ranks", "2"}, {"2"}}},
      {"parallelism.pipeline_parallel_schedule", {pipeline, {"GPipe"}}},
      {"parallelism.pipeline_parallel_schedule_csv", {pipeline, {folder + "/none.csv"}}},
      {"parallelism.pipeline_parallel_microbatch_size", {pipeline, {"2"}}},
      {"parallelism.pipeline_parallel_layers_per_stage", {pipeline, {"1"}}},
      {"parallelism.pipeline_parallel_first_stage_less_layers", {pipeline, {"3"}}},
      {"parallelism.pipeline_parallel_last_stage_less_layers", {pipeline, {"3"}}},
      {"parallelism.module_fqns_per_model_part",
       {pipeline, {"tok_embeddings layers.0,layers.1 layers.2 layers.3 norm output"}}},
      {"parallelism.expert_parallel_degree", {with_experts({"--ranks", "2"}), {"2"}}},
      {"parallelism.expert_tensor_parallel_degree",
       {with_experts({"--ranks", "4", "--parallelism.tensor_parallel_degree", "2",
                      "--parallelism.expert_parallel_degree", "2"}),
        {"2"}}},
      {"parallelism.expert_parallel_padding",
       {with_experts({"--ranks", "2", "--parallelism.expert_parallel_degree", "2"}), {"0.5"}}},
      {"parallelism.enable_sequence_parallel", {tensor_parallel, {}}},
      {"parallelism.disable_loss_parallel", {tensor_parallel, {}}},
      {"parallelism.fsdp_reshard_after_forward", {{"--ranks", "2"}, {"never"}}},
      {"threads", {{}, {"2"}}},
      {"training.global_batch_size", {{}, {"6"}}},
      {"training.max_norm", {{}, {"0.01"}}},
      {"optimizer.eps", {{}, {"0.1"}}},
      {"optimizer.param_groups", {{}, {"norm lr=0"}}},
      {"lr_scheduler.total_steps", {{}, {"9"}}},
      {"lr_scheduler.decay_ratio", {{}, {"0.1"}}},
      {"lr_scheduler.min_lr_factor", {{}, {"0.5"}}},
      {"activation_checkpoint.selective_ac_option", {selective, {"2"}}},
      {"metrics.step_line", {{}, {"moe/load_max_over_mean"}}},
      {"activation_checkpoint.force_recompute_paths", {selective, {"feed_forward"}}},
      {"activation_checkpoint.memory_budget",
       {{"--activation_checkpoint.mode", "memory_budget"}, {"0"}}},
      {"activation_checkpoint.early_stop", {{"--activation_checkpoint.mode", "full"}, {"false"}}},
      {"activation_checkpoint.preserve_rng_state", {dropout, {"false"}}},
      {"dataloader.path", {{}, {folder + "/held"}}},
      {"dataloader.mixture",
       {{"--dataloader.path", "", "--dataloader.mixture", folder + "/text.txt"},
        {folder + "/text.txt," + folder + "/held"}}},
      {"dataloader.text_field", {lines, {"body"}}},
      {"dataloader.packing", {lines, {}}},
      {"dataloader.document_tokens", {lines, {"none"}}},
      {"dataloader.format", {lines, {"prompt_completion"}}},
      {"dataloader.chat_template", {pairs, {folder + "/chat.json"}}},
      {"dataloader.long_examples", {pairs, {}}},
      {"dataloader.begin_id", {{"--dataloader.path", folder + "/tokens.npy"}, {"5"}}},
      {"checkpoint.last_save_model_only", {saving, {}}},
      {"checkpoint.enable_first_step_checkpoint", {saving, {}}},
      {"checkpoint.initial_load_model_only", {from_other, {}}},
      {"checkpoint.initial_load_path", {saving, {folder + "/first"}}},
      {"checkpoint.exclude_from_loading", {whole_of_other, {"optimizer"}}},
      {"checkpoint.last_save_in_hf", {saving, {}}},
      {"checkpoint.folder", {saving, {"saved"}}},
      {"checkpoint.export_dtype", {saving, {}}},
      {"checkpoint.interval", {saving, {"3"}}},
      {"checkpoint.keep_latest_k", {{saving[0], "--checkpoint.interval", "1"}, {"2"}}},
      {"checkpoint.load_step", {saving, {"3"}}},
      {"metrics.save_tb_folder", {{"--metrics.enable_tensorboard"}, {"events"}}},
      {"profiler.save_traces_folder", {profiling, {"traces"}}},
      {"profiler.profile_freq", {profiling, {"2"}}},
      {"profiler.profiler_active", {profiling, {"2"}}},
      {"validation.enable", {{"--validation.dataset_path", folder + "/held"}, {"true"}}},
      {"validation.dataset_path", {validation, {folder + "/text.txt"}}},
      {"validation.freq", {validation, {}}},
      {"validation.steps", {validation, {"1"}}},
      {"validation.local_batch_size",
       {{validation[0], validation[1], validation[2], "--validation.steps", "1"}, {"3"}}},
      {"validation.seq_len", {validation, {"8"}}},
      {"debug.deterministic", {{"--threads", "0"}, {"true"}}},
      {"debug.detect_anomaly", {{"--optimizer.lr", "1e6", "--training.steps", "100"}, {"true"}}},
      {"debug.moe_force_load_balance", {with_experts({}), {}}},
      {"sample.prompt", {{}, {"xy"}}},
      {"sample.temperature", {{"--sample.tokens", "12"}, {"50"}}},
      {"sample.top_p", {{"--sample.tokens", "12", "--sample.temperature", "50"}, {"0.001"}}},
      {"sample.top_k", {{"--sample.tokens", "12", "--sample.temperature", "50"}, {"200"}}},
      {"special_tokens.bos", {exporting, {"3"}}},
      {"special_tokens.eos", {{}, {every_id + "]"}}},
      {"special_tokens.pad", {exporting, {"3"}}},
      {"special_tokens.generation_bos", {exporting, {"3"}}},
      {"special_tokens.generation_eos", {{}, {every_id + "]"}}},
      {"special_tokens.generation_pad", {exporting, {"3"}}},
      // Below 64 rows at once nothing is joined.
      {"model.fused_qkv", {{"--training.local_batch_size", "4"}, {"false"}}},
      {"model.rope_scaling_factor", {{}, {"64"}}},
      {"model.rope_low_freq_factor", {{}, {"3.9"}}},
      {"model.rope_high_freq_factor", {{}, {"400"}}},
      {"model.rope_beta_fast", {yarn, {"1"}}},
      {"model.rope_beta_slow", {yarn, {"4"}}},
      {"model.rope_truncate", {yarn, {}}},
      {"model.rope_attention_factor", {yarn, {}}},
      {"model.rope_mscale", {{yarn[0], yarn[1], "--model.rope_mscale_all_dim", "1"}, {"0.7"}}},
      {"model.rope_mscale_all_dim", {{yarn[0], yarn[1], "--model.rope_mscale", "1"}, {"0.7"}}},
      {"model.rope_short_factors", {longrope, {"1,3"}}},
      {"model.rope_long_factors",
       {test::joined(longrope, {"--model.rope_original_max_position_embeddings", "2"}), {"1,5"}}},
      {"model.head_dim", {{}, {"6"}}},
      {"model.norm_eps", {{}, {"0.5"}}},
      {"model.max_seq_len", {{}, {"8"}}},
  };
}

// Fields that change nothing here but time, or that need a run which fails in a way that these do
// not, and the tests that show their use.
const std::set<std::string>& shown_elsewhere() {
  static const std::set<std::string> fields{
      "dataloader.num_prefetch_batches",          // DataTest: batches wait for room in the queue
      "profiler.profiler_warmup",                 // ProfilerTest: watched before they are recorded
      "activation_checkpoint.determinism_check",  // ActivationCheckpointFields
      "activation_checkpoint.debug",              // ActivationCheckpointFields
      "checkpoint.async_mode",                    // AsyncSaveTest: steps go on while it writes
      "checkpoint.file_mode",                     // DumpFolder: permissions
      "debug.deterministic_warn_only",            // ResumeTest: another route of matmuls
      "debug.replica_check_freq",                 // RankCheck: replicas that differ in one bit
      "comm.init_timeout_seconds",                // Config.DeadlinesReachTheWorld
      "comm.train_timeout_seconds",               // Config.DeadlinesReachTheWorld
      "comm.storage_timeout_seconds",             // DumpFolder: waits for disks
      "comm.trace_buf_size",                      // TrainerFaults: the flight record
      "model.initial_hf",                         // InitialHuggingFace
      "model.ignore_hf_fields",                   // InitialHuggingFace
      "checkpoint.initial_load_in_hf",            // InitialHuggingFace
      "memory.check",                             // MemoryCheck: training that does not fit
#ifdef __SANITIZE_THREAD__
      "threads",  // kernels have one there
#endif
  };
  return fields;
}

// Other values than the present one, as far as they can be made up.
Words other_values(const config::Field& field) {
  const std::string now = field.text();
  if (!field.limits.choices.empty()) {
    Words others;
    for (const auto& c : field.limits.choices) {
      if (c != now) others.push_back(c);
    }
    return others;
  }
  if (std::holds_alternative<bool*>(field.value)) return {now == "true" ? "false" : "true"};
  if (const auto* v = std::get_if<int64_t*>(&field.value))
    return {std::to_string(2 * **v), std::to_string(**v / 2), std::to_string(**v + 1)};
  if (const auto* v = std::get_if<double*>(&field.value))
    return {std::to_string(**v / 2), std::to_string(**v * 2 + 0.1)};
  return {};
}

std::string without_times(std::string text) {
  static const std::regex times(
      R"re(tps: [0-9,]+|tflops: [0-9.]+|mfu: [0-9.%]+|eta: [0-9dhms ]+|"tokens_per_second": [0-9.e+]+|ceiling: \S+|[0-9.]+ MiB in [0-9.]+ s|in [0-9.]+ s;|completed in .*|[0-9.]+GiB\([0-9.]+%\)|device: cpu.* GiB$)re",
      std::regex::ECMAScript | std::regex::multiline);
  return std::regex_replace(text, times, "*");
}

class FieldEffects : public test::FolderTest {
 protected:
  FieldEffects() {
    std::string text, held;
    for (int i = 0; i < 60; ++i) text += std::to_string(i * i) + " ";
    for (int i = 0; i < 30; ++i) held += std::to_string(i * i * i) + " ";
    io::write_file_atomically(folder_ + "/text.txt", text);
    io::write_file_atomically(folder_ + "/held", held);
    std::string lines;
    for (int i = 0; i < 40; ++i)
      lines += concat("{\"text\": \"", i, " and ", i * i, "\", \"body\": \"another ", i,
                      "\", \"prompt\": \"", i, "\", \"completion\": \" times itself is ", i * i,
                      "\"}\n");
    io::write_file_atomically(folder_ + "/lines.jsonl", lines);
    io::write_file_atomically(folder_ + "/chat.json",
                              R"({"roles": {"user": {"prefix": ["?"]}, "assistant": {}}})");
    write_npy();
    BpeTrainer tokenizer({.vocabulary = 270});
    tokenizer.add(text);
    io::write_file_atomically(folder_ + "/tokenizer.json", tokenizer.train()[0].bytes);
    const Words first{"--dump_folder", folder_ + "/first", "--checkpoint.enable",
                      "--checkpoint.no-last_save_model_only"};
    const Config other = parse_config(fields_with(first));
    run_ranks(
        1, [&](World&) { Trainer(other).run(); }, world_options(other));
    fs::copy(folder_ + "/first", folder_ + "/used", fs::copy_options::recursive);
  }
  // 400 tokens, little-endian 16 bits each, of which every tenth is 5.
  void write_npy() const {
    std::string header = "{'descr': '<u2', 'fortran_order': False, 'shape': (400,), }";
    header.resize(117, ' ');
    header += '\n';
    std::string bytes("\x93NUMPY\x01\x00v\x00", 10);
    bytes += header;
    for (int i = 0; i < 400; ++i) {
      bytes += static_cast<char>(i % 10 == 0 ? 5 : 10 + i % 37);
      bytes += '\0';
    }
    io::write_file_atomically(folder_ + "/tokens.npy", bytes);
  }

  [[nodiscard]] Words fields_with(const Words& more) const {
    Words words{"--dump_folder", folder_ + "/run", "--threads", "1"};
    const auto set = [&](std::string_view field, std::string_view value) {
      words.insert(words.end(), {concat("--", field), std::string(value)});
    };
    set("dataloader.path", folder_ + "/text.txt");
    set("model.dim", "16");
    set("model.n_layers", "2");
    set("model.n_heads", "4");
    set("model.vocab_size", "300");
    if (std::ranges::search(more, kGpt2).empty()) {
      set("model.n_kv_heads", "2");
      set("model.ffn_dim", "24");
      // Angles that turn within a row, and scaled ones among them.
      set("model.rope_theta", "20");
      set("model.rope_original_max_position_embeddings", "32");
    }
    set("training.steps", "4");
    set("training.local_batch_size", "2");
    set("training.seq_len", "16");
    set("optimizer.lr", "1e-2");
    set("lr_scheduler.warmup_steps", "1");
    set("sample.tokens", "2");
    set("metrics.measure_ceiling", "false");
    set("profiler.profile_freq", "4");
    set("profiler.profiler_warmup", "0");
    return test::joined(words, more);
  }

  [[nodiscard]] bool fits(const Words& more) const {
    try {
      (void)checked_config(fields_with(more));
      return true;
    } catch (const ConfigError&) {
      return false;
    }
  }

  // The first rows that a run of these fields reads; empty if it reads none.
  [[nodiscard]] std::string rows(const Words& more) const {
    const Session session;
    std::string seen;
    try {
      const Config config = parse_config(fields_with(more));
      DataLoader data(config.dataloader, batch_plan(config, {}), open_tokenizer(config));
      for (int64_t row = 0; row < 48;) {  // more than an epoch
        const Batch batch = data.next();
        const int64_t length = batch.tokens.size(1);
        for (int64_t i = 0; i < batch.tokens.numel(); ++i) {
          const auto at = [&](const Tensor& x, int64_t otherwise) {
            return x.defined() ? x.data<int64_t>()[i] : otherwise;
          };
          if (i % length == 0 && row++ == 48) return seen;
          seen += concat(at(batch.tokens, 0), ' ', at(batch.targets, 0), ' ',
                         at(batch.positions, i % length), ' ', at(batch.documents, 0), '\n');
        }
      }
    } catch (const Error&) {
      return "";
    }
    return seen;
  }

  // Everything that the run of these fields does.
  std::string behaviour(const Words& more) {
    for (const char* left : {"/run", "/elsewhere"}) fs::remove_all(folder_ + left);

    std::string seen;
    std::map<std::string, int64_t> ops;  // and collectives
    try {
      const Config config = parse_config(fields_with(more));
      const auto on_rank = [&](World& world) {
        const auto print = [&](const std::string& line) {
          Context& context = Context::current();
          if (!context.op_hook) {
            seen += concat(context.options.threads, " threads, deterministic ",
                           context.options.deterministic, '\n');
            context.op_hook = [&](const OpRow& row, const void*, Tensors, Tensors) {
              ++ops[std::string(row.name)];
            };
          }
          seen += line + '\n';
        };
        // On a terminal, whose bar shows times and is not looked at.
        std::ostringstream terminal;
        Screen screen(terminal, {.bar = true, .color = true});
        const CommTrace trace;
        Trainer trainer(config, print, &screen);
        trainer.run();
        trainer.print_samples();
        if (world.rank() != 0) return;
        world.session().context().op_hook = {};
        for (const CommEntry& sent : trace.entries()) ++ops[concat(sent.op, " over ", sent.axes)];
      };
      run_ranks(static_cast<int>(std::max<int64_t>(1, config.ranks)), on_rank,
                world_options(config));
    } catch (const Error& error) {
      seen += error.what();
    }
    for (const auto& [name, count] : ops) seen += concat(name, ' ', count, '\n');
    for (const char* place : {"/run", "/elsewhere"}) {
      std::error_code none;
      std::set<fs::path> files;
      for (const auto& file : fs::recursive_directory_iterator(folder_ + place, none))
        files.insert(file.path());
      for (const auto& file : files) {
        // The dump holds every field as it is, which would prove nothing.
        if (file.filename() == "config.json") continue;
        seen += file.string() + '\n';
        // Full of times; how many steps it holds does not depend on them.
        if (file.string().ends_with("_trace.json")) {
          const std::string trace = io::read_file(file.string());
          for (size_t i = 0; (i = trace.find("\"optimizer\"", i)) != trace.npos; ++i) seen += '+';
          continue;
        }
        if (fs::is_regular_file(file)) seen += io::read_file(file.string()) + '\n';
      }
    }
    return without_times(seen);
  }
};

TEST_F(FieldEffects, ARunRepeatsItself) {
  const std::string seen = behaviour({});
  EXPECT_NE(seen.find("training *"), seen.npos) << seen;
  EXPECT_EQ(behaviour({"--training.steps", "4"}), seen);
}

TEST_F(FieldEffects, EveryFieldChangesTheRun) {
  Config config = parse_config(fields_with({}));
  config::Fields fields = config.fields();
  const auto known = probes(folder_);
  std::map<Words, std::string> plain;  // runs without the field, by what stands beside it
  for (const config::Field& field : fields.all()) {
    if (shown_elsewhere().contains(field.path)) continue;
    const auto at = known.find(field.path);
    const Probe probe = at == known.end() ? Probe{} : at->second;
    if (!plain.contains(probe.beside)) plain[probe.beside] = behaviour(probe.beside);
    bool changed = false;
    for (const std::string& value : probe.values.empty() ? other_values(field) : probe.values) {
      if (changed) break;
      const Words words = test::joined(probe.beside, {concat("--", field.path, '=', value)});
      if (probe.values.empty() && !fits(words)) continue;  // a refusal shows no use
      changed = behaviour(words) != plain[probe.beside];
    }
    EXPECT_TRUE(changed) << "nothing reads --" << field.path
                         << ", or its effect shows only beside other fields: then list it here";
  }
  for (const auto& [path, probe] : known) EXPECT_TRUE(fields.find(path)) << path;
}

// A mark of the field tells a run that resumes that the order of its rows is another.
TEST_F(FieldEffects, FieldsThatDecideRowsAreMarked) {
  // What they name is compared by its content.
  const std::set<std::string> by_content{"dataloader.path", "hf_assets_path"};
  const auto known = probes(folder_);
  std::map<Words, std::string> plain;
  Config config = parse_config(fields_with({}));
  const config::Fields fields = config.fields();
  for (const config::Field& field : fields.all()) {
    if (by_content.contains(field.path)) continue;
    const auto at = known.find(field.path);
    const Probe probe = at == known.end() ? Probe{} : at->second;
    if (!plain.contains(probe.beside)) plain[probe.beside] = rows(probe.beside);
    ASSERT_NE(plain[probe.beside], "") << field.path;
    bool changed = false;
    for (const std::string& value : probe.values.empty() ? other_values(field) : probe.values) {
      const Words words = test::joined(probe.beside, {concat("--", field.path, '=', value)});
      const std::string seen = rows(words);
      // A refusal of rows is no other order.
      changed =
          changed || (seen != plain[probe.beside] && (seen != "" || field.limits.decides_rows));
    }
    EXPECT_EQ(changed, field.limits.decides_rows) << field.path;
  }
}

}  // namespace
}  // namespace tessera::train
