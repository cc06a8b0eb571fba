#pragma once

#include <cstdint>

namespace fsdp {

/// FNV-1a, 64 bits, over bytes or, between ranks of one build, over whole numbers. It tells apart
/// what differs by accident, not what was made to collide.
class Fnv1a {
 public:
  void mix(uint64_t value) { digest_ = (digest_ ^ value) * 0x100000001b3; }
  uint64_t digest() const { return digest_; }

 private:
  uint64_t digest_ = 0xcbf29ce484222325;
};

}  // namespace fsdp
