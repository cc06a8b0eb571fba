#include "formats/tensors/cast.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "formats/tensors/dtype_names.h"
#include "fsdp_runtime/archive/error.h"

namespace fsdprun {
namespace {

constexpr uint32_t kSign = 0x80000000;
constexpr uint32_t kInfinity = 0x7f800000;
constexpr uint32_t kHalfOverflow = 0x477ff000;   // 65520, which rounds to 2^16
constexpr uint32_t kHalfNormalMin = 0x38800000;  // 2^-14
constexpr uint32_t kHalfBiasDifference = 0x38000000;

uint16_t HalfOf(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits & kSign) >> 16);
  uint32_t magnitude = bits & ~kSign;
  uint32_t half = 0;
  if (magnitude > kInfinity) {
    half = 0x7e00;
  } else if (magnitude >= kHalfOverflow) {
    half = 0x7c00;
  } else if (magnitude < kHalfNormalMin) {
    // The spacing of float32 at 0.5 is that of float16 here: the addition rounds.
    half = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) -
           std::bit_cast<uint32_t>(0.5F);
  } else {
    magnitude += 0xfff + ((magnitude >> 13) & 1);
    half = (magnitude - kHalfBiasDifference) >> 13;
  }
  return static_cast<uint16_t>(sign | half);
}

float OfHalf(uint16_t half) {
  const int exponent = (half >> 10) & 0x1f;
  const int fraction = half & 0x3ff;
  float magnitude = 0;
  if (exponent == 0x1f) {
    magnitude = std::bit_cast<float>(kInfinity | static_cast<uint32_t>(fraction) << 13);
  } else if (exponent == 0) {
    magnitude = std::ldexp(static_cast<float>(fraction), -24);
  } else {
    magnitude = std::ldexp(static_cast<float>(fraction + 0x400), exponent - 25);
  }
  return (half & 0x8000) != 0 ? -magnitude : magnitude;
}

uint16_t BrainOf(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & ~kSign) > kInfinity) {
    return 0x7fc0;
  }
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

template <typename T>
T Load(const void* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

/// The value of a castable element.
double FloatingValue(std::string_view dtype, const void* element) {
  if (dtype == "float32") {
    return Load<float>(element);
  }
  if (dtype == "float64") {
    return Load<double>(element);
  }
  if (dtype == "float16") {
    return OfHalf(Load<uint16_t>(element));
  }
  return std::bit_cast<float>(static_cast<uint32_t>(Load<uint16_t>(element)) << 16);
}

void StoreFloating(std::string_view dtype, double value, char* out) {
  if (dtype == "float64") {
    std::memcpy(out, &value, sizeof value);
    return;
  }
  const auto single = static_cast<float>(value);
  if (dtype == "float32") {
    std::memcpy(out, &single, sizeof single);
    return;
  }
  const uint16_t narrow = dtype == "float16" ? HalfOf(single) : BrainOf(single);
  std::memcpy(out, &narrow, sizeof narrow);
}

}  // namespace

bool IsCastable(std::string_view dtype) {
  return dtype == "float32" || dtype == "float64" || dtype == "float16" || dtype == "bfloat16";
}

void CastElements(std::string_view from, const void* in, std::string_view to, void* out,
                  int64_t count) {
  const int64_t from_bytes = ElementBytes(from, "the input");
  const int64_t to_bytes = ElementBytes(to, "the output");
  if (from == to) {
    std::memcpy(out, in, static_cast<size_t>(count * from_bytes));
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    StoreFloating(to, FloatingValue(from, static_cast<const char*>(in) + i * from_bytes),
                  static_cast<char*>(out) + i * to_bytes);
  }
}

double ElementValue(std::string_view dtype, const void* element) {
  if (IsCastable(dtype)) {
    return FloatingValue(dtype, element);
  }
  if (dtype == "int64") {
    return static_cast<double>(Load<int64_t>(element));
  }
  if (dtype == "int32") {
    return Load<int32_t>(element);
  }
  if (dtype == "int16") {
    return Load<int16_t>(element);
  }
  if (dtype == "int8") {
    return Load<int8_t>(element);
  }
  if (dtype == "uint8" || dtype == "bool") {
    return Load<uint8_t>(element);
  }
  throw fsdp::archive::Error("elements of dtype " + std::string(dtype) + " are no numbers here");
}

}  // namespace fsdprun
