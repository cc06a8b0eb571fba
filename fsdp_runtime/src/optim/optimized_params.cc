#include "fsdp_runtime/src/optim/optimized_params.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "fsdp_runtime/src/engine/module_state.h"
#include "fsdp_runtime/src/engine/module_walk.h"

namespace fsdp {

ParamPlace place_of(const UnitList& units, const ParamRef& param) {
  const auto unit = std::find_if(units.begin(), units.end(), [&param](const UnitParams* one) {
    return one->group.get() == param.group;
  });
  if (unit == units.end()) {
    return {};
  }
  const std::vector<size_t>& indices = (*unit)->indices;
  const auto found = std::find(indices.begin(), indices.end(), param.index);
  return found == indices.end() ? ParamPlace{}
                                : ParamPlace{*unit, static_cast<size_t>(found - indices.begin())};
}

c10::Device one_device(const std::string& optimizer, const UnitList& units) {
  if (units.empty()) {
    return c10::kCPU;
  }
  const ShardStore& first = units.front()->group->store();
  const c10::Device device = first.shard().device();
  for (const UnitParams* unit : units) {
    const ShardStore& store = unit->group->store();
    TORCH_CHECK(store.shard().device() == device, optimizer, ": the shard of ", first.fqn(0),
                " is on ", device, ", that of ", store.fqn(0), " on ", store.shard().device(),
                "; give all units one offload_policy, or make an optimizer for each");
  }
  return device;
}

Participation participation_of(const UnitList& units, size_t numbers) {
  Participation participation;
  participation.takes_part.resize(numbers, 0);
  for (const UnitParams* unit : units) {
    participation.gradients.push_back(unit->group->gradient());
    for (size_t p = 0; p < unit->params.size(); ++p) {
      participation.takes_part[unit->first + p] =
          unit->group->has_gradient(unit->indices[p]) ? 1 : 0;
    }
  }
  return participation;
}

bool is_current(const Participation& participation, const UnitList& units) {
  if (participation.gradients.size() != units.size()) {
    return false;
  }
  for (size_t u = 0; u < units.size(); ++u) {
    const UnitParams& unit = *units[u];
    if (!participation.gradients[u].is_same(unit.group->gradient())) {
      return false;
    }
    for (size_t p = 0; p < unit.params.size(); ++p) {
      if ((participation.takes_part[unit.first + p] != 0) !=
          unit.group->has_gradient(unit.indices[p])) {
        return false;
      }
    }
  }
  return true;
}

void settle_gradients(const UnitList& units) {
  for (const UnitParams* unit : units) {
    unit->group->settle_gradient();
  }
}

void begin_update(const FSDPModule& root) {
  const std::vector<FSDPModule> units = root.units();
  for (const FSDPModule& unit : units) {
    unit.state()->reshard();  // what is gathered would be stale
  }
  for (const FSDPModule& unit : units) {
    unit.state()->begin_update();
  }
}

void end_update(const FSDPModule& root) {
  for (const FSDPModule& unit : root.units()) {
    unit.state()->end_update();
  }
}

void drop_gradients(const UnitList& units) {
  for (const UnitParams* unit : units) {
    unit->group->settle_backward();
  }
  for (const UnitParams* unit : units) {
    unit->drop_gradients();
  }
}

void check_whole(const std::string& optimizer, bool is_torn) {
  TORCH_CHECK(!is_torn, optimizer,
              ": a step has failed in the middle, so only some of the parameters have done it; "
              "load parameters and state, from a checkpoint for one, and set their step counts");
}

std::vector<int64_t> steps_by_param(const FSDPModule& root, const UnitList& units,
                                    const std::vector<int64_t>& done) {
  std::vector<int64_t> steps;
  for (const ParamRef& param : params_below(*root.state())) {
    const ParamPlace place = place_of(units, param);
    steps.push_back(place.unit != nullptr ? done[place.number()] : 0);
  }
  return steps;
}

std::vector<int64_t> steps_by_number(const std::string& optimizer, const FSDPModule& root,
                                     const UnitList& units, const std::vector<int64_t>& steps) {
  const std::vector<ParamRef> params = params_below(*root.state());
  TORCH_CHECK(steps.size() == params.size(), optimizer, ": step counts of ", steps.size(),
              " parameters given, there are ", params.size());
  std::vector<int64_t> by_number(
      units.empty() ? 0 : units.back()->first + units.back()->params.size(), 0);
  for (size_t i = 0; i < params.size(); ++i) {
    if (const ParamPlace place = place_of(units, params[i]); place.unit != nullptr) {
      TORCH_CHECK(steps[i] >= 0, optimizer, ": ", params[i].fqn, " cannot have done ", steps[i],
                  " steps");
      by_number[place.number()] = steps[i];
    }
  }
  return by_number;
}

}  // namespace fsdp
