// Compiled with -mavx2, and so with nothing but C headers: an inline function of C++ that is
// compiled here could be the one that the linker keeps for all.
#include "formats/checkpoint/xxh3_avx2.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace fsdprun::checkpoint {

void UpdateXxh3WithAvx2(void* state, const void* data, size_t byte_count) {
  XXH3_64bits_update(static_cast<XXH3_state_t*>(state), data, byte_count);
}

}  // namespace fsdprun::checkpoint
