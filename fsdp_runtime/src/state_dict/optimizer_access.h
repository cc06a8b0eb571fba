#pragma once

#include <ATen/core/Tensor.h>
#include <fsdp/state_dict.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fsdp_runtime/src/engine/module_walk.h"

namespace fsdp {

using OptionValues = std::map<std::string, OptionValue>;

/// What an optimizer keeps of one parameter.
struct ParamState {
  std::optional<int64_t> step;  // none if the optimizer does not count
  /// By Python's name: this rank's part, flat, views.
  std::vector<std::pair<std::string, at::Tensor>> tensors;
};

/// What will be kept of a parameter.
struct NewState {
  std::string fqn;
  /// As it is; nothing else is looked at.
  bool is_kept = false;
  /// false: as if the parameter had never been updated.
  bool is_there = false;
  std::optional<int64_t> step;
  std::vector<std::string> tensors;
};

/// An optimizer as a state dict sees it: parameters by name, options and states as Python has them.
///
/// To load: the checks; begin_load(), whose tensors are to be written; end_load(), with which all
/// takes effect.
///
/// Thread: the rank's. Local.
class OptimizerAccess {
 public:
  virtual ~OptimizerAccess() = default;
  virtual std::string type() const = 0;

  virtual std::vector<OptimizerParamGroup> groups() const = 0;
  /// Of a parameter in a group: false for one that it will never update.
  virtual bool can_have_state(const std::string& fqn) const = 0;
  /// None if the parameter has never been updated.
  virtual std::optional<ParamState> state_of(const std::string& fqn) const = 0;

  /// Of tensors that it may keep of a parameter.
  virtual std::vector<std::string> state_names() const = 0;
  virtual bool counts_steps() const = 0;
  /// Whether a step in `group` with `options` needs the tensor.
  virtual bool needs(const std::string& state_name, size_t group,
                     const OptionValues& options) const = 0;
  /// Why the group cannot have them; "" if it can. Those that are not given stay as they are, and
  /// those that it does not know are a problem if `strict`.
  virtual std::string option_problem(size_t group, const OptionValues& options,
                                     bool strict) const = 0;

  /// Why states of parameters cannot be kept as they are; "" if they can.
  virtual std::string problem_of_keeping() const = 0;

  /// Returns, for each of `states` and each of its tensors, where this rank's part is to be
  /// written: flat. `states`: of all parameters in the groups, in their order.
  virtual std::vector<std::vector<at::Tensor>> begin_load(const std::vector<NewState>& states) = 0;
  /// `options`: by group.
  virtual void end_load(const std::vector<NewState>& states,
                        const std::vector<OptionValues>& options) = 0;
};

/// `params`: those of the model, which must have all parameters of the optimizer. Errors:
/// TORCH_CHECK on an optimizer that is not known, and on one of another model.
std::unique_ptr<OptimizerAccess> access_to(AdamW& optimizer, const std::vector<ParamRef>& params);
std::unique_ptr<OptimizerAccess> access_to(SGD& optimizer, const std::vector<ParamRef>& params);
std::unique_ptr<OptimizerAccess> access_to(Muon& optimizer, const std::vector<ParamRef>& params);
std::unique_ptr<OptimizerAccess> access_to(torch::optim::Optimizer& optimizer,
                                           const std::vector<ParamRef>& params);

}  // namespace fsdp
