#pragma once

/// @file
/// Keeping activations in the host's memory until backward.

#include <fsdp/export.h>

#include <cstdint>
#include <memory>

namespace fsdp {

/// @addtogroup train
/// @{

/// While it lives, what autograd saves for backward on this thread is copied from the device to the
/// CPU, and back when backward asks for it: Python's torch.autograd.graph.save_on_cpu.
///
/// ```cpp
/// at::Tensor loss;
/// {
///   fsdp::OffloadActivations offload;
///   loss = model(x);
/// }
/// loss.backward();
/// ```
///
/// Exact. Tensors on the CPU, and small ones, stay where they are, as do leaves, parameters among
/// them. The copies are ordered by the current stream and do not block the host, if `pin_memory`.
/// Within a checkpointed segment that is not reentrant the segment's own hooks come first; around
/// one, its arguments are offloaded. Errors: TORCH_CHECK as CheckpointOptions::use_reentrant says
/// of other autograd engines, and in backward if a tensor that has stayed was modified in place.
class FSDP_API OffloadActivations {
 public:
  /// What is copied, and to where.
  struct Options {
    int64_t min_bytes = 1 << 20;  ///< Smaller ones stay on the device.
    bool pin_memory = true;       ///< Of the copies on the CPU; without, the host waits for each.
  };
  /// With the options' own values.
  OffloadActivations() : OffloadActivations(Options()) {}
  /// From now on. Local.
  explicit OffloadActivations(const Options& options);
  ~OffloadActivations();
  OffloadActivations(const OffloadActivations&) = delete;
  /// No copies: it is a scope.
  OffloadActivations& operator=(const OffloadActivations&) = delete;

 private:
  struct Open;
  std::unique_ptr<Open> open_;
};

/// @}

}  // namespace fsdp
