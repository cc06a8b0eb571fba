#pragma once

#include <ATen/core/Tensor.h>
#include <fsdp/collectives.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fsdp_runtime/src/engine/shard_store.h"

namespace torch::nn {
class Module;
}

namespace fsdp {

/// What of a module ranks have copies of, in registration order, each tensor once, under its first
/// name.
struct ReplicaTensors {
  std::vector<NamedParameter> trained;  // require grad
  std::vector<NamedParameter> frozen;
  std::vector<NamedParameter> buffers;
  std::string problem;  // with the ignored names; "" if there is none
};

/// Without those whose names are in `ignored`.
ReplicaTensors replica_tensors(const std::shared_ptr<torch::nn::Module>& module,
                               const std::vector<std::string>& ignored);

/// Throws on all ranks if one of them has a problem with its options (not ""), a tensor that cannot
/// be replicated, or other names, shapes or dtypes than rank 0. Collective.
void check_replicas(const ReplicaTensors& tensors, const std::string& options_problem,
                    const std::shared_ptr<Collectives>& comm);

/// Makes tensors what they are on rank `root`. Collective, and blocks the host; the CPU sends from
/// and to where they are, if they are contiguous.
void send_tensors(const std::vector<NamedParameter>& tensors, Collectives& comm, int64_t root);

/// Buffers that are sent together, often.
class BufferMessage {
 public:
  BufferMessage(Collectives& comm, const std::vector<NamedParameter>& buffers);
  bool is_empty() const { return buffers_.empty(); }
  /// Makes the buffers what they are on rank `root`. Collective, and blocks the host.
  void send(Collectives& comm, int64_t root);

 private:
  std::vector<at::Tensor> buffers_;
  at::Tensor bytes_;               // all of them; undefined if there are none
  std::vector<at::Tensor> parts_;  // of bytes_, by buffer, in its dtype and sizes
};

}  // namespace fsdp
