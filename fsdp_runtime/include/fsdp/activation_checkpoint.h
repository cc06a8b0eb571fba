#pragma once

/// @file
/// Recomputing activations in backward instead of keeping them.

#include <ATen/core/Tensor.h>
#include <fsdp/detail/recomputation.h>
#include <fsdp/visit_tensors.h>

#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace fsdp {

/// @addtogroup train
/// @{

/// Runs `body(args...)`, which returns one tensor, without saving its activations; backward
/// recomputes them:
///
/// ```cpp
/// x = fsdp::activation_checkpoint([&block](at::Tensor h) { return block(h); }, x);
/// ```
///
/// Exact: same kernels, same inputs, and the default random generators of the CPU and of the
/// inputs' CUDA devices and the state of autocast for these devices are restored for the
/// recomputation. Where autocast is enabled, weights that it has cast before are cast anew. Tensors
/// in `args` (also inside optionals, vectors, tuples and so on) get gradients; parameters that
/// `body` uses get theirs as usual. `body` and `args` are kept until backward; what `body` refers
/// to must live until then. Works around a unit and inside one; around a unit is better, because
/// the unit is then gathered once for recomputation and backward together. Without an argument that
/// requires grad it is a plain call.
///
/// Memory: the arguments, and the activations of one `body` at a time in backward. Thread: the
/// caller's, and autograd's in backward. Errors: does not compile with an argument that may be gone
/// by then (a view of a string or an array, a generator), or in which tensors cannot be found
/// (`fsdp/visit_tensors.h`). Reentrant: a backward that is restricted to some inputs or creates a
/// graph throws c10::Error.
template <class Body, class... Args>
at::Tensor activation_checkpoint(Body body, Args... args) {
  static_assert((detail::kIsReplayable<std::decay_t<Args>> && ...),
                "backward calls the body again with the same arguments: pass sizes as a "
                "std::vector<int64_t>, text as a std::string, and let the body use the default "
                "random generator");
  static_assert((detail::kIsTransparent<std::decay_t<Args>> && ...),
                "a tensor that cannot be found in an argument would have no gradient; declare void "
                "visit_tensors(YourType&, std::vector<at::Tensor*>&) in the type's namespace (see "
                "<fsdp/visit_tensors.h>)");
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

/// @}

}  // namespace fsdp
