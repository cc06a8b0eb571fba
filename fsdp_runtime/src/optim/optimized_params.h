#pragma once

#include <ATen/core/Tensor.h>
#include <fsdp/fully_shard.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "fsdp_runtime/src/optim/unit_params.h"

namespace fsdp {

// What optimizers of the parameters under a root have in common. `optimizer`: its name, with which
// errors begin. Thread: the rank's.

/// Of the units that have parameters which it updates, in order.
using UnitList = std::vector<const UnitParams*>;

/// Where a parameter of the model is.
struct ParamPlace {
  const UnitParams* unit = nullptr;  // null: it is not optimized
  size_t index = 0;                  // in the unit's `params`
  size_t number() const { return unit->first + index; }
};
ParamPlace place_of(const UnitList& units, const ParamRef& param);

/// Where all of their shards are; the CPU if there are none. Errors: TORCH_CHECK if they are on
/// several devices.
c10::Device one_device(const std::string& optimizer, const UnitList& units);

/// Which parameters have a gradient, and where it is.
struct Participation {
  std::vector<uint8_t> takes_part;    // by number
  std::vector<at::Tensor> gradients;  // by unit's group; undefined if no parameter takes part
};
/// `numbers`: of parameters over all units, of which `units` may be some.
Participation participation_of(const UnitList& units, size_t numbers);
/// Whether it still is what participation_of() gives.
bool is_current(const Participation& participation, const UnitList& units);

/// Waits for the gradients; throws like Work::wait().
void settle_gradients(const UnitList& units);
/// An update of the shards of all units under `root`: from here to end_update() they can be
/// written.
void begin_update(const FSDPModule& root);
void end_update(const FSDPModule& root);
/// Of the optimizers' zero_grad().
void drop_gradients(const UnitList& units);

/// Errors: TORCH_CHECK if `is_torn`: a step has thrown in the middle.
void check_whole(const std::string& optimizer, bool is_torn);
/// `done`, by number, as counts of the parameters under `root`; 0 of those that are not optimized.
std::vector<int64_t> steps_by_param(const FSDPModule& root, const UnitList& units,
                                    const std::vector<int64_t>& done);
/// The other way around. Errors: TORCH_CHECK on a negative count and on another number of
/// parameters.
std::vector<int64_t> steps_by_number(const std::string& optimizer, const FSDPModule& root,
                                     const UnitList& units, const std::vector<int64_t>& steps);

}  // namespace fsdp
