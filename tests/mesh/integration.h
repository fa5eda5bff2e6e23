// SPDX-License-Identifier: Apache-2.0
// torchtitan's integration tests as data: whole runs of `tessera train` on a mesh, at tiny size.
//
// Of its features and of its tests of qwen3 and llama4, of the current version and of 0.2.2, all
// that we have are here, under their names, without +compile. Not here are:
// - 1d_compile, 1d_compile_sac_op, 2d_compile, 2d_asynctp_compile, 3d_compile, fsdp_symm_mem,
//   dist_gemm, float8_*: there is no compiler, and no such kernel on a CPU;
// - model_only_hf_checkpoint: train/run/initial_hf_test.cpp saves and loads them on meshes;
// - cpu_offload+*: no offload;
// - the chunked loss of 2d_eager: the loss is computed in chunks of tokens, without a flag;
// - optimizer_foreach: there is one implementation of AdamW, which is fused over all tensors;
// - override_fused_swiglu: the fused SwiGLU is the only one;
// - seed_checkpoint: a seed gives the same initial bits on every mesh, so there is none to make;
// - qwen3_fused_qkv_fsdp+tp+cp_compile_helion_rope: no compiler; qwen3_5_*: a model we do not have.
#pragma once

#include "tessera/tests/support/tiny_run.h"

namespace tessera::mesh_tests {

using train::joined, train::Words;

struct Item {
  const char* name;  ///< torchtitan's
  int ranks;
  std::vector<Words> runs;              ///< flags of runs in one dump folder, one after the other
  std::vector<std::string> files = {};  ///< that are then below it
  Words then = {};    ///< a command that follows, on the same ranks; the folder is appended
  size_t steps = 10;  ///< that metrics.jsonl holds in the end; 0: there is none
  const char* transport = nullptr;  ///< also under mpirun, with this TESSERA_TRANSPORT; "": default
  friend std::ostream& operator<<(std::ostream& os, const Item& item) { return os << item.name; }
};

std::vector<Item> items();

/// A name for gtest: torchtitan's with `_` for other signs.
std::string test_name(const Item& item);

/// Runs of a llama3 of some thousand parameters on a text, 10 steps unless flags say otherwise.
class IntegrationTest : public train::TinyRunTest {
 protected:
  /// The command lines of an item into a dump folder.
  [[nodiscard]] std::vector<Words> commands(const Item& item, const std::string& dump) const;
  /// Runs them on thread ranks.
  void run_on_threads(const Item& item, const std::string& dump);
  /// Step, loss and gradient norm of the steps of all runs, as metrics.jsonl holds them.
  [[nodiscard]] std::vector<std::string> figures(const std::string& dump) const;
  /// What an item leaves: its files, and its steps.
  void expect_results(const Item& item, const std::string& dump) const;
};

}  // namespace tessera::mesh_tests
