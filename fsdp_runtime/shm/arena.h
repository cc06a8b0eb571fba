#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>

#include "fsdp_runtime/shm/mapping.h"

namespace fsdp::shm {

/// Allocator over one shared mapping. Freed memory is returned to the system at once, so the
/// arena's size is only address space. Best fit over coalesced free ranges: for a few large,
/// long-lived allocations, not for many small ones. Any thread.
class Arena {
 public:
  static constexpr size_t kAlignment = 64;

  /// Shares ownership of `memory`.
  explicit Arena(std::shared_ptr<Mapping> memory);

  /// nullptr when no range of `bytes` is left.
  void* allocate(size_t bytes);
  /// `piece` must come from allocate().
  void free(void* piece);
  /// Bytes currently allocated.
  size_t allocated_bytes() const;

 private:
  void release_pages(size_t begin, size_t end);

  const std::shared_ptr<Mapping> memory_;
  mutable std::mutex mu_;
  std::map<size_t, size_t> free_;  // guarded by mu_: begin -> end of each free range
  std::map<size_t, size_t> used_;  // guarded by mu_: begin -> end of each piece
  size_t allocated_bytes_ = 0;     // guarded by mu_
};

}  // namespace fsdp::shm
