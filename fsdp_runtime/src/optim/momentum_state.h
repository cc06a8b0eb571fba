#pragma once

#include <ATen/core/Tensor.h>
#include <fsdp/fully_shard.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fsdp_runtime/src/optim/optimized_params.h"
#include "fsdp_runtime/src/optim/unit_params.h"
#include "fsdp_runtime/src/optim/update_counts.h"

namespace fsdp {

/// Of a unit's group of parameters: those that are optimized, and their momentum.
struct MomentumUnit : UnitParams {
  at::Tensor buffer;  // [state_numel]; undefined: none of them has one
};

/// What SGD and Muon have in common: parameters under a root, each with a momentum that is kept
/// beside its shard, and the frame of a step.
///
/// A step: is_left_out(); begin_update(), in which the shards can be written; end_update().
///
/// Thread: the rank's.
class MomentumState {
 public:
  /// `optimizer`: its name, with which errors begin. `groups`: names of parameters, by param group;
  /// none: all parameters, in one group. Errors: as AdamW::AdamW().
  MomentumState(std::string optimizer, FSDPModule root,
                std::vector<std::vector<std::string>> groups);

  MomentumState(const MomentumState&) = delete;
  MomentumState& operator=(const MomentumState&) = delete;

  const std::string& optimizer() const { return optimizer_; }
  const std::vector<MomentumUnit>& units() const { return units_; }
  size_t group_count() const { return groups_.size(); }
  /// Errors: TORCH_CHECK if there is none of that number.
  void check_group(size_t group) const;
  const std::vector<std::string>& params(size_t group) const;

  /// Gives those of the param group buffers, of zeros, if they have none.
  void make_buffers(size_t group);
  /// This rank's parts of the buffers there are, in sharded_parameters() order, of the param groups
  /// of which `has_buffer` is true.
  std::vector<LocalShard> buffers(const std::vector<bool>& has_buffer) const;

  /// Waits for the gradients. Whether the host sees, in a `found_inf` on the CPU, that nothing is
  /// to be updated. Errors: TORCH_CHECK on one of another kind than AdamW::step() takes; throws
  /// like Work::wait(), and after a step that has failed in the middle.
  bool is_left_out(const at::Tensor& found_inf) const;
  Participation participation() const { return participation_of(list_, params_); }
  /// Whether it still is what participation() gives.
  bool is_current(const Participation& participation) const {
    return fsdp::is_current(participation, list_);
  }
  void begin_update();
  /// Of those that take part. `kept`: see UpdateCounts::add().
  void end_update(const Participation& participation, const at::Tensor& kept);
  void zero_grad();

  /// By parameter that is optimized, over all units.
  std::vector<int64_t> updates_done() const;
  /// By parameter of the model.
  std::vector<int64_t> parameter_steps() const;
  /// Errors: TORCH_CHECK on a negative count and on another number of parameters.
  void set_parameter_steps(const std::vector<int64_t>& steps);

 private:
  std::string optimizer_;
  FSDPModule root_;
  std::vector<std::vector<std::string>> groups_;
  std::vector<MomentumUnit> units_;  // those with parameters that are optimized
  UnitList list_;                    // of units_
  size_t params_ = 0;                // that are
  std::optional<UpdateCounts> counts_;
  bool is_torn_ = false;  // a step has thrown in the middle
};

/// What a device gets of a `found_inf`; undefined: nothing, as on the CPU, where the host looks.
struct DeviceSkip {
  explicit DeviceSkip(const at::Tensor& found_inf);
  at::Tensor is_skipped;  // 0-dim, bool
  at::Tensor kept;        // 0-dim, float32: 1 less that
};

}  // namespace fsdp
