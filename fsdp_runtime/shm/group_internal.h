#pragma once

#include <string>
#include <vector>

#include "fsdp_runtime/shm/group.h"

namespace fsdp::shm {

/// One collective in flight on this rank.
struct Group::Operation {
  int lane = 0;
  uint64_t sequence = 0;
  Descriptor own;
  std::chrono::steady_clock::time_point deadline;
  std::vector<bool> is_staged;  // per rank; the root's only in a broadcast
  bool is_any_staged = false;

  std::string name() const;
};

const char* name_of(Kind kind);

}  // namespace fsdp::shm
