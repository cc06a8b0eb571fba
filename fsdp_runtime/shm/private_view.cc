#include "fsdp_runtime/shm/private_view.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>

#include "fsdp_runtime/shm/error.h"

namespace fsdp::shm {
namespace {

// Of an entry of the page map: the page is in memory or swapped out; it is a file's.
constexpr uint64_t kInUse = uint64_t{3} << 62;
constexpr uint64_t kShared = uint64_t{1} << 61;

std::atomic<size_t> parts_of_all_views{0};

[[noreturn]] void fail(const std::string& attempted, const char* advice) {
  throw Error(attempted + ": " + std::strerror(errno) + " (" + advice + ")");
}

}  // namespace

PageMap PageMap::of_this_process() {
  return PageMap(Fd(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC)));
}

bool PageMap::find_copies(const char* first, size_t count, bool* is_copy) const {
  std::array<uint64_t, kPagesMax> entries;
  const size_t bytes = count * sizeof(uint64_t);
  const uintptr_t number = reinterpret_cast<uintptr_t>(first) / page_bytes();
  if (!pages_.valid() ||
      ::pread(pages_.get(), entries.data(), bytes, static_cast<off_t>(number * sizeof(uint64_t))) !=
          static_cast<ssize_t>(bytes)) {
    return false;
  }
  for (size_t i = 0; i < count; ++i) {
    is_copy[i] = (entries[i] & kInUse) != 0 && (entries[i] & kShared) == 0;
  }
  return true;
}

bool PageMap::is_readable() const {
  bool is_copy = false;
  return find_copies(reinterpret_cast<const char*>(this), 1, &is_copy);
}

PrivateView::PrivateView(const std::vector<Part>& parts, size_t bytes)
    : parts_(parts.size()), bytes_(parts.size() * bytes) {
  if (parts_of_all_views.load() + parts_ > kPartsMax) {
    throw Error("mapping a window of " + std::to_string(parts_) +
                " parts: the windows of this process have " +
                std::to_string(parts_of_all_views.load()) + " already, and may have " +
                std::to_string(kPartsMax));
  }
  void* range =
      ::mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) {
    fail("reserving " + std::to_string(bytes_) + " bytes of addresses for a window",
         "is the address space limited? see ulimit -v");
  }
  data_ = static_cast<char*>(range);
  for (size_t i = 0; i < parts.size(); ++i) {
    void* part = ::mmap(data_ + i * bytes, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, parts[i].memory->fd(),
                        static_cast<off_t>(parts[i].offset));
    if (part == MAP_FAILED) {
      const int error = errno;
      ::munmap(data_, bytes_);
      errno = error;
      fail("mapping a rank's part of a window", "see the limit vm.max_map_count");
    }
  }
  // Where all memory is to be locked, the kernel has made a copy of every page by now, and would
  // keep it. The other is a hint, as for peers' memory.
  ::munlock(data_, bytes_);
  ::madvise(data_, bytes_, MADV_DONTNEED);
  ::madvise(data_, bytes_, MADV_DONTDUMP);
  parts_of_all_views += parts_;
}

PrivateView::~PrivateView() {
  ::munmap(data_, bytes_);
  parts_of_all_views -= parts_;
}

void PrivateView::forget_writes(const PageMap& pages) {
  const size_t page = page_bytes();
  const size_t count = bytes_ / page;
  std::array<bool, PageMap::kPagesMax> is_copy{};
  for (size_t first = 0; first < count; first += is_copy.size()) {
    char* begin = data_ + first * page;
    const size_t here = std::min(count - first, is_copy.size());
    if (!pages.find_copies(begin, here, is_copy.data())) {
      drop(begin, bytes_ - first * page);
      return;
    }
    for (size_t i = 0; i < here; ++i) {
      const size_t run = i;
      while (i < here && is_copy[i]) {
        ++i;
      }
      if (i > run) {
        drop(begin + run * page, (i - run) * page);
      }
    }
  }
}

void PrivateView::drop(char* begin, size_t bytes) {
  if (::madvise(begin, bytes, MADV_DONTNEED) != 0) {
    fail("dropping what this rank has written over a gathered window",
         "has the program locked its memory, with mlock or mlockall? shared-memory windows cannot "
         "be used then");
  }
}

}  // namespace fsdp::shm
