#pragma once

#include <compare>
#include <cstdint>

namespace fsdprun {

/// An integer that cannot be mixed up with another kind of id: `using Generation = StrongId<struct
/// GenerationTag>`.
template <class Tag>
class StrongId {
 public:
  constexpr StrongId() = default;
  constexpr explicit StrongId(uint64_t value) : value_(value) {}
  constexpr uint64_t value() const { return value_; }
  // clang-tidy 14 takes the 0 of a defaulted <=> for a pointer.
  // NOLINTNEXTLINE(modernize-use-nullptr)
  constexpr auto operator<=>(const StrongId&) const = default;

 private:
  uint64_t value_ = 0;
};

}  // namespace fsdprun
