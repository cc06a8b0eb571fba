#include <ATen/ATen.h>
#include <fsdp/sgd.h>

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "fsdp_runtime/src/engine/disk_memory.h"
#include "fsdp_runtime/src/engine/module_state.h"
#include "fsdp_runtime/src/optim/momentum_state.h"
#include "fsdp_runtime/src/optim/param_groups.h"
#include "fsdp_runtime/src/optim/pieces.h"

namespace fsdp {

/// Neighbours in a shard that are updated alike; flat.
struct SGDPart {
  at::Tensor param;
  at::Tensor gradient;
  at::Tensor buffer;      // undefined without momentum
  at::Tensor copy;        // for peers; may be undefined
  bool is_first = false;  // the buffer has nothing yet
};

namespace {

/// The kernels of torch.optim.SGD's default path, in the same order.
void update_piece(const SGDPart& part, const SGDOptions& options, int64_t begin, int64_t numel) {
  at::Tensor param = part.param.narrow(0, begin, numel);
  at::Tensor gradient = part.gradient.narrow(0, begin, numel);
  if (options.weight_decay != 0) {
    gradient = gradient.add(param, options.weight_decay);
  }
  if (options.momentum != 0) {
    at::Tensor buffer = part.buffer.narrow(0, begin, numel);
    if (part.is_first) {
      buffer.copy_(gradient);
    } else {
      buffer.mul_(options.momentum).add_(gradient, 1 - options.dampening);
    }
    gradient = options.nesterov ? gradient.add(buffer, options.momentum) : buffer;
  }
  param.add_(gradient, -options.lr);
  if (part.copy.defined()) {
    part.copy.narrow(0, begin, numel).copy_(param);
  }
}

void update_on_cpu(const SGDPart& part, const SGDOptions& options) {
  for_pieces(part.param.numel(), c10::kCPU,
             [&](int64_t begin, int64_t numel) { update_piece(part, options, begin, numel); });
  for (const at::Tensor& used : {part.param, part.gradient, part.buffer}) {
    if (used.defined()) {
      release_pages(used);
    }
  }
}

/// In one call what is of one dtype and param group, and begins its momentum or has one.
void update_on_device(const std::vector<std::pair<size_t, SGDPart>>& parts,
                      const std::vector<SGDOptions>& options, const at::Tensor& kept) {
  struct Lists {
    std::vector<at::Tensor> params, gradients, buffers;
  };
  std::map<std::tuple<at::ScalarType, size_t, bool>, Lists> all;
  for (const auto& [group, part] : parts) {
    Lists& lists = all[{part.param.scalar_type(), group, part.is_first}];
    lists.params.push_back(part.param);
    lists.gradients.push_back(part.gradient);
    if (part.buffer.defined()) {
      lists.buffers.push_back(part.buffer);
    }
  }
  const std::optional<at::Tensor> found_inf =
      kept.defined() ? std::optional<at::Tensor>(1 - kept) : std::nullopt;
  for (const auto& [key, lists] : all) {
    const SGDOptions& how = options[std::get<1>(key)];
    at::_fused_sgd_(lists.params, lists.gradients, lists.buffers, how.weight_decay, how.momentum,
                    how.lr, how.dampening, how.nesterov, /*maximize=*/false,
                    /*is_first_step=*/std::get<2>(key), /*grad_scale=*/{}, found_inf);
  }
}

std::vector<SGDParamGroup> one_group(const FSDPModule& root, const SGDOptions& options) {
  TORCH_CHECK(root, "SGD: empty FSDPModule handle; pass what fully_shard returned for the root");
  SGDParamGroup group{{}, options};
  for (const ParamRef& param : params_below(*root.state())) {
    group.params.push_back(param.fqn);
  }
  return {group};
}

}  // namespace

struct SGD::Impl {
  Impl(FSDPModule root, const std::vector<SGDParamGroup>& groups)
      : state("SGD", std::move(root), names_of(groups)) {
    for (size_t g = 0; g < groups.size(); ++g) {
      check_options(g, groups[g].options);
      options.push_back(groups[g].options);
      if (options[g].momentum != 0) {
        state.make_buffers(g);
      }
    }
    for (const MomentumUnit& unit : state.units()) {
      has_momentum.resize(unit.first + unit.params.size(), 0);
    }
  }

  /// What a step updates. Made when it is not what it was in the last step, and used until that
  /// happens again.
  struct Updates {
    Participation participation;
    std::vector<std::pair<size_t, SGDPart>> parts;  // with the param group of each
  };
  void renew_updates();
  void add_parts(const MomentumUnit& unit, Updates& made) const;
  /// Behind an update: those that took part and have momentum have some in their buffers.
  void note_momentum();

  MomentumState state;
  std::vector<SGDOptions> options;    // by param group
  std::vector<uint8_t> has_momentum;  // by parameter that is optimized: its buffer has something
  std::optional<Updates> updates;     // none: to be made
};

void SGD::Impl::renew_updates() {
  updates.reset();
  Updates made{state.participation(), {}};
  for (const MomentumUnit& unit : state.units()) {
    add_parts(unit, made);
  }
  updates = std::move(made);
}

void SGD::Impl::add_parts(const MomentumUnit& unit, Updates& made) const {
  const std::vector<UnitParams::Param>& params = unit.params;
  const at::Tensor copy = unit.group->store().copy_for_peers();
  const auto takes_part = [&](size_t p) {
    return made.participation.takes_part[unit.first + p] != 0;
  };
  size_t next = 0;
  while (next < params.size()) {
    const size_t p = next++;
    if (!takes_part(p)) {
      continue;
    }
    const auto is_alike = [&](size_t other) {
      return takes_part(other) && params[other].param_group == params[p].param_group &&
             has_momentum[unit.first + other] == has_momentum[unit.first + p] &&
             params[other].segment.begin == params[other - 1].segment.end;
    };
    while (next < params.size() && is_alike(next)) {
      ++next;
    }
    const int64_t begin = params[p].segment.begin;
    const int64_t numel = params[next - 1].segment.end - begin;
    if (numel > 0) {
      const bool has_buffer = options[params[p].param_group].momentum != 0;
      made.parts.emplace_back(
          params[p].param_group,
          SGDPart{unit.group->store().shard().narrow(0, begin, numel),
                  unit.group->gradient().narrow(0, begin, numel),
                  has_buffer ? unit.buffer.narrow(0, params[p].state_begin, numel) : at::Tensor(),
                  copy.defined() ? copy.narrow(0, begin, numel) : at::Tensor(),
                  has_momentum[unit.first + p] == 0});
    }
  }
}

void SGD::Impl::note_momentum() {
  bool is_first = false;
  for (const MomentumUnit& unit : state.units()) {
    for (size_t p = 0; p < unit.params.size(); ++p) {
      uint8_t& has = has_momentum[unit.first + p];
      if (updates->participation.takes_part[unit.first + p] != 0 && has == 0 &&
          options[unit.params[p].param_group].momentum != 0) {
        has = 1;
        is_first = true;
      }
    }
  }
  if (is_first) {
    updates.reset();
  }
}

SGD::SGD(const FSDPModule& root, const SGDOptions& options) : SGD(root, one_group(root, options)) {}

SGD::SGD(FSDPModule root, const std::vector<SGDParamGroup>& groups)
    : impl_(std::make_unique<Impl>(std::move(root), groups)) {}

SGD::~SGD() = default;

void SGD::step(const at::Tensor& found_inf) {
  at::NoGradGuard no_grad;
  MomentumState& state = impl_->state;
  if (state.is_left_out(found_inf)) {
    return;
  }
  const DeviceSkip skip(found_inf);
  state.begin_update();
  if (!impl_->updates || !state.is_current(impl_->updates->participation)) {
    impl_->renew_updates();
  }
  const std::vector<std::pair<size_t, SGDPart>>& parts = impl_->updates->parts;
  if (!parts.empty() && !parts.front().second.param.is_cpu()) {
    update_on_device(parts, impl_->options, skip.kept);
  } else {
    for (const auto& [group, part] : parts) {
      update_on_cpu(part, impl_->options[group]);
    }
  }
  state.end_update(impl_->updates->participation, skip.kept);
  impl_->note_momentum();
}

void SGD::zero_grad() { impl_->state.zero_grad(); }

size_t SGD::group_count() const { return impl_->options.size(); }

const SGDOptions& SGD::options(size_t group) const {
  impl_->state.check_group(group);
  return impl_->options[group];
}

const std::vector<std::string>& SGD::params(size_t group) const {
  return impl_->state.params(group);
}

void SGD::set_options(size_t group, const SGDOptions& options) {
  impl_->state.check_group(group);
  check_options(group, options);
  if (options.momentum != 0) {
    impl_->state.make_buffers(group);
  }
  if ((options.momentum != 0) != (impl_->options[group].momentum != 0)) {
    impl_->updates.reset();  // the buffers take part, or do so no longer
  }
  impl_->options[group] = options;
}

void SGD::set_lr(double lr) {
  for (size_t group = 0; group < group_count(); ++group) {
    SGDOptions changed = options(group);
    changed.lr = lr;
    set_options(group, changed);
  }
}

std::vector<LocalShard> SGD::momentum_buffer() const {
  std::vector<bool> has_buffer;
  for (const SGDOptions& options : impl_->options) {
    has_buffer.push_back(options.momentum != 0);
  }
  return impl_->state.buffers(has_buffer);
}

std::vector<int64_t> SGD::parameter_steps() const { return impl_->state.parameter_steps(); }

void SGD::set_parameter_steps(const std::vector<int64_t>& steps) {
  impl_->state.set_parameter_steps(steps);
  impl_->updates.reset();
  const std::vector<int64_t> done = impl_->state.updates_done();
  for (size_t i = 0; i < done.size(); ++i) {
    impl_->has_momentum[i] = done[i] > 0 ? 1 : 0;
  }
}

}  // namespace fsdp
