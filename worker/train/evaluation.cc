#include "worker/train/evaluation.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "worker/train/batches.h"

namespace fsdprun::worker {
namespace {

/// Mean loss of every row; float32 [batch].
at::Tensor LossPerWindow(const at::Tensor& logits, const at::Tensor& targets) {
  return at::cross_entropy_loss(logits.to(at::kFloat).reshape({-1, logits.size(-1)}),
                                targets.reshape({-1}), {}, at::Reduction::None)
      .view(targets.sizes())
      .mean(1);
}

}  // namespace

double Evaluate(Job& job, const TokenStream& stream, int64_t seq_len, int64_t batch_size,
                int64_t batches) {
  const at::NoGradGuard no_grad;
  const int64_t world = job.world_size();
  const int64_t windows = stream.window_count(seq_len);
  const int64_t per_batch = batch_size * world;
  const int64_t needed = (windows + per_batch - 1) / per_batch;
  const int64_t rounds = batches == 0 ? needed : std::min(batches, needed);

  at::Tensor sums = at::zeros({2}, at::TensorOptions(at::kDouble).device(job.device));
  for (int64_t round = 0; round < rounds; ++round) {
    // Every rank runs every forward, because the all-gathers need all ranks.
    std::vector<int64_t> taken;
    at::Tensor weights = at::zeros({batch_size}, at::kDouble);
    for (int64_t j = 0; j < batch_size; ++j) {
      const int64_t window = (round * batch_size + j) * world + job.rank();
      taken.push_back(window % windows);
      weights[j] = window < windows ? 1.0 : 0.0;
    }
    const Batch batch = ReadWindows(stream, taken, seq_len, job.device);
    const at::Tensor losses = LossPerWindow(job.model(batch.inputs), batch.targets);
    weights = weights.to(job.device);
    sums[0] += (losses.to(at::kDouble) * weights).sum();
    sums[1] += weights.sum();
  }
  for (fsdp::FSDPModule unit : job.root.units()) {
    unit.reshard();
  }
  job.group->all_reduce(sums, fsdp::ReduceOp::kSum, fsdp::Lane::kReduce)->wait();
  return (sums[0] / sums[1]).item<double>();
}

}  // namespace fsdprun::worker
