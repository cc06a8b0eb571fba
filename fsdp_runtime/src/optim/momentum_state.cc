#include "fsdp_runtime/src/optim/momentum_state.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "fsdp_runtime/src/engine/module_state.h"
#include "fsdp_runtime/src/engine/module_walk.h"
#include "fsdp_runtime/src/optim/param_groups.h"

namespace fsdp {
namespace {

std::vector<std::string> fqns_of(const std::vector<ParamRef>& params) {
  std::vector<std::string> fqns;
  for (const ParamRef& param : params) {
    fqns.push_back(param.fqn);
  }
  return fqns;
}

}  // namespace

MomentumState::MomentumState(std::string optimizer, FSDPModule root,
                             std::vector<std::vector<std::string>> groups)
    : optimizer_(std::move(optimizer)), root_(std::move(root)), groups_(std::move(groups)) {
  TORCH_CHECK(root_, optimizer_,
              ": empty FSDPModule handle; pass what fully_shard returned for the root");
  at::NoGradGuard no_grad;
  const std::vector<ParamRef> params = params_below(*root_.state());
  const std::vector<std::string> fqns = fqns_of(params);
  const std::vector<std::optional<size_t>> group_of = group_of_params(optimizer_, groups_, fqns);
  for (const FSDPModule& unit : root_.units()) {
    for (const std::shared_ptr<ParamGroup>& group : unit.state()->groups()) {
      MomentumUnit added{group->is_trainable() ? params_in(group, params, group_of) : UnitParams{},
                         {}};
      if (!added.params.empty()) {
        added.first = params_;
        params_ += added.params.size();
        units_.push_back(std::move(added));
      }
    }
  }
  for (const MomentumUnit& unit : units_) {
    list_.push_back(&unit);
  }
  const c10::Device device = one_device(optimizer_, list_);
  if (!units_.empty()) {
    counts_.emplace(params_, device);
  }
}

void MomentumState::check_group(size_t group) const {
  TORCH_CHECK(group < groups_.size(), optimizer_, ": there is no param group ", group,
              "; they are counted from 0, and there are ", groups_.size());
}

const std::vector<std::string>& MomentumState::params(size_t group) const {
  check_group(group);
  return groups_[group];
}

void MomentumState::make_buffers(size_t group) {
  for (MomentumUnit& unit : units_) {
    const bool has_some = std::any_of(unit.params.begin(), unit.params.end(),
                                      [group](const auto& p) { return p.param_group == group; });
    if (has_some && !unit.buffer.defined()) {
      const ShardStore& store = unit.group->store();
      unit.buffer = store.zeros_beside(unit.state_numel,
                                       "the momentum of " + optimizer_ + " for " + store.fqn(0));
    }
  }
}

std::vector<LocalShard> MomentumState::buffers(const std::vector<bool>& has_buffer) const {
  std::vector<LocalShard> parts;
  for (const ParamRef& param : params_below(*root_.state())) {
    const ParamPlace place = place_of(list_, param);
    if (place.unit != nullptr && has_buffer[place.unit->params[place.index].param_group]) {
      parts.push_back(part_of(param, at::Tensor()));
      const at::Tensor& buffer = static_cast<const MomentumUnit*>(place.unit)->buffer;
      parts.back().local = place.unit->part_of(buffer, place.index);
    }
  }
  return parts;
}

bool MomentumState::is_left_out(const at::Tensor& found_inf) const {
  check_whole(optimizer_, is_torn_);
  if (found_inf.defined() && !units_.empty()) {
    const c10::Device device = units_.front().group->store().shard().device();
    TORCH_CHECK(found_inf.numel() == 1 && found_inf.scalar_type() == at::kFloat &&
                    found_inf.device() == device,
                optimizer_, ": found_inf is a tensor of ", found_inf.sizes(), ", ",
                found_inf.scalar_type(), " on ", found_inf.device(),
                "; expected one element, Float, on ", device);
  }
  settle_gradients(list_);
  return found_inf.defined() && found_inf.is_cpu() && found_inf.item<float>() != 0;
}

void MomentumState::begin_update() {
  fsdp::begin_update(root_);
  is_torn_ = true;
}

void MomentumState::end_update(const Participation& participation, const at::Tensor& kept) {
  if (counts_) {
    counts_->add(participation.takes_part, kept);
  }
  fsdp::end_update(root_);
  is_torn_ = false;
}

void MomentumState::zero_grad() { drop_gradients(list_); }

std::vector<int64_t> MomentumState::updates_done() const {
  check_whole(optimizer_, is_torn_);
  return counts_ ? counts_->read() : std::vector<int64_t>();
}

std::vector<int64_t> MomentumState::parameter_steps() const {
  return steps_by_param(root_, list_, updates_done());
}

void MomentumState::set_parameter_steps(const std::vector<int64_t>& steps) {
  const std::vector<int64_t> by_number = steps_by_number(optimizer_, root_, list_, steps);
  if (counts_) {
    counts_->set(by_number);
  }
  is_torn_ = false;
}

DeviceSkip::DeviceSkip(const at::Tensor& found_inf) {
  if (found_inf.defined() && !found_inf.is_cpu()) {
    is_skipped = found_inf.ne(0).reshape({});
    kept = is_skipped.logical_not().to(at::kFloat);
  }
}

}  // namespace fsdp
