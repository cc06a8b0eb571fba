#include "worker/run/evaluation.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "worker/run/batches.h"
#include "worker/world/vote.h"

namespace fsdprun::worker {
namespace {

/// Mean loss of every row; float32 [batch].
at::Tensor LossPerWindow(const at::Tensor& logits, const at::Tensor& targets) {
  return at::cross_entropy_loss(logits.to(at::kFloat).reshape({-1, logits.size(-1)}),
                                targets.reshape({-1}), {}, at::Reduction::None)
      .view(targets.sizes())
      .mean(1);
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

std::optional<double> Evaluate(const World& world, ShardedModel& model, const TokenStream& stream,
                               const EvaluationOptions& options) {
  const at::NoGradGuard no_grad;
  const int64_t windows = stream.window_count(options.seq_len);
  const int64_t per_batch = options.batch_size * world.size();
  const int64_t needed = (windows + per_batch - 1) / per_batch;
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
    const Round taken = TakeRound(round, options.batch_size, world, windows);
    const Batch batch = ReadWindows(stream, taken.windows, options.seq_len, world.device);
    const at::Tensor losses = LossPerWindow(model.module(batch.inputs), batch.targets);
    const at::Tensor weights = taken.weights.to(world.device);
    sums[0] += (losses.to(at::kDouble) * weights).sum();
    sums[1] += weights.sum();
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
