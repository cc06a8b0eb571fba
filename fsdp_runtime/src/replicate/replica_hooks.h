#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_set>
#include <vector>

#include "fsdp_runtime/src/engine/shard_store.h"

namespace fsdp {

class BucketReducer;

/// Tells a reducer of each gradient that autograd has accumulated, as long as this lives. Other
/// hooks of the parameters are left alone, and run before.
class ReplicaHooks {
 public:
  ReplicaHooks(const std::vector<NamedParameter>& params,
               const std::weak_ptr<BucketReducer>& reducer);
  ~ReplicaHooks();
  ReplicaHooks(const ReplicaHooks&) = delete;
  ReplicaHooks& operator=(const ReplicaHooks&) = delete;

  /// Whether the backward that is running may give some parameter a gradient: not if it is
  /// restricted to other inputs, as by autograd::grad().
  bool reaches_any() const;
  /// The parameters that the backward that is running will give no gradient: it is known from its
  /// graph. None if the graph has a checkpointed segment, which may use any.
  std::vector<size_t> unreached() const;

 private:
  struct Hook {
    std::shared_ptr<torch::autograd::Node> accumulator;  // the parameter has it weakly
    uintptr_t key = 0;
  };
  std::vector<Hook> hooks_;  // by parameter
};

/// Lets the backward of `outputs` tell the reducer that it begins, in the graph that they are in.
void watch_outputs(const std::vector<at::Tensor>& outputs,
                   const std::weak_ptr<BucketReducer>& reducer);

/// Whether a backward that ends now has run inside another one.
bool is_nested_backward();

}  // namespace fsdp
