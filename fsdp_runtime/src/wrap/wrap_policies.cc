#include <c10/util/Exception.h>
#include <fsdp/wrap.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>

#include <algorithm>
#include <utility>

namespace fsdp {

WrapPolicy::WrapPolicy(Wraps wraps, Descends descends)
    : wraps_(std::move(wraps)), descends_(std::move(descends)) {
  TORCH_CHECK(wraps_, "WrapPolicy: the function that decides is empty");
}

WrapPolicy always_wrap_policy() {
  return WrapPolicy([](const torch::nn::Module&, int64_t) -> WrapDecision { return true; });
}

WrapPolicy size_based_auto_wrap_policy(SizeBasedOptions options) {
  if (!options.force_leaf_modules) {
    options.force_leaf_modules = module_types<torch::nn::MultiheadAttention>();
  }
  const auto wraps = [options](const torch::nn::Module& module, int64_t numel) -> WrapDecision {
    return numel >= options.min_num_params &&
           !(options.exclude_wrap_modules && options.exclude_wrap_modules(module));
  };
  const auto descends = [options](const torch::nn::Module& module, int64_t numel) {
    return numel >= options.min_num_params && !options.force_leaf_modules(module);
  };
  return WrapPolicy(wraps, descends);
}

WrapPolicy lambda_auto_wrap_policy(std::function<bool(const torch::nn::Module&)> wraps) {
  TORCH_CHECK(wraps, "lambda_auto_wrap_policy: the function is empty");
  return WrapPolicy([wraps = std::move(wraps)](const torch::nn::Module& module,
                                               int64_t) -> WrapDecision { return wraps(module); });
}

WrapPolicy custom_policy(std::function<WrapDecision(const torch::nn::Module&)> decide) {
  TORCH_CHECK(decide, "custom_policy: the function is empty");
  return WrapPolicy([decide = std::move(decide)](const torch::nn::Module& module, int64_t) {
    return decide(module);
  });
}

WrapPolicy or_policy(std::vector<WrapPolicy> policies) {
  const auto wraps = [policies](const torch::nn::Module& module, int64_t numel) {
    for (const WrapPolicy& policy : policies) {
      if (WrapDecision decision = policy.wraps(module, numel); decision.wraps) {
        return decision;
      }
    }
    return WrapDecision(false);
  };
  const auto descends = [policies](const torch::nn::Module& module, int64_t numel) {
    return std::any_of(policies.begin(), policies.end(),
                       [&](const WrapPolicy& policy) { return policy.descends(module, numel); });
  };
  return WrapPolicy(wraps, descends);
}

}  // namespace fsdp
