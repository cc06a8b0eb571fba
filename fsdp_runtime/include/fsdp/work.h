#pragma once

/// @file
/// Operations in flight, and the lanes on which they run.

#include <fsdp/export.h>

#include <memory>

// Without LibTorch: what watches operations is compiled, and tested, without it.
namespace fsdp {

/// @addtogroup communicate
/// @{

/// A collective in flight. Dropping it does not cancel it.
class FSDP_API Work {
 public:
  virtual ~Work() = default;
  /// CPU: blocks the host until the result is in place. Throws c10::Error naming the operation and
  /// the expired deadline or the lost peer, the latter as PeerError. CUDA: makes the current stream
  /// wait and returns; throws like that if the group has failed by then. One that fails later ends
  /// on the device without a result, and the next call of the group throws. May be called more than
  /// once.
  virtual void wait() = 0;
  /// Blocks the host until the result is in place, also where wait() makes a stream wait: for what
  /// the device has copied to memory of the host, or from memory that the host is about to write.
  /// Throws like wait(). Default: wait(), as on the CPU.
  virtual void wait_on_host() { wait(); }
  /// Whether wait() would return, or throw, at once (CPU), or the device has got to the end (CUDA).
  /// Does not block. Any thread.
  virtual bool is_done() = 0;
};
/// Never null where an operation returns it.
using WorkPtr = std::shared_ptr<Work>;

/// Two independent queues, like two CUDA streams. Operations of one lane run in issue order; the
/// lanes overlap each other and compute. Parameters are all-gathered on one, gradients
/// reduce-scattered on the other.
enum class Lane {
  kGather,  ///< Lane 0: all-gathers of parameters.
  kReduce   ///< Lane 1: reductions, broadcasts and barriers.
};

/// @}

}  // namespace fsdp
