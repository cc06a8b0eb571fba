#include "worker/world/vote.h"

#include <ATen/ATen.h>

namespace fsdprun::worker {

Vote::Vote(const World& world, int answer)
    : answer_(at::full({1}, answer, at::TensorOptions(at::kFloat).device(world.device))),
      work_(world.group->all_reduce(answer_, fsdp::ReduceOp::kMax, fsdp::Lane::kReduce)) {}

int Vote::Highest() {
  work_->wait();
  return static_cast<int>(answer_.item<float>());
}

}  // namespace fsdprun::worker
