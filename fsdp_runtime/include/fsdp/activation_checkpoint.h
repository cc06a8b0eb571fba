#pragma once

/// @file
/// Recomputing activations in backward instead of keeping them.

#include <ATen/core/Tensor.h>
#include <fsdp/detail/recomputation.h>
#include <fsdp/detail/replay.h>
#include <fsdp/export.h>
#include <fsdp/visit_tensors.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace fsdp {

namespace detail {

template <class... Args>
constexpr void check_arguments() {
  static_assert((kIsReplayable<std::decay_t<Args>> && ...),
                "backward calls the body again with the same arguments: pass sizes as a "
                "std::vector<int64_t>, text as a std::string, and let the body use the default "
                "random generator");
  static_assert((kIsTransparent<std::decay_t<Args>> && ...),
                "a tensor that cannot be found in an argument would have no gradient; declare void "
                "visit_tensors(YourType&, std::vector<at::Tensor*>&) in the type's namespace (see "
                "<fsdp/visit_tensors.h>)");
}

/// The tensors in `arguments`, of which placeholders stay there: they share the memory and hold no
/// graph.
template <class Arguments>
std::vector<at::Tensor> take_tensors(Arguments& arguments) {
  std::vector<at::Tensor*> found;
  visit_tensors(arguments, found);
  std::vector<at::Tensor> tensors;
  tensors.reserve(found.size());
  for (at::Tensor* tensor : found) {
    tensors.push_back(*tensor);
    *tensor = tensor->detach();
  }
  return tensors;
}

/// A copy of `arguments` with `tensors` in the places that take_tensors() found.
template <class Arguments>
Arguments with_tensors(const Arguments& arguments, const std::vector<at::Tensor>& tensors) {
  Arguments filled = arguments;
  std::vector<at::Tensor*> places;
  visit_tensors(filled, places);
  for (size_t i = 0; i < places.size(); ++i) {
    *places[i] = tensors[i];
  }
  return filled;
}

[[noreturn]] FSDP_API void refuse_result_of_reentrant();

template <class Body, class... Args>
at::Tensor checkpoint_reentrant(bool preserve_rng_state, Body body, Args... args) {
  check_arguments<Args...>();
  auto arguments = std::make_tuple(std::decay_t<Args>(std::move(args))...);
  std::vector<at::Tensor> inputs = take_tensors(arguments);
  auto run = [body = std::move(body),
              arguments = std::move(arguments)](const std::vector<at::Tensor>& tensors) mutable {
    return std::vector<at::Tensor>{std::apply(body, with_tensors(arguments, tensors))};
  };
  return run_checkpointed(std::move(run), std::move(inputs), preserve_rng_state).front();
}

}  // namespace detail

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
  return detail::checkpoint_reentrant(/*preserve_rng_state=*/true, std::move(body),
                                      std::move(args)...);
}

/// How activation_checkpoint() forgets and computes again.
struct FSDP_API CheckpointOptions {
  /// true: as without options: backward runs the segment with a graph of its own, and a backward
  /// through that, within itself. It needs an argument that requires grad, one tensor as result,
  /// and a backward that is neither restricted to some inputs nor creates a graph. false: what the
  /// segment saves for backward is forgotten, and computed again when it is asked for. Any result,
  /// any backward, segments within segments. In a process with another autograd engine, as
  /// Python's, only true works.
  bool use_reentrant = false;
  /// Not reentrant: computing again ends with the last tensor that backward needs, by an exception
  /// that passes through the segment, which is not a std::exception.
  bool early_stop = true;
  /// Whether the default random generators begin the other run as the first. Without random numbers
  /// in the segment, false saves a copy of their states, and on CUDA a wait of the host. With
  /// random numbers, false gives other ones in the other run. A DeviceGraph of a GPU cannot record
  /// a segment with true.
  bool preserve_rng_state = true;
  /// Not reentrant: whether what is saved in both runs is compared by number, shape, dtype and
  /// device.
  bool checks_determinism = true;
  /// Not reentrant: operators, by their name ("aten::mm"), whose results are kept and not computed
  /// again. Called once per operator and segment. Unset: none. Operators that give views or write
  /// their arguments are always called again. Of those that draw random numbers, which LibTorch
  /// tags nondeterministic_seeded, the states of the generators behind each call are kept as well,
  /// with preserve_rng_state, so that what is called again draws the numbers of the first run.
  /// See keep_results_of().
  ///
  /// Operators are seen by a dispatch key of LibTorch's that has room for one library in a process:
  /// a second copy of libfsdp, or torchdistX, cannot be loaded beside it.
  std::function<bool(const std::string& op)> keeps_results_of = {};
};

/// A policy that names operators: `{.keeps_results_of = keep_results_of({"aten::mm"})}`.
FSDP_API std::function<bool(const std::string&)> keep_results_of(std::vector<std::string> ops);

/// The same with options; by default as torch.utils.checkpoint(use_reentrant=False). `body` may
/// return anything.
///
/// ```cpp
/// auto [x, cache] = fsdp::activation_checkpoint(
///     fsdp::CheckpointOptions{}, [&block](at::Tensor h) { return block(h); }, x);
/// ```
///
/// Memory: the arguments, the kept results, and what one segment saves for backward from the moment
/// that backward reaches it; each tensor of it is freed when it has been used. Errors: TORCH_CHECK
/// in backward if the segment saves something else in the other run, and for `use_reentrant` with
/// another result than one tensor.
template <class Body, class... Args>
auto activation_checkpoint(const CheckpointOptions& options, Body body, Args... args) {
  detail::check_arguments<Args...>();
  using Result = std::invoke_result_t<Body&, std::decay_t<Args>...>;
  if (options.use_reentrant) {
    if constexpr (std::is_same_v<Result, at::Tensor>) {
      return detail::checkpoint_reentrant(options.preserve_rng_state, std::move(body),
                                          std::move(args)...);
    } else {
      detail::refuse_result_of_reentrant();
    }
  }
  auto arguments = std::make_tuple(std::decay_t<Args>(std::move(args))...);
  const std::vector<at::Tensor> inputs = detail::take_tensors(arguments);
  auto call =
      std::make_shared<std::pair<Body, decltype(arguments)>>(std::move(body), std::move(arguments));
  const detail::CheckpointScope scope(
      options, inputs, [call](const std::vector<at::Tensor>& tensors) {
        std::apply(call->first, detail::with_tensors(call->second, tensors));
      });
  return std::apply(call->first, detail::with_tensors(call->second, inputs));
}

/// @}

}  // namespace fsdp
