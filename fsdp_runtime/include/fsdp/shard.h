#pragma once

/// @file
/// Where a rank's part of a tensor lies in the whole. Without LibTorch.

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

namespace fsdp {

/// @addtogroup shard
/// @{

/// An axis-aligned piece of a tensor: element (i0, i1, ...) belongs to it when offsets[d] <= i_d <
/// offsets[d] + sizes[d]. A 0-dim tensor has one box without offsets and sizes.
struct Box {
  std::vector<int64_t> offsets;  ///< Of the first element, by dimension.
  std::vector<int64_t> sizes;    ///< By dimension.
  /// Member by member.
  bool operator==(const Box&) const = default;
  /// By offsets, then by sizes.
  // NOLINTNEXTLINE(modernize-use-nullptr): clang-tidy 14 takes the 0 that it compares with for one
  auto operator<=>(const Box&) const = default;
};

/// What one rank holds of one tensor that is spread over a mesh, however it is divided: in flat
/// ranges, by rows, by columns or along several axes of the mesh.
struct Shard {
  std::string fqn;                    ///< Name of the tensor below the root: "layers.0.weight".
  std::vector<int64_t> global_shape;  ///< Of the whole tensor.
  /// Disjoint, and the elements of the first come first in the shard's data, each box in row-major
  /// order. None if the rank holds nothing of the tensor.
  std::vector<Box> boxes;
  /// The axes of the mesh along which the tensor is divided. Ranks that differ only in their place
  /// along other axes hold copies; if there are none, every rank holds the whole tensor.
  /// Nothing in this library reads it but its tests: it is for whoever puts shards of several ranks
  /// together.
  std::vector<std::string> mesh_axes;
  /// Member by member.
  bool operator==(const Shard&) const = default;
};

/// @}

}  // namespace fsdp
