#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "worker/data/windows.h"

namespace fsdprun::worker {

/// Where documents end, in short, to be compared; as far as it is known without reading all
/// tokens. If it does not matter, neither is given.
struct DocumentEnds {
  /// Of all places, if an index or the ends of files say them: 16 hex digits.
  std::string digest = {};
  /// Else the id behind each document; -1: none.
  int64_t id = -1;

  bool operator==(const DocumentEnds&) const = default;
};

/// Of windows that were cut alike; of several, what is known of all of them. Precondition: not
/// empty. Pure.
DocumentEnds EndsOf(const std::vector<Windows>& sources);

/// Whether both are known in the same way, and are not the same.
bool DifferInEnds(const DocumentEnds& one, const DocumentEnds& other);

}  // namespace fsdprun::worker
