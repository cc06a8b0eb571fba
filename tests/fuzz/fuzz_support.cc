#include "tests/fuzz/fuzz_support.h"

#include <sanitizer/allocator_interface.h>

#include <algorithm>
#include <cctype>
#include <cstdio>

#include "base/check.h"

namespace fsdprun::fuzz {
namespace {

// Written by the allocation hooks. The targets are single-threaded.
bool is_counting = false;
int64_t held_bytes = 0;
int64_t peak_bytes = 0;

void OnAllocation(const volatile void* /*address*/, size_t size) {
  if (is_counting) {
    held_bytes += static_cast<int64_t>(size);
    peak_bytes = std::max(peak_bytes, held_bytes);
  }
}

void OnRelease(const volatile void* address) {
  if (is_counting && address != nullptr) {
    held_bytes -= static_cast<int64_t>(__sanitizer_get_allocated_size(address));
  }
}

}  // namespace

bool IsOneLine(std::string_view text) {
  return !text.empty() && std::none_of(text.begin(), text.end(), [](char c) {
    return std::iscntrl(static_cast<unsigned char>(c)) != 0;
  });
}

MemoryBound::MemoryBound(size_t limit_bytes) : limit_bytes_(limit_bytes) {
  static const int is_installed =
      __sanitizer_install_malloc_and_free_hooks(&OnAllocation, &OnRelease);
  FSDPRUN_CHECK(is_installed > 0, "installing the allocation hooks failed");
  held_bytes = 0;
  peak_bytes = 0;
  is_counting = true;
}

MemoryBound::~MemoryBound() {
  is_counting = false;
  if (peak_bytes > static_cast<int64_t>(limit_bytes_)) {
    std::fprintf(stderr, "peak heap use %lld bytes, limit %zu\n",
                 static_cast<long long>(peak_bytes), limit_bytes_);
  }
  FSDPRUN_CHECK(peak_bytes <= static_cast<int64_t>(limit_bytes_),
                "memory use is out of proportion to the input");
}

}  // namespace fsdprun::fuzz
