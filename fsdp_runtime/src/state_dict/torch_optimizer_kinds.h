#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fsdp_runtime/src/state_dict/optimizer_access.h"

namespace fsdp {

/// What there is to know of one of torch::optim's optimizers: its options and states under Python's
/// names.
class TorchOptimizerKind {
 public:
  using Options = torch::optim::OptimizerOptions;
  using State = torch::optim::OptimizerParamState;

  virtual ~TorchOptimizerKind() = default;
  virtual std::string type() const = 0;
  virtual OptionValues options_of(const Options& options) const = 0;
  /// Sets what `values` has. Returns what was wrong, or "".
  virtual std::string set_options(Options& options, const OptionValues& values,
                                  bool strict) const = 0;

  virtual std::vector<std::string> state_names() const = 0;
  virtual bool needs(const std::string& state_name, const Options& options) const = 0;
  /// Whether `state` is of the type that the optimizer itself makes.
  virtual bool has_type_of(const State& state) const = 0;
  virtual std::unique_ptr<State> make_state() const = 0;
  /// Of state_names(), in their order; those it does not have are undefined.
  virtual std::vector<at::Tensor*> tensors_of(State& state) const = 0;
  /// Null if it does not count.
  virtual int64_t* step_of(State& state) const = 0;
  /// What the optimizer makes before the first step; null if nothing.
  virtual std::unique_ptr<State> initial_state(const at::Tensor& parameter,
                                               const Options& options) const = 0;
};

/// Null if the type of the optimizer is not known.
const TorchOptimizerKind* kind_of(const torch::optim::Optimizer& optimizer);

}  // namespace fsdp
