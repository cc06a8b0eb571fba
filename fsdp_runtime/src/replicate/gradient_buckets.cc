#include "fsdp_runtime/src/replicate/gradient_buckets.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/util/strides.h>

#include <utility>

namespace fsdp {
namespace {

at::Tensor bucket_part(const at::Tensor& flat, int64_t offset, const at::Tensor& like) {
  at::Tensor part = at::empty({0}, flat.options());
  const bool fills = like.is_non_overlapping_and_dense();
  const at::DimVector strides =
      fills ? at::DimVector(like.strides()) : c10::contiguous_strides(like.sizes());
  part.set_(flat.storage(), flat.storage_offset() + offset, like.sizes(), strides);
  return part;
}

}  // namespace

std::vector<plan::GradientSize> gradient_sizes(const std::vector<NamedParameter>& params) {
  std::vector<plan::GradientSize> sizes;
  sizes.reserve(params.size());
  for (const NamedParameter& param : params) {
    sizes.push_back({.bytes = static_cast<int64_t>(param.tensor.nbytes()),
                     .kind = static_cast<int64_t>(param.tensor.scalar_type())});
  }
  return sizes;
}

GradientBuckets::GradientBuckets(Collectives& comm, const std::vector<NamedParameter>& params,
                                 const plan::BucketMembers& members)
    : gradients_(params.size()) {
  const at::NoGradGuard no_grad;
  for (const std::vector<size_t>& indices : members) {
    Bucket bucket;
    bucket.members = indices;
    bucket.purpose = "bucket " + std::to_string(buckets_.size());
    int64_t numel = 0;
    for (const size_t index : indices) {
      numel += params[index].tensor.numel();
    }
    bucket.flat = comm.empty_for_comm(numel, params[indices.front()].tensor.scalar_type()).zero_();
    int64_t offset = 0;
    for (const size_t index : indices) {
      gradients_[index] = bucket_part(bucket.flat, offset, params[index].tensor);
      offset += params[index].tensor.numel();
      bucket.gradients.push_back(gradients_[index]);
      bucket.names.push_back(params[index].fqn);
    }
    buckets_.push_back(std::move(bucket));
  }
}

bool GradientBuckets::holds(size_t index, const at::Tensor& gradient) const {
  const at::Tensor& part = gradients_[index];
  return gradient.is_same(part) || (gradient.const_data_ptr() == part.const_data_ptr() &&
                                    gradient.strides() == part.strides());
}

}  // namespace fsdp
