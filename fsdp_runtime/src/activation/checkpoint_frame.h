#pragma once

#include <ATen/core/Tensor.h>
#include <fsdp/activation_checkpoint.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "fsdp_runtime/src/activation/operator_results.h"
#include "fsdp_runtime/src/activation/replay_state.h"
#include "fsdp_runtime/src/activation/saved_tensor_hooks.h"

namespace fsdp::detail {

/// One run of a checkpointed segment: in place of each tensor that autograd would save there is
/// only its number, in the order of saving. The first of them that backward asks for has the
/// segment run again, with a graph that nobody uses, and what is saved in that run is what the
/// numbers stand for. It ends as soon as the last of them is there.
///
/// Owned by the places of saved tensors. Thread: that of the first run; then any, such as
/// autograd's, which has one for each device.
class CheckpointFrame : public std::enable_shared_from_this<CheckpointFrame> {
 public:
  CheckpointFrame(const CheckpointOptions& options, const std::vector<at::Tensor>& inputs,
                  CheckpointScope::Replay replay);

  /// For a tensor that is saved in the first run.
  SavedTensorScope::Hooks next_place();
  /// Null: no operator's results are kept.
  OperatorResults* results() { return results_ ? &*results_ : nullptr; }

 private:
  class Place;
  class Refill;

  /// What place `index` stands for; runs the segment again if it is not there.
  at::Tensor take(size_t index);
  void run_again();
  void run_replay();
  /// For a tensor that is saved in the other run.
  void refill(const at::Tensor& tensor);
  void check_same(size_t index, const at::Tensor& tensor) const;
  std::vector<at::Tensor> fresh_inputs();

  /// What is compared between the runs.
  struct Description {
    std::vector<int64_t> sizes = {};
    at::ScalarType dtype = at::kFloat;
    c10::Device device = c10::kCPU;
  };

  const bool stops_early_;
  const bool checks_;
  CheckpointScope::Replay replay_;
  std::vector<torch::autograd::SavedVariable> inputs_;
  std::vector<bool> requires_grad_;
  std::optional<GeneratorStates> generators_;
  AutocastState autocast_;
  std::optional<OperatorResults> results_;

  std::vector<Description> places_;
  // Of all below, and of the replay. Recursive, because a segment may run a backward of its own. A
  // frame's inputs may be places of the segment around it, never the other way round, which is the
  // order of the locks.
  std::recursive_mutex mutex_;
  std::vector<at::Tensor> refilled_;  // by place; taken out when it is asked for
  size_t refilled_count_ = 0;
  int for_backward_ = -1;  // the graph task that they are for
};

}  // namespace fsdp::detail
