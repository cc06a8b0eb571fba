#include "fsdp_runtime/shm/reduce.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>

// One version of each loop for AVX2 and one for the baseline, selected at load time, when the
// sanitizers' runtimes are not initialised yet.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define FSDPRUN_MULTIVERSION __attribute__((target_clones("arch=haswell", "default")))
#else
#define FSDPRUN_MULTIVERSION
#endif

namespace fsdp::shm {
namespace {

// clang 14 has no _Float16 for x86-64. Its __fp16 converts the same bits with the same rounding.
#if defined(__clang__)
using Half = __fp16;
#else
using Half = _Float16;
#endif

// Fits the L1 cache together with the sources' lines.
constexpr size_t kBlock = 1024;

FSDPRUN_MULTIVERSION void add_f32(float* acc, const float* x, size_t n) {
  for (size_t i = 0; i < n; ++i) acc[i] += x[i];
}
FSDPRUN_MULTIVERSION void add_f64(double* acc, const double* x, size_t n) {
  for (size_t i = 0; i < n; ++i) acc[i] += x[i];
}
FSDPRUN_MULTIVERSION void divide_f32(float* acc, float by, size_t n) {
  for (size_t i = 0; i < n; ++i) acc[i] /= by;
}
FSDPRUN_MULTIVERSION void divide_f64(double* acc, double by, size_t n) {
  for (size_t i = 0; i < n; ++i) acc[i] /= by;
}
FSDPRUN_MULTIVERSION void widen_bf16(float* out, const uint16_t* x, size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] = std::bit_cast<float>(uint32_t{x[i]} << 16);
}
FSDPRUN_MULTIVERSION void narrow_bf16(uint16_t* out, const float* x, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(x[i]);
    const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
    out[i] = static_cast<uint16_t>(is_nan ? 0x7fc0 : rounded);
  }
}
FSDPRUN_MULTIVERSION void widen_f16(float* out, const Half* x, size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] = static_cast<float>(x[i]);
}
FSDPRUN_MULTIVERSION void narrow_f16(Half* out, const float* x, size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] = static_cast<Half>(x[i]);
}

template <typename T>
void take_max(T* acc, const T* x, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    // A NaN in x fails acc >= x, so it is taken; one in acc stays.
    acc[i] = (acc[i] >= x[i] || acc[i] != acc[i]) ? acc[i] : x[i];
  }
}

void add(float* acc, const float* x, size_t n) { add_f32(acc, x, n); }
void add(double* acc, const double* x, size_t n) { add_f64(acc, x, n); }
template <typename Int>
void add(Int* acc, const Int* x, size_t n) {
  for (size_t i = 0; i < n; ++i) acc[i] += x[i];
}

void divide(float* acc, size_t by, size_t n) { divide_f32(acc, static_cast<float>(by), n); }
void divide(double* acc, size_t by, size_t n) { divide_f64(acc, static_cast<double>(by), n); }
template <typename Int>
void divide(Int*, size_t, size_t) {}

// Types that are accumulated without conversion.
template <typename T>
struct Plain {
  using Storage = T;
  using Acc = T;
  static const Acc* load(Acc*, const Storage* x, size_t) { return x; }
  static void store(Storage* out, const Acc* x, size_t n) { std::memcpy(out, x, n * sizeof(T)); }
};

struct BFloat16 {
  using Storage = uint16_t;
  using Acc = float;
  static const Acc* load(Acc* scratch, const Storage* x, size_t n) {
    widen_bf16(scratch, x, n);
    return scratch;
  }
  static void store(Storage* out, const Acc* x, size_t n) { narrow_bf16(out, x, n); }
};

struct Float16 {
  using Storage = Half;
  using Acc = float;
  static const Acc* load(Acc* scratch, const Storage* x, size_t n) {
    widen_f16(scratch, x, n);
    return scratch;
  }
  static void store(Storage* out, const Acc* x, size_t n) { narrow_f16(out, x, n); }
};

template <typename Type>
void reduce(void* out, const void* const* sources, size_t count, size_t numel, ReduceOp op) {
  using Storage = typename Type::Storage;
  using Acc = typename Type::Acc;
  // The sum of a block is complete before it is stored: `out` may be one of the sources.
  alignas(64) Acc acc[kBlock];
  alignas(64) Acc scratch[kBlock];
  for (size_t begin = 0; begin < numel; begin += kBlock) {
    const size_t n = std::min(kBlock, numel - begin);
    for (size_t s = 0; s < count; ++s) {
      const Acc* x = Type::load(scratch, static_cast<const Storage*>(sources[s]) + begin, n);
      if (s == 0) {
        std::memcpy(acc, x, n * sizeof(Acc));
      } else if (op == ReduceOp::kMax) {
        take_max(acc, x, n);
      } else {
        add(acc, x, n);
      }
    }
    if (op == ReduceOp::kAvg) {
      divide(acc, count, n);
    }
    Type::store(static_cast<Storage*>(out) + begin, acc, n);
  }
}

}  // namespace

size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kByte:
      return 1;
    case DType::kBF16:
    case DType::kF16:
      return 2;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kF64:
    case DType::kI64:
      return 8;
  }
  return 0;
}

const char* name_of(DType dtype) {
  static constexpr const char* kNames[] = {"byte",    "float32", "float64", "bfloat16",
                                           "float16", "int32",   "int64"};
  const auto index = static_cast<size_t>(dtype);
  return index < std::size(kNames) ? kNames[index] : "unknown";
}

void reduce_ordered(void* out, const void* const* sources, size_t count, size_t numel, DType dtype,
                    ReduceOp op) {
  switch (dtype) {
    case DType::kF32:
      return reduce<Plain<float>>(out, sources, count, numel, op);
    case DType::kF64:
      return reduce<Plain<double>>(out, sources, count, numel, op);
    case DType::kBF16:
      return reduce<BFloat16>(out, sources, count, numel, op);
    case DType::kF16:
      return reduce<Float16>(out, sources, count, numel, op);
    case DType::kI32:
      return reduce<Plain<int32_t>>(out, sources, count, numel, op);
    case DType::kI64:
      return reduce<Plain<int64_t>>(out, sources, count, numel, op);
    case DType::kByte:
      break;
  }
}

}  // namespace fsdp::shm
