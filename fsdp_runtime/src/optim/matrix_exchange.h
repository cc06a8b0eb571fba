#pragma once

#include <ATen/core/Tensor.h>
#include <fsdp/work.h>

#include <cstddef>
#include <functional>
#include <vector>

#include "fsdp_runtime/src/optim/unit_params.h"

namespace fsdp {

/// Those of a unit's matrices that are exchanged, and who works on each.
struct ExchangedUnit {
  const UnitParams* unit = nullptr;
  std::vector<size_t> indices;  // in the unit's `params`
  std::vector<int64_t> owners;  // of these: a rank of the unit's group
};

/// Brings matrices that are divided over ranks to one rank each, and back.
///
/// `write_own(unit, shard)` writes this rank's part of the unit to `shard`, flat, bfloat16, in the
/// layout of the unit's shard and on its device. `work_on(unit, index, matrix)` is called on the
/// owner of a matrix, for unit number `unit` and its index number `index`, may use its memory, and
/// returns one of the same shape in bfloat16. Returns what is this rank's of these, by unit, laid
/// out as `shard`. In bfloat16, one all-gather for each unit, and, when all matrices have been
/// worked on, one reduce-scatter. Two units are in flight at a time. Collective over the units'
/// groups; throws like Work::wait().
std::vector<at::Tensor> exchange_matrices(
    const std::vector<ExchangedUnit>& units,
    const std::function<void(size_t unit, const at::Tensor& shard)>& write_own,
    const std::function<at::Tensor(size_t unit, size_t index, at::Tensor matrix)>& work_on);

}  // namespace fsdp
