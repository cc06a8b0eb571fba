#pragma once

#include <map>
#include <string>

#include "formats/tensors/tensor_source.h"

namespace fsdprun::ckpt {

/// The weights of a checkpoint by their name in the model: the keys under "model." without that;
/// where there are none, as in torchtitan's layout, all keys that are not under "optim.",
/// "optimizer.", "train.", "train_state.", "lr_scheduler." or "dataloader.".
inline std::map<std::string, std::string> WeightsOf(const TensorSource& source) {
  constexpr const char* kOthers[] = {"optim.",       "optimizer.",    "train.",
                                     "train_state.", "lr_scheduler.", "dataloader."};
  constexpr size_t kPrefixBytes = 6;
  std::map<std::string, std::string> under_model;
  std::map<std::string, std::string> others;
  for (const auto& [key, facts] : source.tensors()) {
    bool is_weight = true;
    for (const char* prefix : kOthers) {
      is_weight = is_weight && !key.starts_with(prefix);
    }
    if (key.starts_with("model.")) {
      under_model[key.substr(kPrefixBytes)] = key;
    } else if (is_weight) {
      others[key] = key;
    }
  }
  return under_model.empty() ? others : under_model;
}

}  // namespace fsdprun::ckpt
