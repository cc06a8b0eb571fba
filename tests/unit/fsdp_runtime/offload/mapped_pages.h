#pragma once

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <vector>

namespace fsdp::testing {

inline uintptr_t page_bytes() { return static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE)); }

/// Of the pages from `begin` to `end`, those that this process has in its page table.
inline int64_t bytes_in_page_table(uintptr_t begin, uintptr_t end) {
  std::vector<uint64_t> entries((end - begin) / page_bytes());
  const size_t bytes = entries.size() * sizeof(uint64_t);
  const int pagemap = ::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  TORCH_CHECK(pagemap >= 0, "/proc/self/pagemap cannot be opened: ", errno);
  const ssize_t read = ::pread(pagemap, entries.data(), bytes,
                               static_cast<off_t>(begin / page_bytes() * sizeof(uint64_t)));
  ::close(pagemap);
  TORCH_CHECK(read == static_cast<ssize_t>(bytes), "/proc/self/pagemap cannot be read: ", errno);
  constexpr uint64_t kIsPresent = uint64_t{1} << 63;
  return static_cast<int64_t>(page_bytes()) *
         std::count_if(entries.begin(), entries.end(),
                       [](uint64_t entry) { return (entry & kIsPresent) != 0; });
}

}  // namespace fsdp::testing
