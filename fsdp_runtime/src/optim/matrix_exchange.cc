#include "fsdp_runtime/src/optim/matrix_exchange.h"

#include <ATen/ATen.h>
#include <fsdp/collectives.h>

#include <deque>
#include <string>
#include <utility>

#include "fsdp_runtime/src/engine/chunk_views.h"

namespace fsdp {
namespace {

/// A collective and what it reads and writes, until it has ended.
struct InFlight {
  at::Tensor input;
  at::Tensor output;
  WorkPtr work;
};

/// Calls `use(unit, ended)` for each unit in order, while what `start(unit)` has issued for the
/// next one is in flight.
template <class Start, class Use>
void pass_through(size_t units, Start start, Use use) {
  std::deque<InFlight> running;
  for (size_t next = 0; next < units; ++next) {
    running.push_back(start(next));
    if (running.size() == 2) {
      running.front().work->wait();
      use(next - 1, running.front());
      running.pop_front();
    }
  }
  if (!running.empty()) {
    running.front().work->wait();
    use(units - 1, running.front());
  }
}

at::TensorOptions memory_on(c10::Device device) {
  return at::TensorOptions().dtype(at::kBFloat16).device(device);
}

std::string purpose_of(const ExchangedUnit& exchanged) {
  return "the matrices of the unit of " + exchanged.unit->group->store().fqn(0);
}

InFlight gather(const ExchangedUnit& exchanged,
                const std::function<void(const at::Tensor& shard)>& write_own) {
  const ParamGroup& group = *exchanged.unit->group;
  const plan::GroupLayout& layout = group.store().layout();
  Collectives& comm = *group.comm();
  InFlight running;
  running.output = at::empty({layout.numel()}, memory_on(comm.device()));
  running.input = running.output.narrow(0, comm.rank() * layout.shard_numel, layout.shard_numel);
  const c10::Device device = group.store().shard().device();
  if (device == comm.device()) {
    write_own(running.input.zero_());
  } else {
    const at::Tensor offloaded = at::zeros({layout.shard_numel}, memory_on(device));
    write_own(offloaded);
    running.input.copy_(offloaded);
  }
  running.work =
      comm.all_gather_into(running.output, running.input, {Lane::kGather, purpose_of(exchanged)});
  return running;
}

InFlight scatter(const ExchangedUnit& exchanged, std::vector<at::Tensor> matrices) {
  const ParamGroup& group = *exchanged.unit->group;
  const plan::GroupLayout& layout = group.store().layout();
  Collectives& comm = *group.comm();
  InFlight running;
  // The others add zeros.
  running.input = at::zeros({layout.numel()}, memory_on(comm.device()));
  for (size_t i = 0; i < matrices.size(); ++i) {
    if (matrices[i].defined()) {
      copy_whole_to(running.input, layout, exchanged.unit->indices[exchanged.indices[i]],
                    matrices[i]);
    }
  }
  running.output = at::empty({layout.shard_numel}, memory_on(comm.device()));
  running.work = comm.reduce_scatter_into(running.output, running.input, ReduceOp::kSum,
                                          {Lane::kReduce, purpose_of(exchanged)});
  return running;
}

}  // namespace

std::vector<at::Tensor> exchange_matrices(
    const std::vector<ExchangedUnit>& units,
    const std::function<void(size_t unit, const at::Tensor& shard)>& write_own,
    const std::function<at::Tensor(size_t unit, size_t index, const at::Tensor& matrix)>& work_on) {
  std::vector<std::vector<at::Tensor>> owned(units.size());  // undefined: another rank's
  const auto take_owned = [&](size_t u, const InFlight& ended) {
    const ShardStore& store = units[u].unit->group->store();
    for (size_t i = 0; i < units[u].indices.size(); ++i) {
      const size_t param = units[u].unit->indices[units[u].indices[i]];
      owned[u].push_back(
          units[u].owners[i] == units[u].unit->group->comm()->rank()
              ? copy_of_whole(ended.output, store.layout(), param, store.shape(param))
              : at::Tensor());
    }
  };
  pass_through(
      units.size(),
      [&](size_t u) {
        return gather(units[u], [&](const at::Tensor& shard) { write_own(u, shard); });
      },
      take_owned);
  for (size_t u = 0; u < units.size(); ++u) {
    for (size_t i = 0; i < owned[u].size(); ++i) {
      if (owned[u][i].defined()) {
        owned[u][i] = work_on(u, i, owned[u][i]);
      }
    }
  }
  std::vector<at::Tensor> parts(units.size());
  pass_through(
      units.size(), [&](size_t u) { return scatter(units[u], std::exchange(owned[u], {})); },
      [&](size_t u, const InFlight& ended) {
        parts[u] = ended.output.to(units[u].unit->group->store().shard().device());
      });
  return parts;
}

}  // namespace fsdp
