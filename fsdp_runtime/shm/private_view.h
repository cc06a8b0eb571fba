#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "fsdp_runtime/shm/mapping.h"

namespace fsdp::shm {

/// Which pages of this process are copies of its own. What a fork has left behind cannot use it.
class PageMap {
 public:
  /// `pages`: /proc/self/pagemap. Any other descriptor, or none: nobody can tell.
  explicit PageMap(Fd pages) : pages_(std::move(pages)) {}
  static PageMap of_this_process();

  /// Whether each of `count` pages from `first` on is a copy; false if nobody can tell.
  bool find_copies(const char* first, size_t count, bool* is_copy) const;
  /// Whether anybody can tell. A process that may not be traced cannot read its page map, nor can
  /// one in some sandboxes.
  bool is_readable() const;
  /// At most so many at once.
  static constexpr size_t kPagesMax = 512;

 private:
  Fd pages_;
};

/// Parts of shared mappings, end to end in one range of addresses. Reads see the shared memory. A
/// write makes a copy of its page for this process alone, which hides the shared page until
/// forget_writes(): it never reaches the shared memory.
class PrivateView {
 public:
  struct Part {
    const Mapping* memory;  // with its descriptor open; need not outlive the view
    size_t offset;          // a multiple of page_bytes()
  };
  /// `bytes`: of each part, a multiple of page_bytes(). Errors: Error if the system has no room, or
  /// the views of this process have more than kPartsMax parts.
  PrivateView(const std::vector<Part>& parts, size_t bytes);
  ~PrivateView();
  PrivateView(const PrivateView&) = delete;
  PrivateView& operator=(const PrivateView&) = delete;

  /// The kernel allows a process some 65,000 mappings (vm.max_map_count), and each part is one. Who
  /// had used them up could start no thread and allocate no memory.
  static constexpr size_t kPartsMax = 16384;

  char* data() const { return data_; }
  /// The shared memory is seen again everywhere. Only copies are looked for and dropped: to drop
  /// all pages, and to fault those back in that were only read, takes longer than to copy the
  /// memory. Errors: Error if the kernel keeps the copies.
  void forget_writes(const PageMap& pages);

 private:
  void drop(char* begin, size_t bytes);

  size_t parts_ = 0;
  char* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace fsdp::shm
