#pragma once

/// @file
/// Which unit has how much memory.

#include <fsdp/export.h>
#include <fsdp/fully_shard.h>

#include <cstdint>
#include <string>
#include <vector>

namespace fsdp {

/// @addtogroup observe
/// @{

/// What libfsdp holds for one unit on this rank, now, wherever an offload policy keeps it. Bytes.
/// Optimizer states, activations and buffers are not its.
struct FSDP_API UnitMemory {
  std::string unit = {};  ///< Below the root: "layers.0"; "" of the root itself.
  int64_t whole = 0;      ///< All of its parameters, in their own dtypes: for comparison.
  int64_t shard = 0;      ///< This rank's part, with padding, and its copy in another dtype for
                          ///< peers that read it in place.
  int64_t gathered = 0;   ///< The gathered parameters, where they are a copy of their own.
  int64_t unreduced = 0;  ///< Gradients that wait for their reduction.
  int64_t gradient = 0;   ///< This rank's part of the gradients.
  /// All that is held; `whole` is not.
  int64_t total() const { return shard + gathered + unreduced + gradient; }
};

/// That of `root` and of all units under it, in registration order. Local, does not block. Errors:
/// TORCH_CHECK on an empty handle, or if the module is gone.
FSDP_API std::vector<UnitMemory> memory_by_unit(const FSDPModule& root);

/// As a table with a line for each unit and one for the sum, in MiB.
FSDP_API std::string memory_table(const std::vector<UnitMemory>& units);

/// Decides for each unit under `root` whether it stays gathered from forward to backward
/// (`reshard_after_forward`), so that the gathered parameters of all units, with the next one
/// prefetched, take at most `budget` bytes, and as few units as possible are gathered twice. The
/// root is one of them; as every unit with others in it, it is gathered while these run. Units are
/// taken to run in registration order. Where a gather takes no memory, as between ranks that share
/// theirs, all units are kept. What parameters are copied out of when their unit begins to run
/// (FullyShardOptions::shard_placement_fn) is counted with them.
///
/// Returns the names of those that are kept. Takes effect at the next forward. Local; the same on
/// all ranks of a mesh. Errors: TORCH_CHECK on an empty handle, if the module is gone, and on a
/// budget that does not have room for a unit, the next one and those around them, with what that
/// would be.
FSDP_API std::vector<std::string> reshard_within(const FSDPModule& root, int64_t budget);

/// @}

}  // namespace fsdp
