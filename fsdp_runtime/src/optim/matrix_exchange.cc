#include "fsdp_runtime/src/optim/matrix_exchange.h"

#include <ATen/ATen.h>
#include <fsdp/collectives.h>

#include <deque>
#include <string>
#include <utility>

#include "fsdp_runtime/src/engine/chunk_views.h"
#include "fsdp_runtime/src/engine/pending_work.h"

namespace fsdp {
namespace {

/// A collective and what it reads and writes, which does not go before it has ended.
struct InFlight {
  at::Tensor input;
  at::Tensor output;
  PendingWork work;
};

/// Calls `use(unit, ended)` for each unit in order, while what `start(unit, running)` has issued
/// for the next one is in flight.
template <class Start, class Use>
void pass_through(size_t units, Start start, Use use) {
  std::deque<InFlight> running;
  const auto end_first = [&](size_t unit) {
    running.front().work.finish();
    use(unit, running.front());
    running.pop_front();
  };
  for (size_t next = 0; next < units; ++next) {
    start(next, running.emplace_back());
    if (running.size() == 2) {
      end_first(next - 1);
    }
  }
  if (!running.empty()) {
    end_first(units - 1);
  }
}

at::TensorOptions memory_on(c10::Device device) {
  return at::TensorOptions().dtype(at::kBFloat16).device(device);
}

std::string purpose_of(const ExchangedUnit& exchanged) {
  return "the matrices of the unit of " + exchanged.unit->group->store().fqn(0);
}

void gather(const ExchangedUnit& exchanged,
            const std::function<void(const at::Tensor& shard)>& write_own, InFlight& running) {
  const ParamGroup& group = *exchanged.unit->group;
  const plan::GroupLayout& layout = group.store().layout();
  Collectives& comm = *group.comm();
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
  running.work.add(
      comm.all_gather_into(running.output, running.input, {Lane::kGather, purpose_of(exchanged)}));
}

void scatter(const ExchangedUnit& exchanged, std::vector<at::Tensor> matrices, InFlight& running) {
  const ParamGroup& group = *exchanged.unit->group;
  const plan::GroupLayout& layout = group.store().layout();
  Collectives& comm = *group.comm();
  // The others add zeros.
  running.input = at::zeros({layout.numel()}, memory_on(comm.device()));
  for (size_t i = 0; i < matrices.size(); ++i) {
    if (matrices[i].defined()) {
      copy_whole_to(running.input, layout, exchanged.unit->indices[exchanged.indices[i]],
                    matrices[i]);
    }
  }
  running.output = at::empty({layout.shard_numel}, memory_on(comm.device()));
  running.work.add(comm.reduce_scatter_into(running.output, running.input, ReduceOp::kSum,
                                            {Lane::kReduce, purpose_of(exchanged)}));
}

}  // namespace

std::vector<at::Tensor> exchange_matrices(
    const std::vector<ExchangedUnit>& units,
    const std::function<void(size_t unit, const at::Tensor& shard)>& write_own,
    const std::function<at::Tensor(size_t unit, size_t index, at::Tensor matrix)>& work_on) {
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
      [&](size_t u, InFlight& running) {
        gather(
            units[u], [&](const at::Tensor& shard) { write_own(u, shard); }, running);
      },
      take_owned);
  for (size_t u = 0; u < units.size(); ++u) {
    for (size_t i = 0; i < owned[u].size(); ++i) {
      if (owned[u][i].defined()) {
        owned[u][i] = work_on(u, i, std::move(owned[u][i]));
      }
    }
  }
  std::vector<at::Tensor> parts(units.size());
  pass_through(
      units.size(),
      [&](size_t u, InFlight& running) { scatter(units[u], std::exchange(owned[u], {}), running); },
      [&](size_t u, const InFlight& ended) {
        parts[u] = ended.output.to(units[u].unit->group->store().shard().device());
      });
  return parts;
}

}  // namespace fsdp
