#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "fsdp_runtime/shm/mapping.h"

namespace fsdp::shm {

/// Allocator over one shared mapping. Freed memory is returned to the system at once, so the
/// arena's size is only address space. Best fit over coalesced free ranges: for a few large,
/// long-lived allocations, not for many small ones. Any thread. What a fork has left behind of it
/// in a child leaves the memory alone.
class Arena {
 public:
  static constexpr size_t kAlignment = 64;
  /// So that freeing a large piece releases all its pages.
  static constexpr size_t kPageAlignedFrom = 64 * 1024;

  /// Shares ownership of `memory`.
  explicit Arena(std::shared_ptr<Mapping> memory);

  /// nullptr when no range of `bytes` is left. Page-aligned from kPageAlignedFrom bytes on.
  void* allocate(size_t bytes) { return allocate(bytes, bytes >= kPageAlignedFrom); }
  /// Page-aligned, however small.
  void* allocate_pages(size_t bytes) { return allocate(bytes, true); }
  /// `piece` must come from allocate().
  void free(void* piece);
  /// Frees `piece` at once if is_unused() holds, else at the first allocation after it does.
  void free_once(void* piece, std::function<bool()> is_unused);
  /// Bytes currently allocated.
  size_t allocated_bytes() const;

 private:
  struct Postponed {
    void* piece;
    std::function<bool()> is_unused;
  };

  void* allocate(size_t bytes, bool in_pages);
  // With mu_ held.
  void free_what_is_unused();
  void free_now(void* piece);
  void release_pages(size_t begin, size_t end);

  const std::shared_ptr<Mapping> memory_;
  const pid_t process_;
  mutable std::mutex mu_;
  std::map<size_t, size_t> free_;     // guarded by mu_: begin -> end of each free range
  std::map<size_t, size_t> used_;     // guarded by mu_: begin -> end of each piece
  size_t allocated_bytes_ = 0;        // guarded by mu_
  std::vector<Postponed> postponed_;  // guarded by mu_
};

}  // namespace fsdp::shm
