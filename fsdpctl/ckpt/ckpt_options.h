#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/cli/launch_plan.h"
#include "launcher/cli/option_table.h"

namespace fsdprun::ckpt {

enum class ExportFormat { kHuggingFace, kTorchFile, kAdapter };

/// What the command line of fsdpctl ckpt says.
struct CkptOptions {
  Request request = Request::kRun;
  /// PATH, A and B, or input and output, as the command takes them.
  std::vector<std::string> operands;
  bool is_json = false;
  bool force = false;
  ExportFormat format = ExportFormat::kHuggingFace;
  std::string dtype;                         // torch.<dtype>; empty: as stored
  int64_t shard_bytes_max = 50'000'000'000;  // transformers 5's
  std::string tokenizer_dir;                 // empty: beside the model's configuration
  std::string config_file;                   // empty: what the checkpoint says
  std::string base;                          // of adapters; empty: what the checkpoint says
  std::string map_file;                      // of convert: a file, or the name of a layout
};

/// Pure. Errors: INVALID_ARGUMENT for the usage, OUT_OF_RANGE for a value that means nothing.
absl::StatusOr<CkptOptions> ReadCkptOptions(CliProgram program,
                                            const std::vector<std::string>& args);

}  // namespace fsdprun::ckpt
