#pragma once

// The models of the rows. Their parameters have the names, and their forwards the operations, of
// those in models.py.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace parity_rows {

class RowModel : public torch::nn::Module {
 public:
  /// A batch, drawn from the default generator.
  virtual at::Tensor draw_input(int64_t batch) const = 0;
  /// To be called as a unit's.
  virtual at::Tensor forward(at::Tensor input) = 0;
  /// Another method, which runs all blocks.
  virtual at::Tensor encode(at::Tensor input);
  /// Calls one of its units alone.
  virtual at::Tensor call_child(const std::string& name, at::Tensor input);

  /// "unit input-dtype weight-dtype" of the blocks that have run.
  std::vector<std::string> seen;
};

/// As the case describes it, with parameters that are not drawn yet.
std::shared_ptr<RowModel> make_model(const nlohmann::json& spec);

/// Fills all parameters, in the order of their names, from a generator with this seed.
void draw_parameters(RowModel& model, uint64_t seed);

/// Of all parameters whose names begin with `prefix`.
void set_requires_grad(const RowModel& model, const std::string& prefix, bool value);

/// Those that are registered, each by its first name, in registration order.
std::vector<std::pair<std::string, at::Tensor>> unique_parameters(const RowModel& model);

}  // namespace parity_rows
