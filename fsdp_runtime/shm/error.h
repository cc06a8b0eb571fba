#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace fsdp::shm {

/// Thrown by every operation of this library; names the operation, the rank and the missing peer.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& what) : std::runtime_error(what) {}
};

/// A peer died or left the group during an operation.
class PeerLost : public Error {
 public:
  PeerLost(const std::string& what, int64_t rank) : Error(what), rank(rank) {}
  int64_t rank;  // as the group calls it
};

/// Shared memory cannot be used between these ranks, but another transport may work. Thrown on all
/// ranks.
class Unavailable : public Error {
 public:
  using Error::Error;
};

}  // namespace fsdp::shm
