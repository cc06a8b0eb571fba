#include "worker/estimate/optimizer_memory.h"

#include <algorithm>
#include <map>

#include "formats/models/block_names.h"
#include "fsdp_runtime/plan/matrix_deal.h"

namespace fsdprun::worker {
namespace {

constexpr int64_t kStateBytes = 4;
/// Muon works in bfloat16.
constexpr int64_t kWorkBytes = 2;

/// How many numbers the optimizer keeps for each element of the weight.
int64_t StatesOf(const EstimatedWeight& weight, const TrainConfig::Optimizer& optimizer) {
  if (!weight.is_trainable) {
    return 0;
  }
  if (optimizer.name == "sgd") {
    return optimizer.momentum > 0 ? 1 : 0;
  }
  return IsOfMuon(weight, optimizer) ? 1 : 2;
}

/// Of a group on the rank that has most.
int64_t StateNumel(const WeightGroup& group, const std::vector<EstimatedWeight>& weights,
                   const TrainConfig::Optimizer& optimizer) {
  std::map<int64_t, int64_t> numel_by_states;
  for (const size_t index : group.weights) {
    numel_by_states[StatesOf(weights[index], optimizer)] += weights[index].numel();
  }
  if (numel_by_states.size() == 1) {
    return numel_by_states.begin()->first * group.shard_numel;
  }
  int64_t numel = 0;
  for (const auto& [states, of_kind] : numel_by_states) {
    numel += states * std::min(group.shard_numel, of_kind);
  }
  return numel;
}

/// What the steps of Newton-Schulz hold of a matrix at a time: the matrix, what it becomes, and
/// three squares of its shorter side.
int64_t OrthogonalizationNumel(const EstimatedWeight& matrix) {
  const int64_t shorter = std::min(matrix.shape[0], matrix.shape[1]);
  return 2 * matrix.numel() + 3 * shorter * shorter;
}

/// fsdp_runtime/src/optim/matrix_exchange.cc: a rank has its own matrices whole, or its parts of
/// all, and two units in flight.
int64_t MuonWorkingBytes(const std::vector<EstimatedWeight>& weights,
                         const std::vector<WeightGroup>& groups,
                         const TrainConfig::Optimizer& optimizer) {
  std::vector<int64_t> costs;
  std::vector<int64_t> numels;
  int64_t parts = 0;
  int64_t largest_unit = 0;
  int64_t largest_work = 0;
  for (const WeightGroup& group : groups) {
    bool has_some = false;
    for (const size_t index : group.weights) {
      if (IsOfMuon(weights[index], optimizer)) {
        has_some = true;
        costs.push_back(
            fsdp::plan::orthogonalization_cost(weights[index].shape[0], weights[index].shape[1]));
        numels.push_back(weights[index].numel());
        largest_work = std::max(largest_work, OrthogonalizationNumel(weights[index]));
      }
    }
    parts += has_some ? group.shard_numel : 0;
    largest_unit = std::max(largest_unit, has_some ? group.memory.numel : 0);
  }
  if (costs.empty()) {
    return 0;
  }
  const std::vector<int64_t> owners = fsdp::plan::deal_by_cost(costs, groups.front().memory.ranks);
  std::map<int64_t, int64_t> owned;
  int64_t most = 0;
  for (size_t i = 0; i < owners.size(); ++i) {
    owned[owners[i]] += numels[i];
    most = std::max(most, owned[owners[i]]);
  }
  return kWorkBytes * std::max(std::max(most, parts) + 2 * largest_unit, most + largest_work);
}

}  // namespace

bool IsOfMuon(const EstimatedWeight& weight, const TrainConfig::Optimizer& optimizer) {
  return optimizer.name == "muon" && weight.is_trainable && weight.shape.size() == 2 &&
         BlockOf(weight.name).has_value();
}

OptimizerMemory OptimizerMemoryOf(const std::vector<EstimatedWeight>& weights,
                                  const std::vector<WeightGroup>& groups,
                                  const TrainConfig::Optimizer& optimizer) {
  OptimizerMemory memory;
  for (const WeightGroup& group : groups) {
    memory.state += kStateBytes * StateNumel(group, weights, optimizer);
  }
  for (const EstimatedWeight& weight : weights) {
    memory.state_of_model += kStateBytes * StatesOf(weight, optimizer) * weight.numel();
  }
  memory.working = MuonWorkingBytes(weights, groups, optimizer);
  return memory;
}

}  // namespace fsdprun::worker
