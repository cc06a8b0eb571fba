#pragma once

/// @file
/// @ingroup modules
/// How units find the tensors inside the arguments and results of a forward.
///
/// Found are tensors, and those in std::optional, std::pair, std::array, std::vector, std::tuple,
/// std::variant, std::reference_wrapper, the values of std::map and std::unordered_map, and structs
/// of such, however nested. A struct is one whose members are public, 12 at most, without bases and
/// without C arrays. Numbers, enums, strings, c10::Scalar, c10::Device, at::Generator and
/// c10::ArrayRef of numbers pass through. Of any other type nothing is known, and tensors in it are
/// not found: a unit whose result is one is refused where there will be a backward, and so, by the
/// compiler, is such an argument of activation_checkpoint().
///
/// For a class of your own, declare `visit_tensors` in its namespace, where argument-dependent
/// lookup finds it. It appends the address of each tensor that is defined, always in the same
/// order; what is there is then read, cast, and replaced:
///
/// ```cpp
/// namespace mine {
/// class Batch {
///   // ...
///   friend void visit_tensors(Batch& batch, std::vector<at::Tensor*>& out) {
///     if (batch.tokens_.defined()) {
///       out.push_back(&batch.tokens_);
///     }
///   }
///
///  private:
///   at::Tensor tokens_;
/// };
/// }  // namespace mine
/// ```

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Scalar.h>
#include <c10/util/ArrayRef.h>
#include <fsdp/detail/struct_members.h>

#include <array>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

namespace fsdp::detail {

/// Collects the tensors inside an argument or a result; what is not known has none.
inline void visit_tensors(at::Tensor& tensor, std::vector<at::Tensor*>& out);
template <class T>
void visit_tensors(std::optional<T>& value, std::vector<at::Tensor*>& out);
template <class T>
void visit_tensors(std::vector<T>& values, std::vector<at::Tensor*>& out);
template <class... T>
void visit_tensors(std::tuple<T...>& values, std::vector<at::Tensor*>& out);
template <class A, class B>
void visit_tensors(std::pair<A, B>& values, std::vector<at::Tensor*>& out);
template <class T, size_t N>
void visit_tensors(std::array<T, N>& values, std::vector<at::Tensor*>& out);
template <class... T>
void visit_tensors(std::variant<T...>& value, std::vector<at::Tensor*>& out);
template <class K, class T>
void visit_tensors(std::map<K, T>& values, std::vector<at::Tensor*>& out);
template <class K, class T>
void visit_tensors(std::unordered_map<K, T>& values, std::vector<at::Tensor*>& out);
template <class T>
void visit_tensors(std::reference_wrapper<T>& value, std::vector<at::Tensor*>& out);
template <class T>
requires(std::is_arithmetic_v<T> ||
         std::is_enum_v<T>) void visit_tensors(T&, std::vector<at::Tensor*>&);
template <class T>
requires(std::is_arithmetic_v<T>) void visit_tensors(c10::ArrayRef<T>&, std::vector<at::Tensor*>&);
inline void visit_tensors(c10::Scalar&, std::vector<at::Tensor*>&) {}
inline void visit_tensors(c10::Device&, std::vector<at::Tensor*>&) {}
inline void visit_tensors(at::Generator&, std::vector<at::Tensor*>&) {}
inline void visit_tensors(std::nullptr_t&, std::vector<at::Tensor*>&) {}
inline void visit_tensors(std::monostate&, std::vector<at::Tensor*>&) {}
inline void visit_tensors(std::string&, std::vector<at::Tensor*>&) {}
inline void visit_tensors(std::string_view&, std::vector<at::Tensor*>&) {}
inline void visit_tensors(const char*&, std::vector<at::Tensor*>&) {}
inline void visit_tensors(std::nullopt_t&, std::vector<at::Tensor*>&) {}

/// What no other overload takes: this conversion is the last choice.
struct Other {
  template <class T>
  Other(T& any)  // NOLINT(google-explicit-constructor)
      : value(const_cast<std::remove_const_t<T>*>(std::addressof(any))),
        visit(&visit_members<std::remove_const_t<T>>) {}
  template <class T>
  static void visit_members(void* value, std::vector<at::Tensor*>& out);

  void* value;
  void (*visit)(void* value, std::vector<at::Tensor*>& out);
};
/// What visit_tensors() returns for a type that it does not know.
struct IsOther {};
inline IsOther visit_tensors(Other other, std::vector<at::Tensor*>& out) {
  other.visit(other.value, out);
  return {};
}

/// Whether all tensors inside a T are found: not those behind pointers, and in classes that have
/// neither public members alone nor an overload of their own.
template <class T>
inline constexpr bool kIsTransparent =
    !std::is_same_v<IsOther, decltype(visit_tensors(std::declval<T&>(),
                                                    std::declval<std::vector<at::Tensor*>&>()))>;
template <class T>
requires kHasPlainMembers<T>
inline constexpr bool kIsTransparent<T> = kIsTransparent<decltype(tie_members(std::declval<T&>()))>;
template <class T>
inline constexpr bool kIsTransparent<T&> = kIsTransparent<T>;
template <class T>
inline constexpr bool kIsTransparent<std::reference_wrapper<T>> = kIsTransparent<T>;
template <class T>
inline constexpr bool kIsTransparent<std::optional<T>> = kIsTransparent<T>;
template <class T>
inline constexpr bool kIsTransparent<std::vector<T>> = kIsTransparent<T>;
template <class T, size_t N>
inline constexpr bool kIsTransparent<std::array<T, N>> = kIsTransparent<T>;
template <class A, class B>
inline constexpr bool kIsTransparent<std::pair<A, B>> = kIsTransparent<A>&& kIsTransparent<B>;
template <class... T>
inline constexpr bool kIsTransparent<std::tuple<T...>> = (kIsTransparent<T> && ...);
template <class... T>
inline constexpr bool kIsTransparent<std::variant<T...>> = (kIsTransparent<T> && ...);
template <class K, class T>
inline constexpr bool kIsTransparent<std::map<K, T>> = kIsTransparent<T>;
template <class K, class T>
inline constexpr bool kIsTransparent<std::unordered_map<K, T>> = kIsTransparent<T>;

template <class T>
void Other::visit_members(void* value, std::vector<at::Tensor*>& out) {
  if constexpr (kHasPlainMembers<T>) {
    std::apply([&out](auto&... member) { (visit_tensors(member, out), ...); },
               tie_members(*static_cast<T*>(value)));
  }
}

inline void visit_tensors(at::Tensor& tensor, std::vector<at::Tensor*>& out) {
  if (tensor.defined()) {
    out.push_back(&tensor);
  }
}
template <class T>
void visit_tensors(std::optional<T>& value, std::vector<at::Tensor*>& out) {
  if (value) {
    visit_tensors(*value, out);
  }
}
template <class T>
void visit_tensors(std::vector<T>& values, std::vector<at::Tensor*>& out) {
  if constexpr (!std::is_same_v<T, bool>) {  // whose elements are bits
    for (T& value : values) {
      visit_tensors(value, out);
    }
  }
}
template <class... T>
void visit_tensors(std::tuple<T...>& values, std::vector<at::Tensor*>& out) {
  std::apply([&out](auto&... value) { (visit_tensors(value, out), ...); }, values);
}
template <class A, class B>
void visit_tensors(std::pair<A, B>& values, std::vector<at::Tensor*>& out) {
  visit_tensors(values.first, out);
  visit_tensors(values.second, out);
}
template <class T, size_t N>
void visit_tensors(std::array<T, N>& values, std::vector<at::Tensor*>& out) {
  for (T& value : values) {
    visit_tensors(value, out);
  }
}
template <class... T>
void visit_tensors(std::variant<T...>& value, std::vector<at::Tensor*>& out) {
  std::visit([&out](auto& held) { visit_tensors(held, out); }, value);
}
template <class K, class T>
void visit_tensors(std::map<K, T>& values, std::vector<at::Tensor*>& out) {
  for (auto& [key, value] : values) {
    visit_tensors(value, out);
  }
}
// In an order that is the same wherever the map was filled in the same way, and no other is needed.
template <class K, class T>
void visit_tensors(std::unordered_map<K, T>& values, std::vector<at::Tensor*>& out) {
  for (auto& [key, value] : values) {
    visit_tensors(value, out);
  }
}
template <class T>
void visit_tensors(std::reference_wrapper<T>& value, std::vector<at::Tensor*>& out) {
  visit_tensors(value.get(), out);
}
template <class T>
requires(std::is_arithmetic_v<T> ||
         std::is_enum_v<T>) void visit_tensors(T&, std::vector<at::Tensor*>&) {}
template <class T>
requires(std::is_arithmetic_v<T>) void visit_tensors(c10::ArrayRef<T>&, std::vector<at::Tensor*>&) {
}

}  // namespace fsdp::detail
