#pragma once

#include <cstddef>
#include <cstdint>

namespace fsdp::shm {

enum class DType : uint8_t { kByte, kF32, kF64, kBF16, kF16, kI32, kI64 };
enum class ReduceOp : uint8_t { kSum, kAvg, kMax };
/// What becomes of what a reduction gives: out = it, or out += it.
enum class Result : uint8_t { kStored, kAdded };

size_t size_of(DType dtype);
const char* name_of(DType dtype);

/// out[i] = sources[0][i] op sources[1][i] op ..., evaluated in this order, so that every run and
/// every machine gives the same bits. bfloat16 and float16 are added in float32 and rounded once.
/// kAvg divides the sum by `count`; it is not defined for integers, and bytes cannot be reduced.
/// kMax propagates NaN. `out` may be one of the sources, if the result is stored. kAdded is for
/// float32 and float64, and has the bits of an addition of its own.
void reduce_ordered(void* out, const void* const* sources, size_t count, size_t numel, DType dtype,
                    ReduceOp op, Result result = Result::kStored);

}  // namespace fsdp::shm
