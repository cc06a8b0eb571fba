#pragma once

#include <ATen/core/Tensor.h>
#include <fsdp/optim.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "fsdp_runtime/src/optim/unit_params.h"

namespace fsdp {

/// Of a unit's group of parameters: those that are optimized, and their state.
struct AdamW::UnitState : UnitParams {
  at::Tensor exp_avg;
  at::Tensor exp_avg_sq;
};

/// Where a parameter's state is.
struct AdamW::Place {
  const UnitState* unit = nullptr;  // null: it is not optimized
  size_t index = 0;                 // in the unit's `params`
  size_t number() const { return unit->first + index; }
};

/// A count of updates.
at::Tensor zero_counter(c10::Device device);

}  // namespace fsdp
