#pragma once

/// @file
/// Collectives of a unit by means of your own.

#include <ATen/core/Tensor.h>
#include <fsdp/collectives.h>
#include <fsdp/export.h>

#include <cstdint>

namespace fsdp {

/// @addtogroup communicate
/// @{

/// How a unit gathers its parameters, for FSDPModule::set_custom_all_gather(): FSDP2's interface of
/// this name. The same on all ranks, which all call it for the same units in the same order. If a
/// method throws, or what it returns is refused, the unit stays sharded and the forward, backward
/// or unshard() throws; if it is so on all ranks, they may try again. Thread: the rank's.
class FSDP_API AllGather {
 public:
  virtual ~AllGather() = default;
  /// Memory for the gathered parameters of one unit: shape [numel], contiguous, of `dtype` and on
  /// `device`. It is kept until the unit is resharded, or until the parameters have been copied out
  /// (FullyShardOptions::shard_placement_fn), and asked for anew each time: whoever wants stable
  /// addresses gives the same one again. Default: at::empty().
  virtual at::Tensor allocate(int64_t numel, at::ScalarType dtype, c10::Device device);
  /// Issues what Collectives::all_gather_into() does. `output`: what allocate() has returned, of
  /// `group.size()` parts. `input`: this rank's part, [numel / group.size()], which may be its
  /// range of `output`. On a device behind the current stream, which with an offload policy waits
  /// for the copy of this rank's part to the device, and with it compute. Returns the work in
  /// flight, not null, which all wait for before they read `output`; a failure comes from its
  /// wait().
  virtual WorkPtr run(at::Tensor output, at::Tensor input, Collectives& group, Issue issue) = 0;
};

/// How a unit reduces its gradients over the ranks that divide its parameters, for
/// FSDPModule::set_custom_reduce_scatter(). As AllGather, but if a method throws, or what it
/// returns is refused, the gradients are lost: the backward and all that the root is asked for
/// afterwards throw the same error, and the root is to be destroyed.
class FSDP_API ReduceScatter {
 public:
  virtual ~ReduceScatter() = default;
  /// Memory for this rank's part of the sum, [numel]: as AllGather::allocate(), kept until the
  /// reduction has ended. The unreduced gradients are in memory of libfsdp's own, from
  /// Collectives::empty_for_comm().
  virtual at::Tensor allocate(int64_t numel, at::ScalarType dtype, c10::Device device);
  /// Issues what Collectives::reduce_scatter_into() does: `op` (kSum or kAvg) of the ranks of
  /// `group`, of which `output` gets this rank's part. `input`, [group.size() * numel], may be
  /// overwritten. It must begin behind `issue.after`, if that is not null, and behind the current
  /// stream. Returns the work in flight, not null.
  virtual WorkPtr run(at::Tensor output, at::Tensor input, ReduceOp op, Collectives& group,
                      Issue issue) = 0;
};

/// @}

}  // namespace fsdp
