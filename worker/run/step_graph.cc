#include "worker/run/step_graph.h"

#include <ATen/ATen.h>

#include <utility>

namespace fsdprun::worker {
namespace {

void CopyInto(const at::Tensor& to, const at::Tensor& from) {
  TORCH_INTERNAL_ASSERT(to.sizes() == from.sizes(), "a step of other shapes than the captured one");
  to.copy_(from);
}

}  // namespace

void StepGraph::Forget() {
  graph_.reset();
  steps_before_ = 0;
}

at::Tensor StepGraph::Do(const std::vector<WeighedBatch>& batches, const at::Tensor& numbers) {
  constexpr char kPurpose[] = "the graph of a step";
  fsdp::Collectives& group = *world_.group;
  if (!graph_) {
    Capture(batches, numbers);
  }
  Give(batches, numbers);
  // A graph is not refused by communicators that have failed, and its kernels would wait for ever.
  group.check_results(kPurpose);
  graph_->replay();
  if (group.is_stream_ordered()) {
    // Nobody watches the collectives of a graph. This one is behind them, so a peer that never
    // comes ends the group, and where a step hangs is seen as for a collective of its own.
    group.all_reduce(mark_, fsdp::ReduceOp::kMax, {fsdp::Lane::kReduce, kPurpose})->wait();
  }
  return values_.clone();  // the next replay writes them again
}

void StepGraph::Capture(const std::vector<WeighedBatch>& batches, const at::Tensor& numbers) {
  batches_.clear();
  for (const WeighedBatch& weighed : batches) {
    const Batch& batch = weighed.batch;
    batches_.push_back({{at::empty_like(batch.inputs), at::empty_like(batch.targets)},
                        weighed.divisor,
                        weighed.weight.defined() ? at::empty_like(weighed.weight) : at::Tensor()});
  }
  numbers_ = at::empty_like(numbers);
  values_ = at::empty({kToldCount}, numbers.options());
  mark_ = at::zeros({1}, numbers.options());
  auto graph = make_(world_.device);
  graph->capture([this] { values_.copy_(body_.Do(batches_, numbers_)); });
  graph_ = std::move(graph);
}

void StepGraph::Give(const std::vector<WeighedBatch>& batches, const at::Tensor& numbers) {
  TORCH_INTERNAL_ASSERT(batches.size() == batches_.size(), "a step of more or fewer forwards");
  for (size_t i = 0; i < batches.size(); ++i) {
    CopyInto(batches_[i].batch.inputs, batches[i].batch.inputs);
    CopyInto(batches_[i].batch.targets, batches[i].batch.targets);
    if (batches[i].weight.defined()) {
      CopyInto(batches_[i].weight, batches[i].weight);
    }
  }
  CopyInto(numbers_, numbers);
}

}  // namespace fsdprun::worker
