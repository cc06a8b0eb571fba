// AdamW that steps within the backward.

#include <ATen/ATen.h>

#include <algorithm>

#include "fsdp_runtime/src/engine/gradient_users.h"
#include "fsdp_runtime/src/engine/module_state.h"
#include "fsdp_runtime/src/optim/adamw_state.h"

namespace fsdp {

/// Weakly: the units have it, and the optimizer the units.
class AdamW::InBackward : public GradientUser {
 public:
  explicit InBackward(std::weak_ptr<AdamW> optimizer) : optimizer_(std::move(optimizer)) {}
  void use(ParamGroup& group) override {
    if (const std::shared_ptr<AdamW> optimizer = optimizer_.lock()) {
      optimizer->step_in_backward(group);
    }
  }
  void end_backward() override {
    if (const std::shared_ptr<AdamW> optimizer = optimizer_.lock()) {
      optimizer->is_torn_ = false;
    }
  }

 private:
  const std::weak_ptr<AdamW> optimizer_;
};

void AdamW::check_steps_behind_backward() const {
  TORCH_CHECK(!steps_in_backward_,
              "AdamW: gradients of a scaled loss have been used in the backward, by "
              "apply_optimizer_in_backward(), before they could be unscaled; train without a "
              "scaler, or step behind the backward");
}

void AdamW::step_in_backward(ParamGroup& group) {
  const auto found = std::find_if(units_.begin(), units_.end(), [&group](const auto& state) {
    return state->group.get() == &group;
  });
  TORCH_INTERNAL_ASSERT(found != units_.end());
  const UnitState& state = **found;
  // Until the backward ends, some of the parameters have done this step and others have not.
  if (const int64_t backward = group.context()->backward_id(); backward != backward_) {
    check_whole();
    backward_ = backward;
    is_torn_ = true;
  }
  updates_.reset();
  group.begin_update();
  update(*make_updates({*found}), {}, /*inv_scale=*/1);
  group.end_update();
  state.drop_gradients();
}

RemovableHandle apply_optimizer_in_backward(const std::shared_ptr<AdamW>& optimizer) {
  TORCH_CHECK(optimizer, "apply_optimizer_in_backward: the optimizer is null");
  TORCH_CHECK(!optimizer->steps_in_backward_,
              "apply_optimizer_in_backward: this optimizer steps in the backward already");
  for (const std::shared_ptr<AdamW::UnitState>& state : optimizer->units_) {
    TORCH_CHECK(!state->group->context()->in_backward(),
                "apply_optimizer_in_backward: called in a backward; call it before");
  }
  const auto user = std::make_shared<AdamW::InBackward>(optimizer);
  std::vector<std::weak_ptr<ParamGroup>> groups;
  for (const std::shared_ptr<AdamW::UnitState>& state : optimizer->units_) {
    state->group->add_gradient_user(user);
    groups.push_back(state->group);
  }
  optimizer->steps_in_backward_ = true;
  return RemovableHandle([known = std::weak_ptr<AdamW>(optimizer), user, groups] {
    for (const std::weak_ptr<ParamGroup>& weak : groups) {
      if (const std::shared_ptr<ParamGroup> group = weak.lock()) {
        group->remove_gradient_user(user);
      }
    }
    if (const std::shared_ptr<AdamW> optimizer = known.lock()) {
      optimizer->steps_in_backward_ = false;
    }
  });
}

}  // namespace fsdp
