#pragma once

#include <ATen/core/Tensor.h>
#include <fsdp/optim.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "fsdp_runtime/src/optim/optimized_params.h"
#include "fsdp_runtime/src/optim/unit_params.h"

namespace fsdp {

/// Of a unit's group of parameters: those that are optimized, and their state.
struct AdamW::UnitState : UnitParams {
  at::Tensor exp_avg;
  at::Tensor exp_avg_sq;
};

/// `units`: of AdamW::UnitState.
template <class State>
UnitList list_of(const std::vector<std::shared_ptr<State>>& units) {
  UnitList list;
  for (const std::shared_ptr<State>& unit : units) {
    list.push_back(unit.get());
  }
  return list;
}

/// A count of updates.
at::Tensor zero_counter(c10::Device device);

}  // namespace fsdp
