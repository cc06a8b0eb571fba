#include <ATen/ATen.h>
#include <fsdp/muon.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "fsdp_runtime/plan/matrix_deal.h"
#include "fsdp_runtime/src/engine/disk_memory.h"
#include "fsdp_runtime/src/optim/matrix_exchange.h"
#include "fsdp_runtime/src/optim/momentum_state.h"
#include "fsdp_runtime/src/optim/muon_kernel.h"
#include "fsdp_runtime/src/optim/param_groups.h"

namespace fsdp {
namespace {

/// By unit, the rank of each parameter: all matrices that the same ranks divide are dealt together.
std::vector<std::vector<int64_t>> deal(const std::vector<MomentumUnit>& units) {
  struct Dealt {
    std::vector<int64_t> costs;
    std::vector<std::pair<size_t, size_t>> of;  // unit, and parameter in it
  };
  std::vector<std::pair<Collectives*, Dealt>> by_ranks;  // in the order of the units
  std::vector<std::vector<int64_t>> owners;
  for (size_t u = 0; u < units.size(); ++u) {
    Collectives* const comm = units[u].group->comm().get();
    auto found = std::find_if(by_ranks.begin(), by_ranks.end(),
                              [comm](const auto& entry) { return entry.first == comm; });
    found = found == by_ranks.end() ? by_ranks.insert(found, {comm, {}}) : found;
    for (size_t p = 0; p < units[u].params.size(); ++p) {
      const std::vector<int64_t>& shape = units[u].group->store().shape(units[u].indices[p]);
      found->second.costs.push_back(plan::orthogonalization_cost(shape[0], shape[1]));
      found->second.of.emplace_back(u, p);
    }
    owners.emplace_back(units[u].params.size(), 0);
  }
  for (const auto& [comm, dealt] : by_ranks) {
    const std::vector<int64_t> ranks = plan::deal_by_cost(dealt.costs, comm->size());
    for (size_t i = 0; i < ranks.size(); ++i) {
      owners[dealt.of[i].first][dealt.of[i].second] = ranks[i];
    }
  }
  return owners;
}

void check_matrices(const std::vector<MomentumUnit>& units) {
  for (const MomentumUnit& unit : units) {
    for (const size_t index : unit.indices) {
      const std::vector<int64_t>& shape = unit.group->store().shape(index);
      TORCH_CHECK(shape.size() == 2, "Muon: ", unit.group->store().fqn(index), " has shape ",
                  at::IntArrayRef(shape),
                  "; expected a matrix, of 2 dimensions; give the rest to another optimizer");
    }
  }
}

}  // namespace

struct Muon::Impl {
  Impl(FSDPModule root, const std::vector<MuonParamGroup>& groups)
      : state("Muon", std::move(root), names_of(groups)) {
    check_matrices(state.units());
    for (size_t g = 0; g < groups.size(); ++g) {
      check_options(g, groups[g].options);
      options.push_back(groups[g].options);
      state.make_buffers(g);
    }
    owners = deal(state.units());
  }

  const MuonOptions& options_of(const UnitParams& unit, size_t index) const {
    return options[unit.params[index].param_group];
  }
  /// What a step updates. Made when it is not what it was in the last step, and used until that
  /// happens again.
  struct Updates {
    Participation participation;
    std::vector<ExchangedUnit> units;          // with the parameters that take part
    std::vector<std::vector<MuonPart>> parts;  // of these, without `update`
  };
  void renew_updates();
  MuonPart part_of(const MomentumUnit& unit, size_t index) const;
  /// To `shard`, which is laid out as the unit's.
  void write_own(size_t unit, const at::Tensor& shard) const;
  /// `updates_of_shard`: laid out as that.
  void apply(size_t unit, const at::Tensor& updates_of_shard, const at::Tensor& is_skipped) const;

  MomentumState state;
  std::vector<MuonOptions> options;          // by param group
  std::vector<std::vector<int64_t>> owners;  // by unit and its parameter
  std::optional<Updates> updates;            // none: to be made
};

MuonPart Muon::Impl::part_of(const MomentumUnit& unit, size_t index) const {
  const auto [segment, state_begin, param_group] = unit.params[index];
  const ShardStore& store = unit.group->store();
  const at::Tensor copy = store.copy_for_peers();
  return {store.shard().narrow(0, segment.begin, segment.numel()),
          unit.group->gradient().narrow(0, segment.begin, segment.numel()),
          unit.buffer.narrow(0, state_begin, segment.numel()),
          {},
          copy.defined() ? copy.narrow(0, segment.begin, segment.numel()) : at::Tensor()};
}

void Muon::Impl::renew_updates() {
  updates.reset();
  Updates made{state.participation(), {}, {}};
  for (size_t u = 0; u < state.units().size(); ++u) {
    const MomentumUnit& unit = state.units()[u];
    ExchangedUnit exchanged{&unit, {}, {}};
    std::vector<MuonPart> parts;
    for (size_t p = 0; p < unit.params.size(); ++p) {
      if (made.participation.takes_part[unit.first + p] != 0) {
        exchanged.indices.push_back(p);
        exchanged.owners.push_back(owners[u][p]);
        parts.push_back(part_of(unit, p));
      }
    }
    if (!parts.empty()) {
      made.units.push_back(std::move(exchanged));
      made.parts.push_back(std::move(parts));
    }
  }
  updates = std::move(made);
}

void Muon::Impl::write_own(size_t unit, const at::Tensor& shard) const {
  const ExchangedUnit& exchanged = updates->units[unit];
  for (size_t i = 0; i < exchanged.indices.size(); ++i) {
    const ShardSegment& segment = exchanged.unit->params[exchanged.indices[i]].segment;
    const MuonPart& part = updates->parts[unit][i];
    fsdp::write_update(part.gradient, part.buffer,
                       options_of(*exchanged.unit, exchanged.indices[i]),
                       shard.narrow(0, segment.begin, segment.numel()));
  }
  release_pages(exchanged.unit->group->gradient());
  release_pages(static_cast<const MomentumUnit*>(exchanged.unit)->buffer);
}

void Muon::Impl::apply(size_t unit, const at::Tensor& updates_of_shard,
                       const at::Tensor& is_skipped) const {
  const ExchangedUnit& exchanged = updates->units[unit];
  const ShardStore& store = exchanged.unit->group->store();
  for (size_t i = 0; i < exchanged.indices.size(); ++i) {
    const size_t p = exchanged.indices[i];
    const ShardSegment& segment = exchanged.unit->params[p].segment;
    const std::vector<int64_t>& shape = store.shape(exchanged.unit->indices[p]);
    const MuonOptions& how = options_of(*exchanged.unit, p);
    MuonPart part = updates->parts[unit][i];
    part.update = updates_of_shard.narrow(0, segment.begin, segment.numel());
    apply_update(part, how, muon_rate(how, shape[0], shape[1]), is_skipped);
  }
  const at::Tensor& buffer = static_cast<const MomentumUnit*>(exchanged.unit)->buffer;
  for (const at::Tensor& used : {store.shard(), exchanged.unit->group->gradient(), buffer}) {
    release_pages(used);
  }
}

Muon::Muon(FSDPModule root, const std::vector<MuonParamGroup>& groups)
    : impl_(std::make_unique<Impl>(std::move(root), groups)) {}

Muon::~Muon() = default;

void Muon::step(const at::Tensor& found_inf) {
  at::NoGradGuard no_grad;
  MomentumState& state = impl_->state;
  if (state.is_left_out(found_inf)) {
    return;
  }
  const DeviceSkip skip(found_inf);
  if (!impl_->updates || !state.is_current(impl_->updates->participation)) {
    impl_->renew_updates();
  }
  const std::vector<ExchangedUnit>& units = impl_->updates->units;
  const std::vector<at::Tensor> updates = exchange_matrices(
      units, [&](size_t u, const at::Tensor& shard) { impl_->write_own(u, shard); },
      [&](size_t u, size_t i, at::Tensor matrix) {
        return orthogonalize_here(std::move(matrix),
                                  impl_->options_of(*units[u].unit, units[u].indices[i]));
      });
  state.begin_update();
  for (size_t u = 0; u < units.size(); ++u) {
    impl_->apply(u, updates[u], skip.is_skipped);
  }
  state.end_update(impl_->updates->participation, skip.kept);
}

void Muon::zero_grad() { impl_->state.zero_grad(); }

size_t Muon::group_count() const { return impl_->options.size(); }

const MuonOptions& Muon::options(size_t group) const {
  impl_->state.check_group(group);
  return impl_->options[group];
}

const std::vector<std::string>& Muon::params(size_t group) const {
  return impl_->state.params(group);
}

void Muon::set_options(size_t group, const MuonOptions& options) {
  impl_->state.check_group(group);
  check_options(group, options);
  impl_->options[group] = options;
}

void Muon::set_lr(double lr) {
  for (size_t group = 0; group < group_count(); ++group) {
    MuonOptions changed = options(group);
    changed.lr = lr;
    set_options(group, changed);
  }
}

std::vector<LocalShard> Muon::momentum_buffer() const {
  return impl_->state.buffers(std::vector<bool>(group_count(), true));
}

std::vector<int64_t> Muon::parameter_steps() const { return impl_->state.parameter_steps(); }

void Muon::set_parameter_steps(const std::vector<int64_t>& steps) {
  impl_->state.set_parameter_steps(steps);
}

}  // namespace fsdp
