#pragma once

// Put before every rewritten source: each of its guards passes through NegateIf with a number of
// its own, so that one build holds all mutants and the environment chooses.

#include <cstdlib>

namespace fsdprun_guards {

/// The guard that this process negates; 0 for none.
inline int Negated() {
  static const int negated = [] {
    const char* text = std::getenv("FSDPRUN_NEGATE");
    return text == nullptr ? 0 : std::atoi(text);
  }();
  return negated;
}

inline bool NegateIf(int guard, bool value) { return value != (Negated() == guard); }

}  // namespace fsdprun_guards
