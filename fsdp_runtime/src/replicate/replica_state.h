#pragma once

#include <ATen/core/Tensor.h>
#include <fsdp/collectives.h>
#include <fsdp/distributed_data_parallel.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "fsdp_runtime/src/replicate/bucket_reducer.h"
#include "fsdp_runtime/src/replicate/replica_tensors.h"

namespace fsdp {

/// A module that ranks have copies of: what its handles share.
class ReplicaState {
 public:
  /// Collective. `comm`: not null.
  ReplicaState(const std::shared_ptr<torch::nn::Module>& module, std::shared_ptr<Collectives> comm,
               const DistributedDataParallelOptions& options);

  BucketReducer& reducer() { return *reducer_; }
  /// See ReplicateModule.
  void prepare_forward();
  void prepare_backward(const std::vector<at::Tensor>& outputs);
  void join(const std::function<void()>& body, const JoinOptions& options);

 private:
  /// What ranks tell each other in join() before each forward.
  struct RollCall {
    int64_t active = 0;      // ranks that have inputs
    int64_t last = 0;        // the last of them: as in PyTorch, its buffers count
    bool has_round = false;  // their backward will reduce gradients
  };
  RollCall call_roll(bool is_active, bool has_round);
  /// This rank has inputs, and goes on to a forward.
  void announce_forward(bool has_round);
  /// Until nobody has inputs, does what the others' forwards and backwards wait for.
  void shadow_others();
  /// Restores what join() has changed.
  void end_join();

  const std::shared_ptr<Collectives> comm_;
  const ReplicaTensors tensors_;
  std::shared_ptr<BucketReducer> reducer_;
  BufferMessage buffers_;
  bool sends_buffers_ = true;  // before the next forward
  bool is_joining_ = false;
  JoinOptions join_options_;
  int64_t root_ = 0;                 // whose buffers, and in the end parameters, count
  bool was_anybody_active_ = false;  // in this join()
  at::Tensor roll_;                  // int32 [2 * size]
};

}  // namespace fsdp
