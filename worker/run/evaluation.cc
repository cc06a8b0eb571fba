#include "worker/run/evaluation.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "worker/run/batches.h"
#include "worker/world/vote.h"

namespace fsdprun::worker {
namespace {

/// Of every token, 0 where the target does not count; float32 [batch, seq_len].
at::Tensor LossPerToken(const at::Tensor& logits, const at::Tensor& targets) {
  return at::cross_entropy_loss(logits.to(at::kFloat).reshape({-1, logits.size(-1)}),
                                targets.reshape({-1}), {}, at::Reduction::None, kIgnoredTarget)
      .view(targets.sizes());
}

/// The sum of losses and of the weights that they have; float64 [2].
at::Tensor WeightedSum(const at::Tensor& losses, const at::Tensor& targets,
                       const at::Tensor& weights, bool may_ignore_targets) {
  if (!may_ignore_targets) {
    return at::stack({(losses.mean(1).to(at::kDouble) * weights).sum(), weights.sum()});
  }
  const at::Tensor counted = targets.ne(kIgnoredTarget).sum(1).to(at::kDouble);
  return at::stack({(losses.sum(1).to(at::kDouble) * weights).sum(), (counted * weights).sum()});
}

/// The windows of one forward of this rank, and their weights; float64 [batch].
struct Round {
  std::vector<int64_t> windows;
  at::Tensor weights;
};

Round TakeRound(int64_t round, int64_t batch_size, const World& world, int64_t window_count) {
  Round taken{{}, at::zeros({batch_size}, at::kDouble)};
  for (int64_t j = 0; j < batch_size; ++j) {
    const int64_t window = (round * batch_size + j) * world.size() + world.rank();
    taken.windows.push_back(window % window_count);
    taken.weights[j] = window < window_count ? 1.0 : 0.0;
  }
  return taken;
}

}  // namespace

std::optional<double> Evaluate(const World& world, ShardedModel& model, const Windows& windows,
                               const EvaluationOptions& options) {
  const at::NoGradGuard no_grad;
  const int64_t per_batch = options.batch_size * world.size();
  const int64_t needed = (windows.count() + per_batch - 1) / per_batch;
  const int64_t rounds = options.batches == 0 ? needed : std::min(options.batches, needed);

  const auto on_device = at::TensorOptions(at::kDouble).device(world.device);
  at::Tensor sums = at::zeros({2}, on_device);
  bool is_stopped = false;
  for (int64_t round = 0; round < rounds && !is_stopped; ++round) {
    // Every rank runs every forward, because the all-gathers need all ranks. The question whether
    // to stop travels meanwhile.
    std::optional<Vote> vote;
    if (round % options.forwards_per_poll == 0) {
      vote.emplace(world, options.is_stop_requested() ? 1 : 0);
    }
    const Round taken = TakeRound(round, options.batch_size, world, windows.count());
    const Batch batch = MoveTo(world.device, ReadWindows(windows, taken.windows, world.device));
    const at::Tensor losses = LossPerToken(model.module(batch.inputs), batch.targets);
    sums += WeightedSum(losses, batch.targets, taken.weights.to(world.device),
                        windows.may_ignore_targets());
    is_stopped = vote && vote->Highest() > 0;
  }
  for (fsdp::FSDPModule unit : model.root.units()) {
    unit.reshard();
  }
  if (is_stopped) {
    return std::nullopt;
  }
  world.group->all_reduce(sums, fsdp::ReduceOp::kSum, fsdp::Lane::kReduce)->wait();
  return (sums[0] / sums[1]).item<double>();
}

}  // namespace fsdprun::worker
