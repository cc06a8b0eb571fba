#pragma once

#include <stdexcept>
#include <string>

namespace fsdp::shm {

/// What every operation of this library throws: says what was attempted, on which rank, and who is
/// missing.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& what) : std::runtime_error(what) {}
};

/// A peer died or left the group while others needed it.
class PeerLost : public Error {
 public:
  using Error::Error;
};

/// Shared memory cannot be used between these ranks; another transport may. All ranks get it.
class Unavailable : public Error {
 public:
  using Error::Error;
};

}  // namespace fsdp::shm
