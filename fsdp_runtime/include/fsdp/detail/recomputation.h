#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <fsdp/export.h>

#include <array>
#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

namespace fsdp::detail {

using CheckpointBody =
    std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;

FSDP_API std::vector<at::Tensor> run_checkpointed(CheckpointBody body,
                                                  std::vector<at::Tensor> inputs,
                                                  bool preserve_rng_state);

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

}  // namespace fsdp::detail
