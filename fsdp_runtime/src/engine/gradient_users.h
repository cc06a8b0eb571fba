#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace fsdp {

class ParamGroup;

/// What uses the gradients of groups within the backward, as soon as they have been reduced: an
/// optimizer in backward, or a user's hook. Thread: the one that runs the backward.
class GradientUser {
 public:
  virtual ~GradientUser() = default;
  /// The group's gradient is there, the group is resharded on all ranks, and all of them know which
  /// parameters have a gradient. What it throws, the backward throws at its end.
  virtual void use(ParamGroup& group) = 0;
  /// A backward in which it has been called has ended without an error.
  virtual void end_backward() {}
};

/// A user's hook: called with each parameter that has a gradient, as a leaf that shows it.
class ParameterHook : public GradientUser {
 public:
  using Function = std::function<void(const std::string& fqn, at::Tensor parameter)>;
  explicit ParameterHook(Function hook) : hook_(std::move(hook)) {}
  /// Of parameter `index` of `group`. Those without a name are not told of.
  void add_name(const ParamGroup* group, size_t index, std::string fqn);
  void use(ParamGroup& group) override;

 private:
  const Function hook_;
  std::map<std::pair<const ParamGroup*, size_t>, std::string> names_;  // looked up only
};

}  // namespace fsdp
