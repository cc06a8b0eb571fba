#include <ATen/ATen.h>
#include <fsdp/muon.h>

#include <algorithm>
#include <utility>

#include "fsdp_runtime/plan/matrix_deal.h"
#include "fsdp_runtime/src/engine/disk_memory.h"
#include "fsdp_runtime/src/optim/matrix_exchange.h"
#include "fsdp_runtime/src/optim/momentum_state.h"
#include "fsdp_runtime/src/optim/muon_kernel.h"
#include "fsdp_runtime/src/optim/param_groups.h"

namespace fsdp {
namespace {

std::vector<std::vector<std::string>> names_of(const std::vector<MuonParamGroup>& groups) {
  std::vector<std::vector<std::string>> names;
  for (const MuonParamGroup& group : groups) {
    names.push_back(group.params);
  }
  return names;
}

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
  /// Those with a gradient.
  std::vector<ExchangedUnit> units_to_exchange() const;
  void write_own(const MomentumUnit& unit, const std::vector<size_t>& indices,
                 const at::Tensor& shard) const;
  /// `updates`: laid out as the unit's shard.
  void apply(const ExchangedUnit& exchanged, const at::Tensor& updates,
             const at::Tensor& is_skipped) const;

  MomentumState state;
  std::vector<MuonOptions> options;          // by param group
  std::vector<std::vector<int64_t>> owners;  // by unit and its parameter
};

std::vector<ExchangedUnit> Muon::Impl::units_to_exchange() const {
  std::vector<ExchangedUnit> exchanged;
  for (size_t u = 0; u < state.units().size(); ++u) {
    const MomentumUnit& unit = state.units()[u];
    ExchangedUnit one{&unit, {}, {}};
    for (size_t p = 0; p < unit.params.size(); ++p) {
      if (MomentumState::takes_part(unit, p)) {
        one.indices.push_back(p);
        one.owners.push_back(owners[u][p]);
      }
    }
    if (!one.indices.empty()) {
      exchanged.push_back(std::move(one));
    }
  }
  return exchanged;
}

void Muon::Impl::write_own(const MomentumUnit& unit, const std::vector<size_t>& indices,
                           const at::Tensor& shard) const {
  const at::Tensor gradient = unit.group->gradient();
  for (const size_t p : indices) {
    const auto [segment, state_begin, param_group] = unit.params[p];
    const int64_t numel = segment.numel();
    fsdp::write_update(gradient.narrow(0, segment.begin, numel),
                       unit.buffer.narrow(0, state_begin, numel), options[param_group],
                       shard.narrow(0, segment.begin, numel));
  }
  release_pages(gradient);
  release_pages(unit.buffer);
}

void Muon::Impl::apply(const ExchangedUnit& exchanged, const at::Tensor& updates,
                       const at::Tensor& is_skipped) const {
  const auto& unit = static_cast<const MomentumUnit&>(*exchanged.unit);
  const ShardStore& store = unit.group->store();
  const at::Tensor copy = store.copy_for_peers();
  for (const size_t p : exchanged.indices) {
    const ShardSegment segment = unit.params[p].segment;
    const int64_t numel = segment.numel();
    const std::vector<int64_t>& shape = store.shape(unit.indices[p]);
    const auto of_shard = [&](const at::Tensor& flat) {
      return flat.narrow(0, segment.begin, numel);
    };
    apply_update({of_shard(store.shard()), of_shard(unit.group->gradient()),
                  unit.buffer.narrow(0, unit.params[p].state_begin, numel), of_shard(updates),
                  copy.defined() ? of_shard(copy) : at::Tensor()},
                 options_of(unit, p), muon_rate(options_of(unit, p), shape[0], shape[1]),
                 is_skipped);
  }
  for (const at::Tensor& used : {store.shard(), unit.group->gradient(), unit.buffer}) {
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
  const std::vector<ExchangedUnit> units = impl_->units_to_exchange();
  const std::vector<at::Tensor> updates = exchange_matrices(
      units,
      [&](size_t u, const at::Tensor& shard) {
        impl_->write_own(static_cast<const MomentumUnit&>(*units[u].unit), units[u].indices, shard);
      },
      [&](size_t u, size_t i, const at::Tensor& matrix) {
        return orthogonalize(matrix, impl_->options_of(*units[u].unit, units[u].indices[i]));
      });
  state.begin_update();
  for (size_t u = 0; u < units.size(); ++u) {
    impl_->apply(units[u], updates[u], skip.is_skipped);
  }
  state.end_update(skip.kept);
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
