#include "worker/run/step_graph.h"

#include <ATen/ATen.h>

namespace fsdprun::worker {

void StepGraph::Forget() {
  graph_.reset();
  steps_before_ = 0;
}

at::Tensor StepGraph::Launch(const std::vector<WeighedBatch>& batches, const at::Tensor& numbers) {
  if (!graph_) {
    Record(batches, numbers);
  }
  Give(batches, numbers);
  graph_->launch();
  if (world_.group->is_stream_ordered()) {
    // What a graph has of collectives is not watched. This is behind it, and is watched, so that a
    // peer that never comes ends the group.
    world_.group->run_on_lane({fsdp::Lane::kReduce, "the graph of a step"}, [] {});
  }
  return values_.clone();  // the next launch writes them again
}

void StepGraph::Record(const std::vector<WeighedBatch>& batches, const at::Tensor& numbers) {
  batches_.clear();
  for (const WeighedBatch& weighed : batches) {
    const Batch& batch = weighed.batch;
    batches_.push_back({{at::empty_like(batch.inputs), at::empty_like(batch.targets)},
                        weighed.divisor,
                        weighed.weight.defined() ? at::empty_like(weighed.weight) : at::Tensor()});
  }
  numbers_ = at::empty_like(numbers);
  values_ = at::empty({kToldCount}, numbers.options());
  auto graph = fsdp::make_device_graph(world_.device);
  graph->capture([this] { values_.copy_(body_.Do(batches_, numbers_)); });
  graph_ = std::move(graph);
}

void StepGraph::Give(const std::vector<WeighedBatch>& batches, const at::Tensor& numbers) {
  for (size_t i = 0; i < batches.size(); ++i) {
    batches_[i].batch.inputs.copy_(batches[i].batch.inputs);
    batches_[i].batch.targets.copy_(batches[i].batch.targets);
    if (batches[i].weight.defined()) {
      batches_[i].weight.copy_(batches[i].weight);
    }
  }
  numbers_.copy_(numbers);
}

}  // namespace fsdprun::worker
