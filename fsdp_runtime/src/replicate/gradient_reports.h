#pragma once

#include <fsdp/collectives.h>

#include <cstdint>
#include <string>
#include <vector>

#include "fsdp_runtime/src/engine/shard_store.h"

namespace fsdp {

/// What ranks tell each other at the end of a backward: one flag for each parameter. They compare a
/// digest, and exchange the flags only if it differs. Every rank makes one, in the same order
/// relative to its collectives.
class FlagExchange {
 public:
  /// Asks the others. `flags` must outlive this.
  FlagExchange(Collectives& comm, const std::vector<uint8_t>& flags);
  /// By parameter, 1 if some rank has 1. Blocks the host; throws like Work::wait().
  std::vector<uint8_t> any();
  /// By rank, the flags of all. Collective; any() has been called.
  std::vector<std::vector<uint8_t>> by_rank();

 private:
  Collectives& comm_;
  const std::vector<uint8_t>& flags_;
  AgreementPtr agreement_;  // null if there is nobody to ask
};

/// The error of a backward in which parameters got no gradient: `missing` by rank.
std::string missing_gradients_text(const std::vector<std::vector<uint8_t>>& missing,
                                   const std::vector<int64_t>& world_ranks,
                                   const std::vector<NamedParameter>& params, bool is_static);

}  // namespace fsdp
