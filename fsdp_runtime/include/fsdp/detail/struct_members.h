#pragma once

#include <cstddef>
#include <cstdlib>
#include <tuple>
#include <type_traits>
#include <utility>

namespace fsdp::detail {

/// What a member of a T may be initialised from, whatever it is; a base of T may not.
template <class T, size_t Index>
struct AnyMember {
  template <class U>
  requires(!std::is_base_of_v<U, T>) operator U() const {  // NOLINT(google-explicit-constructor)
    std::abort();  // it is only asked whether it could be called
  }
};

template <class T, size_t... I>
constexpr bool takes_members(std::index_sequence<I...>) {
  return requires { T{AnyMember<T, I>{}...}; };
}

inline constexpr size_t kMostMembers = 12;

/// How many initialisers a T takes: its members, but each element of a C array and each member of
/// a base, too.
template <class T, size_t N = kMostMembers + 1>
constexpr size_t count_initializers() {
  if constexpr (N == 0) {
    return 0;
  } else if constexpr (takes_members<T>(std::make_index_sequence<N>())) {
    return N;
  } else {
    return count_initializers<T, N - 1>();
  }
}

/// Whether a T takes N empty initialisers, of which an array and a base take one each.
template <class T, size_t N>
constexpr bool takes_empty() {
  // clang-format off
  if constexpr (N == 1) return requires { T{{}}; };
  else if constexpr (N == 2) return requires { T{{}, {}}; };
  else if constexpr (N == 3) return requires { T{{}, {}, {}}; };
  else if constexpr (N == 4) return requires { T{{}, {}, {}, {}}; };
  else if constexpr (N == 5) return requires { T{{}, {}, {}, {}, {}}; };
  else if constexpr (N == 6) return requires { T{{}, {}, {}, {}, {}, {}}; };
  else if constexpr (N == 7) return requires { T{{}, {}, {}, {}, {}, {}, {}}; };
  else if constexpr (N == 8) return requires { T{{}, {}, {}, {}, {}, {}, {}, {}}; };
  else if constexpr (N == 9) return requires { T{{}, {}, {}, {}, {}, {}, {}, {}, {}}; };
  else if constexpr (N == 10) return requires { T{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}}; };
  else if constexpr (N == 11) return requires { T{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}}; };
  else if constexpr (N == 12) return requires { T{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}}; };
  else return false;
  // clang-format on
}

template <class T>
constexpr bool has_plain_members() {
  if constexpr (std::is_aggregate_v<T> && std::is_class_v<T>) {
    constexpr size_t kCount = count_initializers<T>();
    if constexpr (kCount >= 1 && kCount <= kMostMembers) {
      return takes_empty<T, kCount>();
    }
  }
  return false;
}

/// Whether tie_members() can go through a T: a struct of 1 to kMostMembers public members
/// that can be made from {}, without a base and without a C array.
template <class T>
inline constexpr bool kHasPlainMembers = has_plain_members<T>();

/// References to the members of a struct with kHasPlainMembers, in their order.
template <class T>
auto tie_members(T& value) {
  constexpr size_t kCount = count_initializers<T>();
  // clang-format off
  if constexpr (kCount == 1) { auto& [m1] = value; return std::tie(m1); }
  else if constexpr (kCount == 2) { auto& [m1, m2] = value; return std::tie(m1, m2); }
  else if constexpr (kCount == 3) { auto& [m1, m2, m3] = value; return std::tie(m1, m2, m3); }
  else if constexpr (kCount == 4) { auto& [m1, m2, m3, m4] = value; return std::tie(m1, m2, m3, m4); }
  else if constexpr (kCount == 5) { auto& [m1, m2, m3, m4, m5] = value; return std::tie(m1, m2, m3, m4, m5); }
  else if constexpr (kCount == 6) { auto& [m1, m2, m3, m4, m5, m6] = value; return std::tie(m1, m2, m3, m4, m5, m6); }
  else if constexpr (kCount == 7) { auto& [m1, m2, m3, m4, m5, m6, m7] = value; return std::tie(m1, m2, m3, m4, m5, m6, m7); }
  else if constexpr (kCount == 8) { auto& [m1, m2, m3, m4, m5, m6, m7, m8] = value; return std::tie(m1, m2, m3, m4, m5, m6, m7, m8); }
  else if constexpr (kCount == 9) { auto& [m1, m2, m3, m4, m5, m6, m7, m8, m9] = value; return std::tie(m1, m2, m3, m4, m5, m6, m7, m8, m9); }
  else if constexpr (kCount == 10) { auto& [m1, m2, m3, m4, m5, m6, m7, m8, m9, m10] = value; return std::tie(m1, m2, m3, m4, m5, m6, m7, m8, m9, m10); }
  else if constexpr (kCount == 11) { auto& [m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11] = value; return std::tie(m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11); }
  else if constexpr (kCount == 12) { auto& [m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12] = value; return std::tie(m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12); }
  // clang-format on
}

}  // namespace fsdp::detail
