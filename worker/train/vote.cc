#include "worker/train/vote.h"

#include <ATen/ATen.h>

namespace fsdprun::worker {

Vote::Vote(const Job& job, int answer)
    : answer_(at::full({1}, answer, at::TensorOptions(at::kFloat).device(job.device))),
      work_(job.group->all_reduce(answer_, fsdp::ReduceOp::kMax, fsdp::Lane::kReduce)) {}

int Vote::Highest() {
  work_->wait();
  return static_cast<int>(answer_.item<float>());
}

}  // namespace fsdprun::worker
