#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <fsdp/grad_scaler.h>
#include <torch/optim/optimizer.h>

#include <cmath>
#include <utility>

#include "fsdp_runtime/src/optim/scaled_gradients.h"

namespace fsdp {
namespace {

/// The host may read what is on the CPU at once, so it waits; devices have streams.
at::Tensor copy_on(const at::Tensor& scalar, c10::Device device) {
  return scalar.to(device, /*non_blocking=*/!device.is_cpu());
}

}  // namespace

GradScaler::GradScaler(GradScalerOptions options) : options_(std::move(options)) {
  if (options_.enabled) {
    check_options();
  }
}

void GradScaler::check_options() const {
  const auto check = [](const char* name, double value, bool is_in_range, const char* range) {
    TORCH_CHECK(is_in_range, "GradScaler: ", name, " is ", value, "; expected ", range);
  };
  // A NaN is in no range.
  check("init_scale", options_.init_scale,
        options_.init_scale > 0 && std::isfinite(options_.init_scale), "a positive number");
  check("growth_factor", options_.growth_factor, options_.growth_factor > 1, "more than 1");
  check("backoff_factor", options_.backoff_factor,
        options_.backoff_factor > 0 && options_.backoff_factor < 1, "one in (0, 1)");
  check("growth_interval", static_cast<double>(options_.growth_interval),
        options_.growth_interval >= 1, "at least 1");
}

void GradScaler::set_growth_factor(double new_factor) {
  TORCH_CHECK(new_factor > 1, "GradScaler: growth_factor is ", new_factor,
              "; expected more than 1");
  options_.growth_factor = new_factor;
}

void GradScaler::set_backoff_factor(double new_factor) {
  TORCH_CHECK(new_factor > 0 && new_factor < 1, "GradScaler: backoff_factor is ", new_factor,
              "; expected one in (0, 1)");
  options_.backoff_factor = new_factor;
}

void GradScaler::set_growth_interval(int64_t new_interval) {
  TORCH_CHECK(new_interval >= 1, "GradScaler: growth_interval is ", new_interval,
              "; expected at least 1");
  options_.growth_interval = new_interval;
}

void GradScaler::start_on(c10::Device device) {
  if (!scale_.defined()) {
    const auto on_device = at::TensorOptions().device(device);
    scale_ = at::full({}, options_.init_scale, on_device.dtype(at::kFloat));
    growth_tracker_ = at::full({}, init_growth_tracker_, on_device.dtype(at::kInt));
  }
}

at::Tensor GradScaler::scale(const at::Tensor& output) {
  if (!options_.enabled) {
    return output;
  }
  TORCH_CHECK(output.defined(), "GradScaler.scale: the output is undefined");
  start_on(output.device());
  return output * copy_on(scale_, output.device());
}

std::vector<at::Tensor> GradScaler::scale(const std::vector<at::Tensor>& outputs) {
  std::vector<at::Tensor> scaled;
  scaled.reserve(outputs.size());
  for (const at::Tensor& output : outputs) {
    scaled.push_back(scale(output));
  }
  return scaled;
}

void GradScaler::check_started(const char* method) const {
  TORCH_CHECK(scale_.defined(), "GradScaler.", method,
              ": there is no scale yet; call scale(loss).backward() first");
}

at::Tensor GradScaler::inverse_scale(c10::Device device) const {
  // As Python does: in double, and rounded once.
  return copy_on(scale_.to(at::kDouble).reciprocal().to(at::kFloat), device);
}

GradScaler::State& GradScaler::begin_unscale(const void* key) {
  check_started("unscale_");
  State& state = states_[key];
  TORCH_CHECK(state.stage != Stage::kUnscaled,
              "GradScaler.unscale_: unscale_() has already been called on this optimizer since the "
              "last update(); call it once, when all gradients are there");
  TORCH_CHECK(
      state.stage != Stage::kStepped,
      "GradScaler.unscale_: unscale_() is being called after step(); call update() between");
  return state;
}

GradScaler::State& GradScaler::begin_step(const void* key) {
  check_started("step");
  State& state = states_[key];
  TORCH_CHECK(state.stage != Stage::kStepped,
              "GradScaler.step: step() has already been called on this optimizer since the last "
              "update(); call update() after the step of all optimizers");
  return state;
}

at::Tensor GradScaler::agreed(const at::Tensor& found, const Target& target) const {
  const bool has_gradient = !target.gradients.empty();
  at::Tensor both = at::cat({found, at::full({1}, has_gradient ? 1 : 0, found.options())});
  if (options_.process_group) {
    both = both.to(options_.process_group->device());
    share_found(both, *options_.process_group);
  } else {
    both = found_by_some(std::move(both), target.largest);
  }
  // The host waits for a device only on a rank that has none.
  const bool some_rank_has = has_gradient || both[1].item<float>() > 0;
  return some_rank_has ? both.narrow(0, 0, 1) : at::Tensor();
}

void GradScaler::unscale(State& state, const Target& target) {
  state.found_inf = agreed(fsdp::unscale(target.gradients, inverse_scale(target.device)), target);
  state.groups = target.groups;
  state.stage = Stage::kUnscaled;
}

bool GradScaler::is_unscaled_with_module(State& state, const Target& target) const {
  for (const auto& [key, module] : states_) {
    const size_t unscaled = module.is_module ? target.count_in(module.groups) : 0;
    TORCH_CHECK(unscaled == 0 || unscaled == target.groups.size(),
                "GradScaler: unscale_() of a module has been called, which has only some of the "
                "units of this optimizer; call it on a module around all of them, or on the "
                "optimizer");
    if (unscaled > 0) {
      state.found_inf = module.found_inf;
      state.stage = Stage::kUnscaled;
      return true;
    }
  }
  return false;
}

void GradScaler::unscale_unless_done(State& state, const Target& target) {
  if (state.stage == Stage::kReady && !is_unscaled_with_module(state, target)) {
    unscale(state, target);
  }
  TORCH_CHECK(state.found_inf.defined(),
              "GradScaler.step: no inf checks were recorded for this optimizer, because none of "
              "its parameters has a gradient; call it after the backward of a scaled loss");
}

template <class Optimizer>
void GradScaler::unscale_gradients_of(Optimizer& optimizer) {
  if (!options_.enabled) {
    return;
  }
  State& state = begin_unscale(&optimizer);
  const Target target = target_of(optimizer);
  TORCH_CHECK(!is_unscaled_with_module(state, target),
              "GradScaler.unscale_: the gradients of this optimizer have been unscaled with a "
              "module's; call one of them only");
  unscale(state, target);
}

void GradScaler::unscale_(AdamW& optimizer) { unscale_gradients_of(optimizer); }

void GradScaler::unscale_(torch::optim::Optimizer& optimizer) { unscale_gradients_of(optimizer); }

void GradScaler::unscale_(const FSDPModule& module) {
  if (!options_.enabled) {
    return;
  }
  TORCH_CHECK(module, "GradScaler.unscale_: empty FSDPModule handle");
  State& state = begin_unscale(module.state().get());
  const Target target = target_of(module);
  for (const auto& [key, other] : states_) {
    TORCH_CHECK(target.count_in(other.groups) == 0,
                "GradScaler.unscale_: some gradients of the module have been unscaled with an "
                "optimizer's, or with another module's; call one of them only");
  }
  state.is_module = true;
  unscale(state, target);
}

void GradScaler::step(AdamW& optimizer) {
  if (!options_.enabled) {
    optimizer.step();
    return;
  }
  optimizer.check_steps_behind_backward();
  State& state = begin_step(&optimizer);
  bool is_scaled = false;  // as it is when the optimizer gets it
  if (state.stage == Stage::kReady) {
    const Target target = target_of(optimizer);
    is_scaled = !is_unscaled_with_module(state, target);
    if (is_scaled) {
      state.found_inf = agreed(has_non_finite(target.gradients, target.device), target);
      if (state.found_inf.defined()) {
        state.groups = target.groups;  // the step divides them
      }
    }
  }
  TORCH_CHECK(state.found_inf.defined(),
              "GradScaler.step: no inf checks were recorded for this optimizer, because none of "
              "its parameters has a gradient; call it after the backward of a scaled loss");
  const c10::Device device = optimizer.lrs_.front().device();
  GradScaling scaling{.grad_scale = {}, .found_inf = state.found_inf.to(device)};
  double inv_scale = 1;
  if (is_scaled && device.is_cpu()) {
    inv_scale = inverse_scale(device).item<float>();
  } else if (is_scaled) {
    scaling.grad_scale = copy_on(scale_, device);
  }
  optimizer.step(scaling, inv_scale);
  state.stage = Stage::kStepped;
}

at::Tensor GradScaler::step(torch::optim::Optimizer& optimizer,
                            const std::function<at::Tensor()>& closure) {
  if (!options_.enabled) {
    return optimizer.step(closure);
  }
  TORCH_CHECK(!closure,
              "GradScaler.step: closure use is not supported if scaling is enabled; "
              "compute the gradients before, and pass none");
  State& state = begin_step(&optimizer);
  unscale_unless_done(state, target_of(optimizer));
  at::Tensor result;
  if (state.found_inf.item<float>() == 0) {
    result = optimizer.step();
  }
  state.stage = Stage::kStepped;
  return result;
}

void GradScaler::step(const FSDPModule& module, const std::function<void()>& update) {
  TORCH_CHECK(update, "GradScaler.step: no update given");
  if (!options_.enabled) {
    update();
    return;
  }
  TORCH_CHECK(module, "GradScaler.step: empty FSDPModule handle");
  State& state = begin_step(module.state().get());
  unscale_unless_done(state, target_of(module));
  if (state.found_inf.item<float>() == 0) {
    update();
  }
  state.stage = Stage::kStepped;
}

void GradScaler::update() {
  if (!options_.enabled) {
    return;
  }
  check_started("update");
  at::Tensor found;
  for (const auto& [key, state] : states_) {
    if (state.found_inf.defined()) {
      const at::Tensor here = copy_on(state.found_inf, scale_.device());
      found = found.defined() ? at::maximum(found, here) : here;
    }
  }
  TORCH_CHECK(found.defined(),
              "GradScaler.update: no inf checks were recorded prior to update; "
              "call step() or unscale_() first");
  at::_amp_update_scale_(scale_, growth_tracker_, found, options_.growth_factor,
                         options_.backoff_factor, options_.growth_interval);
  states_.clear();
}

void GradScaler::update(double new_scale) {
  if (!options_.enabled) {
    return;
  }
  check_started("update");
  scale_.fill_(new_scale);
  states_.clear();
}

double GradScaler::get_scale() const {
  if (!options_.enabled) {
    return 1;
  }
  return scale_.defined() ? scale_.item<float>() : options_.init_scale;
}

}  // namespace fsdp
