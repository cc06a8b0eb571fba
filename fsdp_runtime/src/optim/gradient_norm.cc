#include "fsdp_runtime/src/optim/gradient_norm.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

namespace fsdp {
namespace {

/// Of which norm the ranks have parts, and how these become that of all. A part is what an
/// all-reduce can join: in float64, since there may be thousands of different magnitude.
class NormParts {
 public:
  explicit NormParts(double norm_type) : norm_type_(norm_type) {}

  bool is_max() const { return std::isinf(norm_type_); }
  ReduceOp op() const { return is_max() ? ReduceOp::kMax : ReduceOp::kSum; }

  /// Of these gradients: the sum of the powers of all elements, [1]; or the largest absolute value
  /// and whether there is a NaN, [2], because not every backend's maximum keeps one. Without a wait
  /// for the device.
  at::Tensor of(const GradientsByType& gradients, c10::Device device) const;
  /// `a` becomes that of both.
  void join(at::Tensor& a, const at::Tensor& b) const;
  /// Of several, if each of `copies` ranks has the same part.
  at::Tensor share_of(const at::Tensor& part, int64_t copies) const {
    return is_max() ? part : part / static_cast<double>(copies);
  }
  /// 0-dim, float32.
  at::Tensor total_of(const at::Tensor& part) const;

 private:
  at::Tensor none(c10::Device device) const {
    return at::zeros({is_max() ? 2 : 1}, at::TensorOptions().dtype(at::kDouble).device(device));
  }

  double norm_type_;
};

/// Gradients of offloaded shards are where no group is.
at::Tensor on_device(const at::Tensor& tensor, c10::Device device) {
  return tensor.device() == device ? tensor : tensor.to(device);
}

/// Of each list: in float64 if there are some in that, else in float32.
std::vector<at::Tensor> norms_of(const GradientsByType& gradients, double norm_type) {
  std::vector<at::Tensor> norms;
  for (const auto& [dtype, list] : gradients) {
    std::vector<at::Tensor> filled;  // there is no largest element of none
    std::copy_if(list.begin(), list.end(), std::back_inserter(filled),
                 [](const at::Tensor& gradient) { return gradient.numel() > 0; });
    if (!filled.empty()) {
      const at::ScalarType wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
      use_in_portions(filled, [&](const std::vector<at::Tensor>& portion) {
        const std::vector<at::Tensor> more = at::_foreach_norm(portion, norm_type, wide);
        norms.insert(norms.end(), more.begin(), more.end());
      });
    }
  }
  if (gradients.contains(at::kDouble)) {
    for (at::Tensor& norm : norms) {
      norm = norm.to(at::kDouble);
    }
  }
  return norms;
}

at::Tensor NormParts::of(const GradientsByType& gradients, c10::Device device) const {
  const std::vector<at::Tensor> norms = norms_of(gradients, norm_type_);
  if (norms.empty()) {
    return none(device);
  }
  const at::Tensor wide = on_device(at::stack(norms).to(at::kDouble), device);
  if (is_max()) {
    return at::stack(
        {wide.nan_to_num(0, INFINITY, -INFINITY).max(), wide.isnan().any().to(at::kDouble)});
  }
  const at::Tensor powers = norm_type_ == 2 ? wide.square() : wide.pow(norm_type_);
  // The last of the running sums: on the CPU it does not depend on how a sum is vectorized.
  return device.is_cpu() ? powers.cumsum(0).narrow(0, powers.numel() - 1, 1)
                         : powers.sum(0, /*keepdim=*/true);
}

void NormParts::join(at::Tensor& a, const at::Tensor& b) const {
  if (is_max()) {
    a = at::maximum(a, b);
  } else {
    a.add_(b);
  }
}

at::Tensor NormParts::total_of(const at::Tensor& part) const {
  if (is_max()) {
    return at::where(part[1] > 0, at::full_like(part[0], NAN), part[0]).to(at::kFloat);
  }
  const at::Tensor total = norm_type_ == 2 ? part.sqrt() : part.pow(1 / norm_type_);
  return total.to(at::kFloat).squeeze(0);
}

/// How many ranks of `group` are in `largest`.
int64_t ranks_within(const Collectives& largest, const Collectives& group) {
  const std::vector<int64_t> in = largest.world_ranks();
  const std::vector<int64_t> ranks = group.world_ranks();
  return std::count_if(ranks.begin(), ranks.end(), [&in](int64_t rank) {
    return std::find(in.begin(), in.end(), rank) != in.end();
  });
}

/// A part of the norm that the ranks of `comm` have to join.
struct PartOnRanks {
  std::shared_ptr<Collectives> comm;
  at::Tensor part;
};

/// If communicators differ in size, the largest joins all parts: the smaller ones would give each
/// of their sets of ranks a total of its own, and parameters that all ranks share would be scaled
/// differently. Each of the copies that it has counts once. Otherwise each joins its own.
std::vector<PartOnRanks> parts_to_join(const std::vector<ShardedGradients>& all,
                                       const NormParts& norm) {
  std::vector<PartOnRanks> parts;
  for (const ShardedGradients& gradients : all) {
    parts.push_back({gradients.comm, norm.of(gradients.lists, gradients.comm->device())});
  }
  const auto is_smaller = [](const PartOnRanks& a, const PartOnRanks& b) {
    return a.comm->size() < b.comm->size();
  };
  // The first of the largest, which is the same on all ranks.
  const auto largest = std::max_element(parts.begin(), parts.end(), is_smaller);
  if (!is_smaller(*std::min_element(parts.begin(), parts.end(), is_smaller), *largest)) {
    return parts;
  }
  PartOnRanks joined{largest->comm, at::zeros_like(largest->part)};
  for (size_t i = 0; i < all.size(); ++i) {
    const bool has_copies = all[i].comm != joined.comm && all[i].replicas;
    const int64_t copies = has_copies ? ranks_within(*joined.comm, *all[i].replicas) : 1;
    norm.join(joined.part, norm.share_of(parts[i].part, copies));
  }
  return {joined};
}

}  // namespace

at::Tensor norm_over_ranks(const std::vector<ShardedGradients>& all, double norm_type) {
  const NormParts norm(norm_type);
  std::vector<PartOnRanks> parts = parts_to_join(all, norm);
  std::vector<WorkPtr> works;
  works.reserve(parts.size());
  for (const PartOnRanks& part : parts) {
    works.push_back(
        part.comm->all_reduce(part.part, norm.op(), {Lane::kReduce, "the gradient norm"}));
  }
  at::Tensor total = parts.front().part;
  for (size_t i = 0; i < parts.size(); ++i) {
    works[i]->wait();
    if (i > 0) {
      norm.join(total, parts[i].part);
    }
  }
  return on_device(norm.total_of(total), all.front().device);
}

}  // namespace fsdp
