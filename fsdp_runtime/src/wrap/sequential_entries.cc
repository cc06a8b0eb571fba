#include "fsdp_runtime/src/wrap/sequential_entries.h"

#include <fsdp/sharded.h>
#include <fsdp/unit.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>

#include <utility>

namespace fsdp {
namespace {

/// Stands where the module of an entry stood.
struct UnitCaller : torch::nn::Module {
  explicit UnitCaller(torch::nn::AnyModule called)
      : torch::nn::Module("fsdp::UnitCaller"),
        called(std::move(called)),
        unit(this->called.ptr()) {}

  at::Tensor forward(at::Tensor x) {
    return call(
        *unit, [this](at::Tensor own) { return called.forward<at::Tensor>(std::move(own)); },
        std::move(x));
  }

  torch::nn::AnyModule called;
  std::shared_ptr<torch::nn::Module> unit;
};

}  // namespace

bool is_sharded_type(const torch::nn::Module& module) {
  return dynamic_cast<const detail::RunsHooks*>(&module) != nullptr;
}

void call_as_units(torch::nn::SequentialImpl& container,
                   const std::unordered_set<const torch::nn::Module*>& units) {
  for (torch::nn::AnyModule& entry : container) {
    const std::shared_ptr<torch::nn::Module> module = entry.ptr();
    if (units.contains(module.get()) && !is_sharded_type(*module)) {
      entry = std::make_shared<UnitCaller>(std::move(entry));
    }
  }
}

}  // namespace fsdp
