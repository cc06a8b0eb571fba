#pragma once

#include <fsdp/state_dict.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "fsdp_runtime/src/state_dict/model_ranks.h"
#include "fsdp_runtime/src/state_dict/optimizer_access.h"

namespace fsdp {

/// What an optimizer keeps, read on each rank, and made into a dict.
class OptimizerRead {
 public:
  /// Local. Errors: TORCH_CHECK, as the optimizer's.
  OptimizerRead(const OptimizerAccess& optimizer, const std::vector<ParamRef>& params);

  /// Equal on ranks that keep the same.
  uint64_t digest() const;
  /// Of this rank's parts: views, or with cpu_offload copies. Local.
  OptimizerStateDict shards(bool cpu_offload) const;
  /// Of whole tensors, as gather_whole(), for each group and name of a state. Collective. `keeps`:
  /// false: returns an empty dict.
  OptimizerStateDict whole(const ModelRanks& ranks, bool cpu_offload, bool keeps) const;

 private:
  struct Entry {
    ParamRef param;
    ParamState state;
  };
  /// Tensors that are gathered together.
  struct Gather {
    ParamGroup* group = nullptr;
    std::string name;
    std::vector<at::Tensor> parts;                   // by parameter of the group
    std::vector<std::pair<size_t, size_t>> targets;  // entry and its tensor, for each that is there
  };
  std::vector<Gather> gathers() const;
  /// `values`: by entry, by tensor.
  OptimizerStateDict dict_of(std::vector<std::vector<StateValue>> values) const;

  std::vector<OptimizerParamGroup> groups_;
  std::vector<Entry> entries_;  // of parameters that have a state
};

}  // namespace fsdp
