#pragma once

#include <cstdint>
#include <optional>
#include <utility>

namespace fsdprun {

/// What follows from a state with a revision: computed anew only when that has changed. Thread: of
/// its owner.
template <typename T>
class AtRevision {
 public:
  /// `compute` returns it for the present state, which has `revision`.
  template <typename Compute>
  const T& Get(uint64_t revision, const Compute& compute) {
    if (std::exchange(revision_, revision) != revision) {
      value_ = compute();
    }
    return value_;
  }

 private:
  std::optional<uint64_t> revision_;
  T value_{};
};

}  // namespace fsdprun
