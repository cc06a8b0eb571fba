#include "worker/run/frozen_base.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>

#include "formats/tensors/weights_digest.h"
#include "worker/estimate/estimated_weights.h"
#include "worker/weights/slice_chunks.h"

namespace fsdprun::worker {
namespace {

// Sums are exchanged in halves, which ranks can add without an overflow.
constexpr int kHalfBits = 32;
constexpr uint64_t kHalfMask = (uint64_t{1} << kHalfBits) - 1;

WeightSums SumsOf(const fsdp::LocalShard& slice) {
  WeightSums sums;
  ForEachChunk(slice, [&](int64_t in_slice, int64_t begin, int64_t count) {
    const at::Tensor values =
        slice.local.slice(0, in_slice, in_slice + count).to(at::kCPU, at::kFloat).contiguous();
    sums.Add(begin, values.const_data_ptr<float>(), count);
  });
  return sums;
}

/// int64 [4].
at::Tensor InHalves(const WeightSums& sums) {
  std::vector<int64_t> halves;
  for (const uint64_t sum : {sums.bits, sums.bits_by_place}) {
    halves.push_back(static_cast<int64_t>(sum & kHalfMask));
    halves.push_back(static_cast<int64_t>(sum >> kHalfBits));
  }
  return at::tensor(at::ArrayRef<int64_t>(halves));
}

/// Modulo 2^64.
WeightSums FromHalves(const at::Tensor& halves) {
  const auto sum = [&halves](int64_t i) {
    return static_cast<uint64_t>(halves[i].item<int64_t>()) +
           (static_cast<uint64_t>(halves[i + 1].item<int64_t>()) << kHalfBits);
  };
  WeightSums sums;
  sums.bits = sum(0);
  sums.bits_by_place = sum(2);
  return sums;
}

}  // namespace

std::set<std::string> FrozenWeights(const TrainConfig& config, const ModelConfig& model) {
  std::set<std::string> frozen;
  for (const EstimatedWeight& weight : WeightsOf(config, model)) {
    if (!weight.is_trainable) {
      frozen.insert(weight.name);
    }
  }
  return frozen;
}

std::vector<fsdp::LocalShard> TrainedParameters(const ShardedModel& model) {
  std::vector<fsdp::LocalShard> trained = model.root.sharded_parameters();
  std::erase_if(trained, [&model](const fsdp::LocalShard& parameter) {
    return model.frozen.contains(parameter.fqn);
  });
  return trained;
}

std::string DigestOfBase(const ShardedModel& model, const World& world) {
  const at::NoGradGuard no_grad;
  std::vector<fsdp::LocalShard> base = model.root.sharded_parameters();
  std::erase_if(base, [&model](const fsdp::LocalShard& parameter) {
    return !model.frozen.contains(parameter.fqn);
  });
  // Copies of the model have the same weights, and count once.
  const bool counts = world.mesh->ndim() == 1 || world.mesh->local_rank(0) == 0;
  std::vector<at::Tensor> parts;
  for (const fsdp::LocalShard& slice : base) {
    parts.push_back(InHalves(counts ? SumsOf(slice) : WeightSums{}));
  }
  const at::Tensor sums = at::stack(parts).to(world.device);
  world.group->all_reduce(sums, fsdp::ReduceOp::kSum, {fsdp::Lane::kReduce, "digest of the base"})
      ->wait();
  const at::Tensor all = sums.cpu();
  std::map<std::string, WeightSums> by_name;
  for (size_t i = 0; i < base.size(); ++i) {
    by_name[base[i].fqn] = FromHalves(all[static_cast<int64_t>(i)]);
  }
  return DigestOfSums(by_name);
}

}  // namespace fsdprun::worker
