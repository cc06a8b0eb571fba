#pragma once

#include <fsdp/state_dict.h>

#include <string>
#include <vector>

#include "fsdp_runtime/src/state_dict/model_ranks.h"

namespace fsdp {

/// One tensor to be loaded.
struct LoadItem {
  std::string key;  // for messages
  at::ScalarType dtype = at::kFloat;
  /// What is written. A shard may get its memory after the check.
  StateValue target;
  /// Null where another rank has it.
  const StateValue* source = nullptr;
};

/// Why `item.source` cannot be loaded, with both shapes or dtypes; "" if it can. The target's
/// memory is not looked at.
std::string mismatch_of(const LoadItem& item);

/// Writes each target. Local.
void load_own(const std::vector<LoadItem>& items);

/// Writes each target with the source of the first rank, which has whole ones. Collective: the same
/// items on all ranks. Memory: 64 MiB, or one row of a tensor.
void load_from_first(const std::vector<LoadItem>& items, const ModelRanks& ranks);

}  // namespace fsdp
