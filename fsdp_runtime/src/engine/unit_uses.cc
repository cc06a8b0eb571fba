#include "fsdp_runtime/src/engine/unit_uses.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>

namespace fsdp {

void UnitUses::add(const std::shared_ptr<torch::autograd::Node>& node, int64_t forward_id) {
  std::erase_if(uses_, [](const Use& use) { return use.node.expired(); });
  uses_.push_back({node, forward_id});
}

bool UnitUses::are_several_in_backward() const {
  const auto* graph = torch::autograd::get_current_graph_task_nodes_in_graph();
  return graph != nullptr && std::count_if(uses_.begin(), uses_.end(), [graph](const Use& use) {
                               const std::shared_ptr<torch::autograd::Node> node = use.node.lock();
                               return node && graph->count(node.get()) != 0;
                             }) > 1;
}

UnitUses::Left UnitUses::end(const torch::autograd::Node& ended) {
  const auto* graph = torch::autograd::get_current_graph_task_nodes_in_graph();
  const int64_t backward = torch::autograd::get_current_graph_task_id();
  const auto own = std::find_if(uses_.begin(), uses_.end(), [&ended](const Use& use) {
    return use.node.lock().get() == &ended;
  });
  TORCH_INTERNAL_ASSERT(graph != nullptr && own != uses_.end());
  own->ended_in = backward;
  Left left = Left::kNone;
  for (const Use& use : uses_) {
    const std::shared_ptr<torch::autograd::Node> node = use.node.lock();
    if (use.ended_in == backward || !node || graph->count(node.get()) == 0) {
      continue;
    }
    if (use.forward_id == own->forward_id) {
      return Left::kInSameForward;
    }
    left = Left::kInOtherForward;
  }
  return left;
}

}  // namespace fsdp
