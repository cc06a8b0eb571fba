#include "fsdp_runtime/src/optim/overflow.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <utility>

#include "fsdp_runtime/src/engine/module_state.h"

namespace fsdp {
namespace {

// So many elements are looked at without a branch, which compilers turn into vector instructions.
constexpr int64_t kBlockNumel = 512;
// And so many by a thread before it looks whether another one has found something.
constexpr int64_t kChunkNumel = 64 * kBlockNumel;

/// Whether the exponent of some element is all ones, which is what infinity and NaN have.
template <class Bits>
bool has_full_exponent(const Bits* data, int64_t numel, Bits exponent) {
  int64_t i = 0;
  for (; i + kBlockNumel <= numel; i += kBlockNumel) {
    Bits found = 0;
    for (int64_t j = 0; j < kBlockNumel; ++j) {
      found |= static_cast<Bits>((data[i + j] & exponent) == exponent);
    }
    if (found != 0) {
      return true;
    }
  }
  return std::any_of(data + i, data + numel,
                     [exponent](Bits bits) { return (bits & exponent) == exponent; });
}

template <class Bits>
bool has_full_exponent(const at::Tensor& gradient, Bits exponent) {
  const at::Tensor flat = gradient.contiguous();
  const auto* data = static_cast<const Bits*>(flat.const_data_ptr());
  std::atomic<bool> is_found{false};
  at::parallel_for(0, flat.numel(), kChunkNumel, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end && !is_found; i += kChunkNumel) {
      if (has_full_exponent(data + i, std::min(kChunkNumel, end - i), exponent)) {
        is_found = true;
      }
    }
  });
  return is_found;
}

bool has_non_finite_on_cpu(const at::Tensor& gradient) {
  switch (gradient.scalar_type()) {
    case at::kFloat:
      return has_full_exponent<uint32_t>(gradient, 0x7f800000);
    case at::kDouble:
      return has_full_exponent<uint64_t>(gradient, 0x7ff0000000000000);
    case at::kHalf:
      return has_full_exponent<uint16_t>(gradient, 0x7c00);
    case at::kBFloat16:
      return has_full_exponent<uint16_t>(gradient, 0x7f80);
    default:
      return !at::isfinite(gradient).all().item<bool>();
  }
}

/// [1], bool: the largest absolute value, which a NaN becomes, is read by one kernel for all.
at::Tensor has_non_finite_on_device(const std::vector<at::Tensor>& gradients) {
  const std::vector<at::Tensor> largest =
      at::_foreach_norm(gradients, std::numeric_limits<double>::infinity());
  return at::isfinite(at::stack(largest)).logical_not().any().view({1});
}

int64_t ranks_of(const ParamGroup& group) {
  return group.comm()->size() * (group.replicas() ? group.replicas()->size() : 1);
}

}  // namespace

at::Tensor has_non_finite(const GradientsByType& gradients, c10::Device device) {
  at::NoGradGuard no_grad;
  at::Tensor found = at::zeros({1}, at::TensorOptions().dtype(at::kFloat).device(device));
  for (const auto& [dtype, list] : gradients) {
    std::vector<at::Tensor> filled;
    std::copy_if(list.begin(), list.end(), std::back_inserter(filled),
                 [](const at::Tensor& gradient) { return gradient.numel() > 0; });
    if (filled.empty()) {
      continue;
    }
    if (!device.is_cpu()) {
      found = at::maximum(found, has_non_finite_on_device(filled).to(at::kFloat));
      continue;
    }
    for (const at::Tensor& gradient : filled) {
      const bool is_found = has_non_finite_on_cpu(gradient);
      release_pages(gradient);
      if (is_found) {
        return found.fill_(1);
      }
    }
  }
  return found;
}

at::Tensor unscale(const GradientsByType& gradients, const at::Tensor& inv_scale) {
  at::NoGradGuard no_grad;
  at::Tensor found = at::zeros({1}, inv_scale.options());
  for (const auto& [dtype, list] : gradients) {
    use_in_portions(list, [&](const std::vector<at::Tensor>& portion) {
      at::_amp_foreach_non_finite_check_and_unscale_(portion, found, inv_scale);
    });
  }
  return found;
}

std::shared_ptr<ParamGroup> group_on_most_ranks(
    const std::vector<std::shared_ptr<ModuleState>>& units) {
  std::shared_ptr<ParamGroup> found;
  for (const std::shared_ptr<ModuleState>& unit : units) {
    for (const std::shared_ptr<ParamGroup>& group : unit->groups()) {
      if (!found || ranks_of(*group) > ranks_of(*found)) {
        found = group;
      }
    }
  }
  return found;
}

void share_found(at::Tensor& found, Collectives& comm) {
  const c10::Device device = found.device();
  if (device != comm.device()) {
    found = found.to(comm.device());  // of gradients that are offloaded
  }
  comm.all_reduce(found, ReduceOp::kMax, {Lane::kReduce, "found_inf"})->wait();
  if (device != comm.device()) {
    found = found.to(device);
  }
}

at::Tensor found_by_some(at::Tensor found, const std::vector<std::shared_ptr<ParamGroup>>& groups) {
  std::vector<Collectives*> asked;
  const auto ask = [&](const std::shared_ptr<Collectives>& comm) {
    if (comm && std::find(asked.begin(), asked.end(), comm.get()) == asked.end()) {
      asked.push_back(comm.get());
      share_found(found, *comm);
    }
  };
  for (const std::shared_ptr<ParamGroup>& group : groups) {
    ask(group->comm());
    ask(group->replicas());
  }
  return found;
}

}  // namespace fsdp
