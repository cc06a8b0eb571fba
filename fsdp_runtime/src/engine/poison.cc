#include "fsdp_runtime/src/engine/poison.h"

#include <sys/mman.h>

#include <algorithm>
#include <mutex>

namespace fsdp {

void* poison_address(int64_t bytes) {
  static std::mutex mutex;
  static void* address = nullptr;
  static int64_t reserved = 0;
  std::lock_guard<std::mutex> lock(mutex);
  if (bytes > reserved) {
    // Doubling limits the number of outgrown reservations, which storages may still point to.
    const int64_t wanted = std::max({bytes, 2 * reserved, int64_t{1} << 30});
    void* mapped = mmap(nullptr, static_cast<size_t>(wanted), PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) {
      return nullptr;
    }
    address = mapped;
    reserved = wanted;
  }
  return address;
}

}  // namespace fsdp
