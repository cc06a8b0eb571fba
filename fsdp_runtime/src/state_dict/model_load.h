#pragma once

#include <fsdp/state_dict.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "fsdp_runtime/src/state_dict/load_items.h"
#include "fsdp_runtime/src/state_dict/model_ranks.h"
#include "fsdp_runtime/src/state_dict/named_tensors.h"

namespace fsdp {

/// Of names, shapes and dtypes: equal on ranks that have the same model.
uint64_t digest_of(const std::vector<NamedTensor>& tensors);

/// The loading of a model: check on each rank, agreement of all, then the writing.
class ModelLoad {
 public:
  ModelLoad(std::vector<NamedTensor> tensors, const StateDictOptions& options)
      : tensors_(std::move(tensors)), options_(options) {}

  /// What `dict` gives to which tensor. Local. Returns what is wrong with it, or "".
  std::string plan(const ModelStateDict& dict);
  /// Takes over what the first rank has planned. Collective.
  void take_plan_of_first(const ModelRanks& ranks);
  /// Of keys that will be written: equal on all ranks that write the same tensors.
  uint64_t digest() const;
  /// Writes the tensors, with what the first rank has if that is asked for, then collectively. To
  /// be called after prepare_to_write().
  void write(const ModelRanks& ranks) const;
  const IncompatibleKeys& keys() const { return keys_; }

 private:
  LoadItem item_for(const NamedTensor& named, const StateValue* source) const;

  const std::vector<NamedTensor> tensors_;
  const StateDictOptions options_;
  std::vector<LoadItem> items_;  // each tensor of the model once, if it is in the dict
  IncompatibleKeys keys_;
};

}  // namespace fsdp
