#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace torch::autograd {
struct Node;
}

namespace fsdp {

/// The uses of one unit in autograd graphs that are alive: one for each call in forward. A backward
/// may pass through several of them, of one forward of the root or of several, and autograd adds up
/// what they give to a parameter before it hands over the gradient. So the unit is reduced after
/// the last of them, and which one that is depends on the graph alone, like the order of all
/// reductions.
class UnitUses {
 public:
  /// `node` is in a graph if and only if the use is. Kept weakly.
  void add(const std::shared_ptr<torch::autograd::Node>& node, int64_t forward_id);

  /// Whether the graph of the running backward has several of them.
  bool are_several_in_backward() const;

  enum class Left { kNone, kInSameForward, kInOtherForward };
  /// To be called in the backward of the use that was added with `ended`: where the running
  /// backward will pass through the unit again. A use whose end is never reported counts until the
  /// backward ends.
  Left end(const torch::autograd::Node& ended);

 private:
  struct Use {
    std::weak_ptr<torch::autograd::Node> node;
    int64_t forward_id = 0;
    int64_t ended_in = -1;  // the backward that has passed through it last
  };
  std::vector<Use> uses_;  // few
};

}  // namespace fsdp
