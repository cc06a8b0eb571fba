#include "fsdp_runtime/src/replicate/replica_hooks.h"

#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <string_view>
#include <typeinfo>
#include <utility>

#include "fsdp_runtime/src/replicate/bucket_reducer.h"

namespace fsdp {
namespace {

class AccumulatedHook : public torch::autograd::FunctionPostHook {
 public:
  AccumulatedHook(std::weak_ptr<BucketReducer> reducer, size_t index)
      : reducer_(std::move(reducer)), index_(index) {}
  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& outputs,
      const torch::autograd::variable_list& /*inputs*/) override {
    if (const std::shared_ptr<BucketReducer> reducer = reducer_.lock()) {
      reducer->on_gradient(index_);
    }
    return outputs;
  }

 private:
  const std::weak_ptr<BucketReducer> reducer_;
  const size_t index_;
};

class BackwardBeginHook : public torch::autograd::FunctionPreHook {
 public:
  explicit BackwardBeginHook(std::weak_ptr<BucketReducer> reducer) : reducer_(std::move(reducer)) {}
  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& gradients) override {
    if (const std::shared_ptr<BucketReducer> reducer = reducer_.lock()) {
      reducer->on_backward();
    }
    return gradients;
  }

 private:
  const std::weak_ptr<BucketReducer> reducer_;
};

}  // namespace

ReplicaHooks::ReplicaHooks(const std::vector<NamedParameter>& params,
                           const std::weak_ptr<BucketReducer>& reducer) {
  hooks_.reserve(params.size());
  for (const NamedParameter& param : params) {
    Hook hook{torch::autograd::impl::grad_accumulator(param.tensor)};
    hook.key =
        hook.accumulator->add_post_hook(std::make_unique<AccumulatedHook>(reducer, hooks_.size()));
    hooks_.push_back(std::move(hook));
  }
}

ReplicaHooks::~ReplicaHooks() {
  for (const Hook& hook : hooks_) {
    hook.accumulator->del_post_hook(hook.key);
  }
}

bool ReplicaHooks::reaches_any() const {
  const auto* restriction = torch::autograd::get_current_graph_task_exec_info();
  return restriction == nullptr || restriction->empty() ||
         std::any_of(hooks_.begin(), hooks_.end(), [restriction](const Hook& hook) {
           const auto found = restriction->find(hook.accumulator.get());
           return found != restriction->end() && found->second.needed_;
         });
}

std::vector<size_t> ReplicaHooks::unreached() const {
  const auto* graph = torch::autograd::get_current_graph_task_nodes_in_graph();
  std::vector<size_t> unreached;
  for (size_t i = 0; graph != nullptr && i < hooks_.size(); ++i) {
    if (graph->count(hooks_[i].accumulator.get()) == 0) {
      unreached.push_back(i);
    }
  }
  // By the name of its class, because node->name() demangles it, for each node of the graph.
  const auto is_checkpoint = [](const torch::autograd::Node* node) {
    return std::string_view(typeid(*node).name()).find("CheckpointNode") != std::string_view::npos;
  };
  if (!unreached.empty() && std::any_of(graph->begin(), graph->end(), is_checkpoint)) {
    unreached.clear();
  }
  return unreached;
}

void watch_outputs(const std::vector<at::Tensor>& outputs,
                   const std::weak_ptr<BucketReducer>& reducer) {
  for (const at::Tensor& output : outputs) {
    if (output.defined() && output.requires_grad() && output.grad_fn() != nullptr) {
      output.grad_fn()->add_tensor_pre_hook(std::make_unique<BackwardBeginHook>(reducer));
    }
  }
}

bool is_nested_backward() { return torch::autograd::get_current_node() != nullptr; }

}  // namespace fsdp
