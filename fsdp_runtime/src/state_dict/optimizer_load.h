#pragma once

#include <fsdp/state_dict.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "fsdp_runtime/src/state_dict/load_items.h"
#include "fsdp_runtime/src/state_dict/model_ranks.h"
#include "fsdp_runtime/src/state_dict/optimizer_access.h"

namespace fsdp {

/// Of the optimizer's type and groups.
uint64_t digest_of(const OptimizerAccess& optimizer);

/// The loading of an optimizer: check on each rank, agreement of all, then the writing.
class OptimizerLoad {
 public:
  /// Both must outlive this.
  OptimizerLoad(OptimizerAccess& optimizer, const std::vector<ParamRef>& params,
                const StateDictOptions& options);

  /// What `dict`, which must outlive this, gives to which parameter. Local. Returns what is wrong
  /// with it, or "".
  std::string plan(const OptimizerStateDict& dict);
  /// Takes over what the first rank has planned. Collective.
  void take_plan_of_first(const ModelRanks& ranks);
  uint64_t digest() const;
  /// Why the states that the plan keeps cannot be kept on this rank, or "". Local.
  std::string problem_of_kept() const;
  /// Writes states, with what the first rank has if that is asked for, then collectively, and
  /// options.
  void write(const ModelRanks& ranks);

 private:
  using Entries = torch::OrderedDict<std::string, StateValue>;

  void plan_group(size_t number, const OptimizerStateDict& dict);
  /// The group of the dict that has the parameters of group `number`; null if none has any.
  const OptimizerParamGroup* group_of_dict(size_t number);
  void plan_state(size_t group, const std::string& fqn, const Entries& entries);
  void plan_tensor(NewState& state, const std::string& name, const StateValue& value);
  void plan_step(NewState& state, const StateValue& value);
  void check_unexpected(const OptimizerStateDict& dict);
  LoadItem item_for(const std::string& fqn, const std::string& name,
                    const StateValue* source) const;

  OptimizerAccess& optimizer_;
  const StateDictOptions options_;
  const std::vector<OptimizerParamGroup> groups_;
  std::map<std::string, ParamRef> params_;
  std::map<std::string, const OptimizerParamGroup*> group_with_;  // of the dict, by parameter
  std::vector<std::string> problems_;
  std::vector<std::string> missing_;  // in no group of the dict
  // Of the plan: states of all parameters in the groups, and options by group.
  std::vector<NewState> states_;
  std::vector<OptionValues> new_options_;
  std::vector<const StateValue*> sources_;  // of all tensors of states_
};

}  // namespace fsdp
