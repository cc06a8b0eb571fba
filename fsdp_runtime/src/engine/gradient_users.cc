#include "fsdp_runtime/src/engine/gradient_users.h"

#include <ATen/ATen.h>
#include <fsdp/fully_shard.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "fsdp_runtime/src/engine/module_state.h"
#include "fsdp_runtime/src/engine/module_walk.h"
#include "fsdp_runtime/src/engine/uses_exchange.h"

namespace fsdp {

void ParameterHook::add_name(const ParamGroup* group, size_t index, std::string fqn) {
  names_.emplace(std::pair(group, index), std::move(fqn));
}

void ParameterHook::use(ParamGroup& group) {
  group.prepare_to_write();
  const std::vector<at::Tensor> leaves = group.leaves();
  group.show_gradients();
  for (size_t i = 0; i < leaves.size(); ++i) {
    const auto name = names_.find({&group, i});
    if (name != names_.end() && group.has_gradient(i)) {
      hook_(name->second, leaves[i]);
    }
  }
}

void ParamGroup::add_gradient_user(std::shared_ptr<GradientUser> user) {
  users_.push_back(std::move(user));
  reducer_.set_gives_memory_back(true);
}

void ParamGroup::remove_gradient_user(const std::shared_ptr<GradientUser>& user) {
  std::erase(users_, user);
  reducer_.set_gives_memory_back(!users_.empty());
}

void ParamGroup::use_gradient() {
  context_->finish_reductions_through(reducer_);
  reducer_.arrive();
  reshard();
  UsesExchange uses({this});  // who has the others' answers knows that they do not read its shard
  uses.finish();
  used_in_ = context_->backward_id();
  at::NoGradGuard no_grad;
  for (const std::shared_ptr<GradientUser>& user : std::vector(users_)) {
    if (!reducer_.gradient().defined() || reducer_.hook_error() != nullptr) {
      break;  // a user has dropped it, or an all-reduce hook has thrown
    }
    context_->add_user_of_backward(user);
    try {
      user->use(*this);
      if (leaves_) {
        leaves_->take_replaced();  // the next user is to see it
      }
    } catch (...) {
      context_->keep_hook_error(std::current_exception());  // peers must not wait for this rank
    }
  }
  if (leaves_) {
    leaves_->take_back(reducer_, uses_);
  }
  bool is_kept = false;
  for (size_t i = 0; i < size(); ++i) {
    is_kept = is_kept || has_gradient(i);
  }
  if (!is_kept) {
    drop_gradient();
  }
}

void ParamGroup::check_not_used_up() const {
  TORCH_CHECK(
      used_in_ != context_->backward_id(), "fsdp: the unit of ", store_.fqn(0),
      " is used again in a backward after its optimizer or hook has had its gradient, which "
      "was not complete then, and has changed its parameters. Step behind the backward, or "
      "let backward come to the unit once");
}

void RunContext::add_to_use(ParamGroup* group) {
  std::erase(to_use_, group);
  to_use_.push_back(group);
}

void RunContext::use_gradients() {
  while (is_last_backward_) {
    // Ahead of the mark: of earlier backwards, and this one may still add to them.
    const auto mark = std::find(to_use_.begin(), to_use_.end(), nullptr);
    const auto complete =
        std::find_if(mark == to_use_.end() ? to_use_.begin() : mark + 1, to_use_.end(),
                     [](const ParamGroup* group) {
                       return !group->collects_gradients() && !group->has_row_sum();
                     });
    if (complete == to_use_.end()) {
      return;
    }
    ParamGroup* const group = *complete;
    to_use_.erase(complete);
    group->use_gradient();
  }
}

void RunContext::add_user_of_backward(const std::shared_ptr<GradientUser>& user) {
  if (std::find(users_.begin(), users_.end(), user) == users_.end()) {
    users_.push_back(user);
  }
}

void RunContext::keep_hook_error(std::exception_ptr error) {
  if (hook_error_ == nullptr) {
    hook_error_ = std::move(error);
  }
}

void RunContext::end_uses() {
  for (const std::shared_ptr<GradientUser>& user : std::exchange(users_, {})) {
    if (hook_error_ == nullptr) {
      user->end_backward();
    }
  }
}

RemovableHandle FSDPModule::register_post_accumulate_grad_hook(
    std::function<void(const std::string& fqn, at::Tensor parameter)> hook, bool recurse) const {
  TORCH_CHECK(state_, "fsdp: empty FSDPModule handle; use the one that fully_shard returns");
  TORCH_CHECK(hook, "register_post_accumulate_grad_hook: the hook is empty");
  TORCH_CHECK(!state_->context().in_backward(),
              "register_post_accumulate_grad_hook: called in a backward; call it before");
  const auto user = std::make_shared<ParameterHook>(std::move(hook));
  const std::vector<std::shared_ptr<ParamGroup>>& own = state_->groups();
  std::vector<std::weak_ptr<ParamGroup>> groups;
  for (const ParamRef& param : params_below(*state_)) {
    const bool is_own = std::any_of(
        own.begin(), own.end(), [&param](const auto& group) { return group.get() == param.group; });
    if ((!recurse && !is_own) || !param.group->is_trainable()) {
      continue;
    }
    user->add_name(param.group, param.index, param.fqn);
    const std::shared_ptr<ParamGroup> group = param.group->shared_from_this();
    const bool is_known = std::any_of(groups.begin(), groups.end(), [&group](const auto& known) {
      return known.lock() == group;
    });
    if (!is_known) {
      group->leaves();
      group->add_gradient_user(user);
      groups.push_back(group);
    }
  }
  return RemovableHandle([user = std::weak_ptr<GradientUser>(user), groups] {
    for (const std::weak_ptr<ParamGroup>& weak : groups) {
      if (const std::shared_ptr<ParamGroup> group = weak.lock()) {
        group->remove_gradient_user(user.lock());
      }
    }
  });
}

}  // namespace fsdp
