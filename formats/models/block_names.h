#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace fsdprun {

/// The block of a model that a parameter or a module is in, by its name: the first part that is a
/// number, as in "model.layers.0.mlp.up_proj.weight". nullopt outside of all blocks. Pure.
std::optional<int64_t> BlockOf(std::string_view name);

}  // namespace fsdprun
