// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/cli/commands.h"

#include <array>

namespace tessera::train {

// Each is defined in the file of its command or group of commands.
Command train_command(), generate_command(), eval_command(), compare_command(), plot_command(),
    trace_command(), checkpoint_command(), import_hf_command(), export_hf_command(),
    export_gguf_command(), tokenize_command(), tokenizer_command(), data_command(),
    config_command(), recipes_command(), models_command(), schedule_command();

std::span<const Command> commands() {
  static const std::array all{train_command(),       generate_command(),  eval_command(),
                              compare_command(),     plot_command(),      trace_command(),
                              checkpoint_command(),  import_hf_command(), export_hf_command(),
                              export_gguf_command(), tokenize_command(),  tokenizer_command(),
                              data_command(),        config_command(),    recipes_command(),
                              models_command(),      schedule_command()};
  return all;
}

}  // namespace tessera::train
