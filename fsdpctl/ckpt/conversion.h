#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "formats/tensors/tensor_source.h"
#include "formats/tensors/write_checkpoint.h"

namespace fsdprun::ckpt {

// What the keys of fsdp-train's checkpoints begin with.
inline constexpr std::string_view kModelPrefix = "model.";
inline constexpr std::string_view kOptimizerPrefix = "optim.";
inline constexpr std::string_view kStatePrefix = "optim.state.";

/// A checkpoint that is written.
struct ConvertedFolder {
  std::string name;  // of its folder in the output; empty: it is the output
  CheckpointToWrite checkpoint;
};

/// What becomes of a checkpoint.
struct Conversion {
  /// The last one is read, and may read those before it.
  std::vector<std::unique_ptr<TensorSource>> sources;
  std::vector<ConvertedFolder> folders;
  std::string note;  // for the user: what was left out; empty: nothing

  TensorSource& source() const { return *sources.back(); }
};

/// Step, tokens and run of the source, where fsdp-train has written it.
void TakeStep(const TensorSource& source, CheckpointToWrite& output);

}  // namespace fsdprun::ckpt
