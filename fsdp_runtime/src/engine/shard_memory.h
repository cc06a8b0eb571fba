#pragma once

#include <ATen/core/Tensor.h>
#include <fsdp/collectives.h>
#include <fsdp/fully_shard_options.h>

#include <cstdint>
#include <memory>
#include <string>

namespace fsdp {

/// Where a group keeps what lasts, if that is not where it computes: shard and gradient, and on a
/// disk the optimizer's state, by an offload policy. Tensors may outlive it. Thread: any.
class ShardMemory {
 public:
  virtual ~ShardMemory() = default;
  /// On the CPU, [numel], uninitialised. `content`: for errors, such as "the shard of a.weight".
  virtual at::Tensor empty(int64_t numel, at::ScalarType dtype,
                           const std::string& content) const = 0;
  /// The same, zeros.
  virtual at::Tensor zeros(int64_t numel, at::ScalarType dtype, const std::string& content) const;
  /// Whether a device copies from and to it while the host goes on.
  virtual bool is_pinned() const { return false; }
  /// Whether its pages are to be given back behind each use, by release_pages().
  virtual bool is_on_disk() const { return false; }
};

/// Null if everything is to be where `comm` computes: without a policy, and on the CPU with
/// CPUOffloadPolicy. Errors: c10::Error if a folder cannot be used.
std::shared_ptr<const ShardMemory> make_shard_memory(const OffloadPolicy& policy,
                                                     const Collectives& comm);

}  // namespace fsdp
