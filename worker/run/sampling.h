#pragma once

#include <functional>
#include <string_view>

#include "worker/config/command_line.h"

namespace fsdprun::worker {

/// Writes the prompt and what the generated tokens stand for through `write`, piece by piece, using
/// the weights of a checkpoint: `line.sample`. Model, data.seq_len and precision are those of the
/// configuration that is given, or else those that the checkpoint says; the tokenizer is
/// SampleTokenizer's. A token that ends documents ends the text. The model is sharded over the
/// job's ranks (without a launcher: one). Collective; every rank samples the same tokens. The
/// context is the last data.seq_len tokens. Errors: ConfigError, also for a checkpoint that does
/// not say which model it is of, if none is given; CheckpointError.
void Sample(const CommandLine& line, const std::function<void(std::string_view)>& write);

}  // namespace fsdprun::worker
