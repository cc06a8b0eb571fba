#include "tests/parity/rows/optimizer.h"

#include <ATen/ATen.h>

#include <string>
#include <vector>

namespace parity_rows {
namespace {

using nlohmann::json;

std::vector<fsdp::AdamWParamGroup> groups_of(const fsdp::FSDPModule& root, const json& groups) {
  std::vector<fsdp::AdamWParamGroup> all;
  for (const json& group : groups) {
    fsdp::AdamWParamGroup& added = all.emplace_back();
    for (const auto& [name, leaf] : root.named_parameters()) {
      if (name.ends_with(group.at("suffix").get<std::string>())) {
        added.params.push_back(name);
      }
    }
    added.lr = group.at("lr").get<double>();
    added.weight_decay = group.at("weight_decay").get<double>();
  }
  return all;
}

}  // namespace

void Optimizer::make(const fsdp::FSDPModule& root, const json& options) {
  const double lr = options.at("lr").get<double>();
  if (options.at("kind") == "sgd") {
    sgd_.emplace(root.parameters(), torch::optim::SGDOptions(lr).momentum(0.9));
    return;
  }
  const fsdp::AdamWOptions defaults = {.lr = lr, .weight_decay = 0.1};
  adamw_ = options.contains("groups") ? std::make_shared<fsdp::AdamW>(
                                            root, groups_of(root, options.at("groups")), defaults)
                                      : std::make_shared<fsdp::AdamW>(root, defaults);
  if (options.value("in_backward", false)) {
    fsdp::apply_optimizer_in_backward(adamw_);
  }
}

void Optimizer::step() {
  if (sgd_) {
    sgd_->step();
  } else if (scaler_) {
    scaler_->step(*adamw_);
  } else {
    adamw_->step();
  }
}

void Optimizer::zero_grad(bool in_place) {
  if (sgd_) {
    sgd_->zero_grad(!in_place);
  } else {
    adamw_->zero_grad();
  }
}

void Optimizer::make_scaler(const json& options) {
  fsdp::GradScalerOptions how;
  how.init_scale = options.at("init_scale").get<double>();
  how.growth_interval = options.value("growth_interval", int64_t{2000});
  scaler_.emplace(how);
}

at::Tensor Optimizer::scale(const at::Tensor& loss) {
  return scaler_ ? scaler_->scale(loss) : loss;
}

void Optimizer::unscale() { scaler_->unscale_(*adamw_); }

at::Tensor Optimizer::update_scale() {
  scaler_->update();
  return at::scalar_tensor(scaler_->get_scale(), at::kDouble);
}

}  // namespace parity_rows
