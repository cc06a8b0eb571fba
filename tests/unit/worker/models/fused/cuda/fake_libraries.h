#pragma once

#include <string>
#include <vector>

namespace fsdprun::worker {

/// What a double of NVRTC or of the driver does, and was asked; each of the two has one, which its
/// function FakeOf...() returns.
struct FakeLibrary {
  std::vector<std::string> calls;  // "name argument argument", but for texts of errors
  std::string failing;             // the function that fails
  int failure = 2;                 // of the driver: what it returns then
  std::string log;                 // of a compilation that fails
};

}  // namespace fsdprun::worker
