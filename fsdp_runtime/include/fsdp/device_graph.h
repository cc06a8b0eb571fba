#pragma once

/// @file
/// Work of a device that is captured once and replayed.

#include <c10/core/Device.h>
#include <fsdp/export.h>

#include <functional>
#include <memory>

namespace fsdp {

/// @addtogroup train
/// @{

/// What some code gives a device to do, captured once and then replayed as one: on CUDA a graph,
/// which saves the host the time that it takes to launch kernel after kernel. A whole training step
/// can be captured, with its units, their collectives, clipping and AdamW::step():
///
/// ```cpp
/// const auto graph = fsdp::make_device_graph(device);
/// graph->capture([&] { loss.copy_(train_step(tokens)); });
/// for (const at::Tensor& batch : batches) {
///   tokens.copy_(batch);
///   graph->replay();
/// }
/// ```
///
/// What is captured is what was done: kernels, the memory that they use, and the numbers that the
/// host gave them. So what differs from replay to replay must be copied into tensors that were
/// there before the capture, and be read from there; AdamW::set_lr() does so, the rates of SGD and
/// Muon are the host's. What a replay leaves for the next one must be written in place. Nothing
/// that is captured may wait for the device or read from it. A few steps that are issued as ever
/// come before, in which units, libraries and optimizers allocate what they keep; the tensors of a
/// state that is loaded are other ones, so that it takes a new capture.
///
/// The same parameters get gradients in each replay, on all ranks, as in the capture. A graph with
/// collectives ends before the last handle of their groups, and before shrink(), or the end of
/// these takes a minute; and when a group has failed it must not be replayed, since its kernels
/// would wait for ever: ask Collectives::check_results() before. Lanes overlap in a graph from
/// driver 12.9 on.
///
/// Memory: on CUDA, what the work needs meanwhile is kept for it alone, as long as this exists. On
/// the CPU, which has no graphs, a replay calls the code again, so that programs are the same.
/// Collectives: see there. Thread: one.
class FSDP_API DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;

  /// Captures `work` in place of what was captured before. Nothing of it is done until replay().
  /// CUDA: calls it now, with the current stream, which must not be the default one. CPU: keeps it,
  /// and calls it in each replay. Errors: TORCH_CHECK on the default stream; what `work` throws,
  /// for one because it asks for something that cannot be captured. There is nothing to replay
  /// then; and where CUDA has refused something, LibTorch's generator of that GPU may refuse to
  /// draw from then on.
  virtual void capture(std::function<void()> work) = 0;
  /// Does what was captured. CUDA: on the current stream; the host goes on. Errors: TORCH_CHECK if
  /// nothing was captured; CPU: what the work throws.
  virtual void replay() = 0;
};

/// An empty one. Errors: TORCH_CHECK on a device that is neither the CPU nor a GPU that can be
/// used.
FSDP_API std::unique_ptr<DeviceGraph> make_device_graph(c10::Device device);

/// @}

}  // namespace fsdp
