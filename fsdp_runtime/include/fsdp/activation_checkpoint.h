#pragma once

#include <ATen/core/Tensor.h>
#include <fsdp/export.h>
#include <fsdp/unit.h>

#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace fsdp {
namespace detail {

using CheckpointBody =
    std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;

FSDP_API std::vector<at::Tensor> run_checkpointed(CheckpointBody body,
                                                  std::vector<at::Tensor> inputs);

}  // namespace detail

/// Runs `body(args...)`, which returns one tensor, without saving its activations; backward
/// recomputes them. Exact: same kernels, same inputs, and the default random generators of the CPU
/// and of the inputs' CUDA devices and the state of autocast for these devices are restored for the
/// recomputation. Where autocast is enabled, weights that it has cast before are cast anew. Tensors
/// in `args` (also inside optionals, vectors and tuples) get gradients; parameters that `body` uses
/// get theirs as usual. Whatever `body` refers to must live until backward. Works around a unit and
/// inside one; around a unit is better, because the unit is then gathered once for recomputation
/// and backward together. Without an argument that requires grad it is a plain call. Reentrant:
/// a backward that is restricted to some inputs or creates a graph throws.
template <class Body, class... Args>
at::Tensor activation_checkpoint(Body body, Args... args) {
  using detail::visit_tensors;
  auto arguments = std::make_tuple(std::decay_t<Args>(std::move(args))...);
  std::vector<at::Tensor*> found;
  visit_tensors(arguments, found);
  std::vector<at::Tensor> inputs;
  inputs.reserve(found.size());
  for (at::Tensor* tensor : found) {
    inputs.push_back(*tensor);
    *tensor = tensor->detach();  // a placeholder: shares the memory and holds no graph
  }
  auto run = [body = std::move(body),
              arguments = std::move(arguments)](const std::vector<at::Tensor>& tensors) mutable {
    auto call_arguments = arguments;
    std::vector<at::Tensor*> places;
    visit_tensors(call_arguments, places);
    for (size_t i = 0; i < places.size(); ++i) {
      *places[i] = tensors[i];
    }
    return std::vector<at::Tensor>{std::apply(body, std::move(call_arguments))};
  };
  return detail::run_checkpointed(std::move(run), std::move(inputs)).front();
}

}  // namespace fsdp
