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

/// The windows of one forward of this rank.
struct Round {
  std::vector<int64_t> windows;
  /// None is left for this rank, which takes part with one all the same.
  bool is_padding = false;
};

/// The next of this rank's `count` windows, from number `first` on.
Round TakeRound(int64_t first, int64_t count, const World& world, int64_t window_count) {
  Round round;
  for (int64_t i = first; i < first + count; ++i) {
    const int64_t window = i * world.size() + world.rank();
    if (window < window_count) {
      round.windows.push_back(window);
    }
  }
  round.is_padding = round.windows.empty();
  if (round.is_padding) {
    round.windows.push_back(0);
  }
  return round;
}

/// The sum of the losses of what counts, and how much that is: windows, or targets if some of them
/// do not count; float64 [2].
at::Tensor SumOfLosses(ShardedModel& model, const Batch& batch, bool may_ignore_targets) {
  const double count =
      static_cast<double>(may_ignore_targets ? batch.counted : batch.targets.size(0));
  at::Tensor sum;
  if (model.module->kernels() == Kernels::kFused) {  // as in training, never all logits together
    const at::Tensor mean = LossOf(model.module, batch.inputs, batch.targets).to(at::kDouble);
    sum = count > 0 ? mean * count : at::zeros_like(mean);
  } else {
    const at::Tensor losses = LossPerToken(model.module(batch.inputs), batch.targets);
    sum = (may_ignore_targets ? losses.sum(1) : losses.mean(1)).to(at::kDouble).sum();
  }
  return at::stack({sum, at::full_like(sum, count)});
}

}  // namespace

std::optional<double> Evaluate(const World& world, ShardedModel& model, const Windows& windows,
                               const EvaluationOptions& options) {
  const at::NoGradGuard no_grad;
  const int64_t needed = (windows.count() + world.size() - 1) / world.size();
  const int64_t own = options.windows == 0 ? needed : std::min(options.windows, needed);
  const int64_t rounds = (own + options.batch_size - 1) / options.batch_size;

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
    const int64_t first = round * options.batch_size;
    const Round taken =
        TakeRound(first, std::min(options.batch_size, own - first), world, windows.count());
    const Batch batch = MoveTo(world.device, ReadWindows(windows, taken.windows, world.device));
    const at::Tensor sum = SumOfLosses(model, batch, windows.may_ignore_targets());
    if (!taken.is_padding) {
      sums += sum;
    }
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
