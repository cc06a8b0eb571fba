#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace fsdprun {

/// Whether elements of this type (torch.<dtype>) can be cast: float32, float64, float16, bfloat16.
bool IsCastable(std::string_view dtype);

/// Casts `count` elements as torch's `.to()` does: to the nearest value, of two the even one; too
/// large ones become infinite; float64 to the 16-bit types goes through float32. `in` and `out` do
/// not overlap. Both types are castable.
void CastElements(std::string_view from, const void* in, std::string_view to, void* out,
                  int64_t count);

/// One element as a number: exact for floating types and for integers below 2^53. Errors:
/// fsdp::archive::Error on a type that is neither.
double ElementValue(std::string_view dtype, const void* element);

}  // namespace fsdprun
