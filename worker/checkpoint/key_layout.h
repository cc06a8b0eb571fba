#pragma once

#include <string>
#include <vector>

#include "formats/checkpoint/dcp_metadata.h"

namespace fsdprun::checkpoint {

// Note [Keys of other programs]
// State has weights under "model." and what the optimizer keeps under "optim.". A Python program
// chooses both names itself ("optimizer.", "app.model.", none at all), and wrappers add parts of
// their own ("_orig_mod."). Below them the keys are PyTorch's and the same for all:
// "<parameter>", "state.<parameter>.exp_avg", "param_groups". So the two prefixes are looked for,
// with the parameters of the model that is loaded, and nothing else is translated.

/// What stands for State's prefixes in a checkpoint.
struct KeyLayout {
  std::string model = "model.";
  std::string optimizer = "optim.";

  /// The stored key for one of State.
  std::string Stored(const std::string& key) const;
};

/// Finds the prefixes under which `metadata` has `keys`, which are State's. Where a checkpoint has
/// none of them, State's own. Pure. Errors: MismatchError, starting with `path`, if there are two
/// prefixes with all keys and neither is State's.
KeyLayout FindKeyLayout(const DcpMetadata& metadata, const std::vector<std::string>& keys,
                        const std::string& path);

/// Stored keys of optimizer state that none of `keys` stands for: parameters that the model does
/// not have; nothing if `keys` has no optimizer state at all. Pure.
std::vector<std::string> FindUnknownParameters(const DcpMetadata& metadata,
                                               const std::vector<std::string>& keys,
                                               const KeyLayout& layout);

/// What to do about a checkpoint that lacks optimizer state that was asked for; empty: nothing is
/// known. Pure.
std::string AdviseOnOptimizer(const DcpMetadata& metadata, const KeyLayout& layout);

}  // namespace fsdprun::checkpoint
