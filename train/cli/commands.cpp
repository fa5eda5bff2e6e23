// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/cli/commands.h"

#include "tessera/nn/io/utf8.h"

#include <array>
#include <filesystem>
#include <system_error>

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

void require_there(std::string_view field, const std::string& path) {
  if (std::error_code error; !std::filesystem::exists(path, error))
    fail<ConfigError>(field, io::excerpt(path), " does not exist");
}

}  // namespace tessera::train
