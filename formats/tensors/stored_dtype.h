#pragma once

#include <string>
#include <vector>

#include "formats/tensors/tensor_source.h"

namespace fsdprun {

/// Whether each weight in `source` is stored in `dtype` (torch's name), but for those whose names
/// end with one of `ignored_suffixes`. Reads no tensor.
bool AreWeightsStoredIn(const TensorSource& source, const std::string& dtype,
                        const std::vector<std::string>& ignored_suffixes);

}  // namespace fsdprun
