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
  if (units_.empty()) {
    return;
  }
  const ParamGroup& first = *units_.front().group;
  const c10::Device device = first.store().shard().device();
  for (const MomentumUnit& unit : units_) {
    const ShardStore& store = unit.group->store();
    TORCH_CHECK(store.shard().device() == device, optimizer_, ": the shard of ",
                first.store().fqn(0), " is on ", device, ", that of ", store.fqn(0), " on ",
                store.shard().device(),
                "; give all units one offload_policy, or make an optimizer for each");
  }
  counts_.emplace(params_, device);
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

MomentumState::Place MomentumState::place_of(const ParamRef& param) const {
  const auto unit = std::find_if(units_.begin(), units_.end(), [&param](const MomentumUnit& one) {
    return one.group.get() == param.group;
  });
  if (unit == units_.end()) {
    return {};
  }
  const auto found = std::find(unit->indices.begin(), unit->indices.end(), param.index);
  return found == unit->indices.end()
             ? Place{}
             : Place{&*unit, static_cast<size_t>(found - unit->indices.begin())};
}

std::vector<LocalShard> MomentumState::buffers(const std::vector<bool>& has_buffer) const {
  std::vector<LocalShard> parts;
  for (const ParamRef& param : params_below(*root_.state())) {
    const Place place = place_of(param);
    if (place.unit != nullptr && has_buffer[place.unit->params[place.index].param_group]) {
      parts.push_back(part_of(param, at::Tensor()));
      parts.back().local = place.unit->part_of(place.unit->buffer, place.index);
    }
  }
  return parts;
}

bool MomentumState::is_left_out(const at::Tensor& found_inf) const {
  check_whole();
  if (found_inf.defined() && !units_.empty()) {
    const c10::Device device = units_.front().group->store().shard().device();
    TORCH_CHECK(found_inf.numel() == 1 && found_inf.scalar_type() == at::kFloat &&
                    found_inf.device() == device,
                optimizer_, ": found_inf is a tensor of ", found_inf.sizes(), ", ",
                found_inf.scalar_type(), " on ", found_inf.device(),
                "; expected one element, Float, on ", device);
  }
  for (const MomentumUnit& unit : units_) {
    unit.group->settle_gradient();
  }
  return found_inf.defined() && found_inf.is_cpu() && found_inf.item<float>() != 0;
}

void MomentumState::begin_update() {
  const std::vector<FSDPModule> units = root_.units();
  for (const FSDPModule& unit : units) {
    unit.state()->reshard();  // what is gathered would be stale
  }
  for (const FSDPModule& unit : units) {
    unit.state()->begin_update();
  }
  is_torn_ = true;
}

void MomentumState::end_update(const at::Tensor& kept) {
  if (counts_) {
    std::vector<uint8_t> part(params_, 0);
    for (const MomentumUnit& unit : units_) {
      for (size_t p = 0; p < unit.params.size(); ++p) {
        part[unit.first + p] = takes_part(unit, p) ? 1 : 0;
      }
    }
    counts_->add(part, kept);
  }
  for (const FSDPModule& unit : root_.units()) {
    unit.state()->end_update();
  }
  is_torn_ = false;
}

void MomentumState::zero_grad() {
  for (const MomentumUnit& unit : units_) {
    unit.group->settle_backward();
  }
  for (const MomentumUnit& unit : units_) {
    if (unit.has_all()) {
      unit.group->drop_gradient();
    } else {
      unit.group->drop_gradients(unit.indices);
    }
  }
}

void MomentumState::check_whole() const {
  TORCH_CHECK(!is_torn_, optimizer_,
              ": a step has failed in the middle, so only some of the parameters have done it; "
              "load parameters and state, from a checkpoint for one, and set their step counts");
}

std::vector<int64_t> MomentumState::updates_done() const {
  check_whole();
  return counts_ ? counts_->read() : std::vector<int64_t>();
}

std::vector<int64_t> MomentumState::parameter_steps() const {
  const std::vector<int64_t> done = updates_done();
  std::vector<int64_t> steps;
  for (const ParamRef& param : params_below(*root_.state())) {
    const Place place = place_of(param);
    steps.push_back(place.unit != nullptr ? done[place.number()] : 0);
  }
  return steps;
}

void MomentumState::set_parameter_steps(const std::vector<int64_t>& steps) {
  const std::vector<ParamRef> params = params_below(*root_.state());
  TORCH_CHECK(steps.size() == params.size(), optimizer_, ": step counts of ", steps.size(),
              " parameters given, there are ", params.size());
  std::vector<int64_t> by_number(params_, 0);
  for (size_t i = 0; i < params.size(); ++i) {
    if (const Place place = place_of(params[i]); place.unit != nullptr) {
      TORCH_CHECK(steps[i] >= 0, optimizer_, ": ", params[i].fqn, " cannot have done ", steps[i],
                  " steps");
      by_number[place.number()] = steps[i];
    }
  }
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
