#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "worker/estimate/estimated_weights.h"

namespace fsdprun::worker {

/// What of a block, or of what is outside of the blocks, is trained.
struct TrainedPart {
  /// Names behind the block's number, "self_attn.q_proj.weight"; outside of the blocks whole ones.
  std::set<std::string, std::less<>> names;
  /// Elements, of adapters as well, and the ranks of these together.
  int64_t numel = 0;
  int64_t adapter_ranks = 0;

  bool Has(std::string_view name) const { return names.contains(name); }
  /// Whether one of them begins with one of these.
  bool HasAnyOf(std::initializer_list<std::string_view> beginnings) const;
  /// Whether backward needs the input of one of these linear layers, for the gradient of its weight
  /// or of its adapter.
  bool NeedsInputOf(std::initializer_list<std::string_view> layers) const;
};

struct TrainedParts {
  /// By block; a block that has no entry is frozen.
  std::map<int64_t, TrainedPart> blocks;
  TrainedPart others;

  /// An empty one for a block that is frozen.
  const TrainedPart& Block(int64_t number) const;
};

/// Pure.
TrainedParts TrainedPartsOf(const std::vector<EstimatedWeight>& weights);

}  // namespace fsdprun::worker
