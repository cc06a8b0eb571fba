#pragma once

#include <ATen/core/Tensor.h>
#include <fsdp/export.h>
#include <fsdp/unit.h>

#include <array>
#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

namespace fsdp {
namespace detail {

using CheckpointBody =
    std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;

FSDP_API std::vector<at::Tensor> run_checkpointed(CheckpointBody body,
                                                  std::vector<at::Tensor> inputs);

/// False for what is only borrowed, and may be gone by the time that backward computes again, and
/// for a generator, from which other numbers would be drawn then.
template <class T>
inline constexpr bool kIsReplayable = true;
template <class T>
inline constexpr bool kIsReplayable<c10::ArrayRef<T>> = false;
template <>
inline constexpr bool kIsReplayable<std::string_view> = false;
template <>
inline constexpr bool kIsReplayable<const char*> = false;
template <>
inline constexpr bool kIsReplayable<char*> = false;
template <>
inline constexpr bool kIsReplayable<at::Generator> = false;
template <class T>
inline constexpr bool kIsReplayable<std::optional<T>> = kIsReplayable<T>;
template <class T>
inline constexpr bool kIsReplayable<std::vector<T>> = kIsReplayable<T>;
template <class T, size_t N>
inline constexpr bool kIsReplayable<std::array<T, N>> = kIsReplayable<T>;
template <class A, class B>
inline constexpr bool kIsReplayable<std::pair<A, B>> = kIsReplayable<A>&& kIsReplayable<B>;
template <class... T>
inline constexpr bool kIsReplayable<std::tuple<T...>> = (kIsReplayable<T> && ...);
template <class... T>
inline constexpr bool kIsReplayable<std::variant<T...>> = (kIsReplayable<T> && ...);
template <class K, class T>
inline constexpr bool kIsReplayable<std::map<K, T>> = kIsReplayable<K>&& kIsReplayable<T>;
template <class K, class T>
inline constexpr bool kIsReplayable<std::unordered_map<K, T>> = kIsReplayable<K>&& kIsReplayable<T>;

}  // namespace detail

/// Runs `body(args...)`, which returns one tensor, without saving its activations; backward
/// recomputes them. Exact: same kernels, same inputs, and the default random generators of the CPU
/// and of the inputs' CUDA devices and the state of autocast for these devices are restored for the
/// recomputation. Where autocast is enabled, weights that it has cast before are cast anew. Tensors
/// in `args` (also inside optionals, vectors, tuples and so on) get gradients; parameters that
/// `body` uses get theirs as usual. Whatever `body` refers to must live until backward. Works
/// around a unit and inside one; around a unit is better, because the unit is then gathered once
/// for recomputation and backward together. Without an argument that requires grad it is a plain
/// call. Reentrant: a backward that is restricted to some inputs or creates a graph throws.
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

}  // namespace fsdp
