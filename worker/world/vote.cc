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

int64_t NumberOfRank0(const World& world, int64_t number) {
  at::Tensor told = at::full({1}, number, at::TensorOptions(at::kLong).device(world.device));
  world.group->broadcast(told, 0)->wait();
  return told.item<int64_t>();
}

}  // namespace fsdprun::worker
