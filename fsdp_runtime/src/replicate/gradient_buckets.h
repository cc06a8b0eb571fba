#pragma once

#include <ATen/core/Tensor.h>
#include <fsdp/collectives.h>

#include <cstddef>
#include <string>
#include <vector>

#include "fsdp_runtime/plan/gradient_buckets.h"
#include "fsdp_runtime/src/engine/shard_store.h"

namespace fsdp {

/// The memory in which gradients are reduced, bucket by bucket.
class GradientBuckets {
 public:
  struct Bucket {
    std::vector<size_t> members;        // indices of parameters
    std::vector<std::string> names;     // of the members
    at::Tensor flat;                    // [numel], from the group
    std::vector<at::Tensor> gradients;  // of the members, parts of `flat`
    std::string purpose;                // of its collectives
  };

  /// Filled with zeros.
  GradientBuckets(Collectives& comm, const std::vector<NamedParameter>& params,
                  const plan::BucketMembers& members);

  const std::vector<Bucket>& all() const { return buckets_; }
  /// Where the gradient of parameter `index` is reduced: in its sizes, and its strides if they fill
  /// memory; no view for autograd, so that it can be a `.grad` that optimizers detach in place.
  const at::Tensor& gradient(size_t index) const { return gradients_[index]; }
  /// Whether `gradient` is that, or another tensor of the same elements.
  bool holds(size_t index, const at::Tensor& gradient) const;

 private:
  std::vector<Bucket> buckets_;
  std::vector<at::Tensor> gradients_;  // by parameter
};

/// What plan::assign_buckets needs to know.
std::vector<plan::GradientSize> gradient_sizes(const std::vector<NamedParameter>& params);

}  // namespace fsdp
