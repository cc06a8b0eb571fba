#include "fsdp_runtime/src/state_dict/optimizer_read.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>

#include "fsdp_runtime/src/engine/param_group.h"
#include "fsdp_runtime/src/state_dict/texts.h"
#include "fsdp_runtime/src/state_dict/whole_tensors.h"

namespace fsdp {

OptimizerRead::OptimizerRead(const OptimizerAccess& optimizer, const std::vector<ParamRef>& params)
    : groups_(optimizer.groups()) {
  std::map<std::string, ParamRef> by_name;
  for (const ParamRef& param : params) {
    by_name.emplace(param.fqn, param);
  }
  for (const OptimizerParamGroup& group : groups_) {
    for (const std::string& fqn : group.params) {
      if (std::optional<ParamState> state = optimizer.state_of(fqn)) {
        entries_.push_back({by_name.at(fqn), std::move(*state)});
      }
    }
  }
}

uint64_t OptimizerRead::digest() const {
  TextDigest digest;
  for (const Entry& entry : entries_) {
    digest.mix(entry.param.fqn);
    digest.mix(entry.state.step.value_or(-1));
    for (const auto& [name, tensor] : entry.state.tensors) {
      digest.mix(name);
      digest.mix(tensor.scalar_type());
    }
  }
  return digest.value();
}

OptimizerStateDict OptimizerRead::dict_of(std::vector<std::vector<StateValue>> values) const {
  OptimizerStateDict dict;
  dict.param_groups = groups_;
  for (size_t e = 0; e < entries_.size(); ++e) {
    torch::OrderedDict<std::string, StateValue> states("State");
    if (entries_[e].state.step) {
      states.insert("step", at::full({}, static_cast<double>(*entries_[e].state.step), at::kFloat));
    }
    for (size_t t = 0; t < values[e].size(); ++t) {
      states.insert(entries_[e].state.tensors[t].first, std::move(values[e][t]));
    }
    dict.state.insert(entries_[e].param.fqn, std::move(states));
  }
  return dict;
}

OptimizerStateDict OptimizerRead::shards(bool cpu_offload) const {
  std::vector<std::vector<StateValue>> values;
  for (const Entry& entry : entries_) {
    std::vector<StateValue>& states = values.emplace_back();
    for (const auto& [name, tensor] : entry.state.tensors) {
      LocalShard part = part_of(entry.param, at::Tensor());
      part.local = cpu_offload ? copy_of(tensor, /*to_cpu=*/true) : tensor.detach();
      states.emplace_back(std::move(part));
    }
  }
  return dict_of(std::move(values));
}

std::vector<OptimizerRead::Gather> OptimizerRead::gathers() const {
  std::vector<Gather> all;
  std::map<std::pair<ParamGroup*, std::string>, size_t> number_of;  // looked up only
  for (size_t e = 0; e < entries_.size(); ++e) {
    const ParamRef& param = entries_[e].param;
    for (size_t t = 0; t < entries_[e].state.tensors.size(); ++t) {
      const auto& [name, tensor] = entries_[e].state.tensors[t];
      const auto [found, is_new] = number_of.try_emplace({param.group, name}, all.size());
      if (is_new) {
        all.push_back({param.group, name, std::vector<at::Tensor>(param.group->size()), {}});
      }
      Gather& gather = all[found->second];
      gather.parts[param.index] = tensor;
      gather.targets.emplace_back(e, t);
    }
  }
  return all;
}

OptimizerStateDict OptimizerRead::whole(const ModelRanks& ranks, bool cpu_offload,
                                        bool keeps) const {
  std::vector<std::vector<StateValue>> values(entries_.size());
  for (size_t e = 0; e < entries_.size(); ++e) {
    values[e].resize(entries_[e].state.tensors.size());
  }
  for (const Gather& gather : gathers()) {
    const at::ScalarType dtype =
        gather.parts[entries_[gather.targets.front().first].param.index].scalar_type();
    std::vector<at::Tensor> whole(gather.group->size());
    for (const auto& [e, t] : gather.targets) {
      const size_t index = entries_[e].param.index;
      if (keeps) {
        whole[index] = empty_whole(*gather.group, index, dtype, cpu_offload);
        values[e][t] = whole[index].view(gather.group->store().shape(index));
      }
    }
    gather_whole(*gather.group, gather.parts, whole, dtype, ranks.purpose());
  }
  return keeps ? dict_of(std::move(values)) : OptimizerStateDict();
}

}  // namespace fsdp
