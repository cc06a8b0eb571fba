#pragma once

// What steps in a case: an optimizer, and the scaler that is in front of it.

#include <fsdp/grad_scaler.h>
#include <fsdp/optim.h>
#include <torch/optim/sgd.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

namespace parity_rows {

class Optimizer {
 public:
  /// Of {"kind": "adamw" or "sgd", "lr": rate, "in_backward": bool, "groups": [{"suffix": end of
  /// names, "lr": rate, "weight_decay": rate}]}.
  void make(const fsdp::FSDPModule& root, const nlohmann::json& options);
  void step();
  void zero_grad(bool in_place);

  /// Of {"init_scale": number, "growth_interval": number}.
  void make_scaler(const nlohmann::json& options);
  /// As it is without a scaler.
  at::Tensor scale(const at::Tensor& loss);
  void unscale();
  /// What it is from now on, in float64.
  at::Tensor update_scale();

 private:
  std::shared_ptr<fsdp::AdamW> adamw_;
  std::optional<torch::optim::SGD> sgd_;
  std::optional<fsdp::GradScaler> scaler_;
};

}  // namespace parity_rows
