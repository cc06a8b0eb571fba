#pragma once

#include <cstddef>

namespace fsdprun::checkpoint {

/// XXH3_64bits_update with instructions that not every x86-64 has: twice as fast. The state is the
/// same as without them. Precondition: the machine has AVX2.
void UpdateXxh3WithAvx2(void* state, const void* data, size_t byte_count);

}  // namespace fsdprun::checkpoint
