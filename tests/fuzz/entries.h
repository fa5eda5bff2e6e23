// SPDX-License-Identifier: Apache-2.0
// Entry points for untrusted input: a configuration (a JSON file and a command line), a checkpoint
// (a manifest or a safetensors file), a tokenizer with a text, lines of a fine-tuning set with a
// chat template, the description of a model of Hugging Face, and token data. Fuzzers and tests call
// these; a tessera Error is a valid result, any other exception is a fault.
#pragma once

#include <string_view>

namespace tessera::fuzz {

/// A JSON file (where the input begins with '{'), a NUL (the last one), and command-line words, a
/// line each; or one of both. Whether one was accepted. std::logic_error: it does not come back
/// from its own dump.
bool config_input(std::string_view bytes);

/// A manifest (where the input begins with '{'), as it is and under a checksum that fits, or else a
/// safetensors file, of which all tensors are read. Otherwise as config_input.
bool checkpoint_input(std::string_view bytes);

/// A tokenizer.json, a NUL (the last one) and a text, which is tokenised: whole and in pieces. As
/// config_input; std::logic_error: ids beyond the vocabulary, or other ids of the pieces.
bool tokenizer_input(std::string_view bytes);

/// A chat template, a NUL (the last one; without it the template is `plain`) and lines of a
/// fine-tuning set: one that names "messages" is read as a conversation, any other as a prompt with
/// its completion. As config_input; std::logic_error: a message became a mark.
bool chat_input(std::string_view bytes);

/// A config.json, a NUL (the last one) and a model.safetensors.index.json beside which
/// `a.safetensors` holds the tensors `a` and `b`; or a config.json alone. As config_input; what is
/// read of a config.json must come back from the one that an export writes.
bool hugging_face_input(std::string_view bytes);

/// The index of prepared data (where the input begins with '{'), an .npy file, of which all
/// elements are read, or else the header of an llm.c shard. As config_input.
bool data_input(std::string_view bytes);

}  // namespace tessera::fuzz
