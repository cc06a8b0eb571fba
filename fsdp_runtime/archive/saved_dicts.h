#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "fsdp_runtime/archive/saved_tensor.h"

namespace fsdp::archive {

/// {name: tensor}, in the order of the file.
using SavedModel = std::vector<std::pair<std::string, SavedTensor>>;

/// None, a plain value, a tuple or list of numbers, or a tensor.
using SavedOption = std::variant<std::monostate, bool, int64_t, double, std::string,
                                 std::vector<double>, SavedTensor>;

/// An entry of "param_groups".
struct SavedGroup {
  std::vector<std::string> params;
  std::map<std::string, SavedOption> options;
  bool operator==(const SavedGroup&) const = default;
};

/// What an optimizer keeps of a parameter by name: None, a number, or a tensor.
using SavedState = std::variant<std::monostate, double, SavedTensor>;

/// {"state": {parameter: {name: value}}, "param_groups": [...]}.
struct SavedOptimizer {
  std::vector<std::pair<std::string, std::vector<std::pair<std::string, SavedState>>>> state;
  std::vector<SavedGroup> groups;
  bool operator==(const SavedOptimizer&) const = default;
};

// Of the pickle of an archive: what torch.save(model.state_dict()) has written, or
// torch.save(get_optimizer_state_dict(...)). Time and memory: linear in its size. Errors: Error,
// starting with `what`, with the key where there is one, on anything else.
SavedModel read_saved_model(std::string_view pickle, const std::string& what);
SavedOptimizer read_saved_optimizer(std::string_view pickle, const std::string& what);

}  // namespace fsdp::archive
