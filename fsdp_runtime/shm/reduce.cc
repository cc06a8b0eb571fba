#include "fsdp_runtime/shm/reduce.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <type_traits>

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
FSDPRUN_MULTIVERSION void add_two_f32(float* __restrict out, const float* a, const float* b,
                                      size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] = a[i] + b[i];
}
FSDPRUN_MULTIVERSION void add_two_f64(double* __restrict out, const double* a, const double* b,
                                      size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] = a[i] + b[i];
}
FSDPRUN_MULTIVERSION void divide_f32(float* acc, float by, size_t n) {
  for (size_t i = 0; i < n; ++i) acc[i] /= by;
}
FSDPRUN_MULTIVERSION void divide_f64(double* acc, double by, size_t n) {
  for (size_t i = 0; i < n; ++i) acc[i] /= by;
}
FSDPRUN_MULTIVERSION void multiply_f32(float* acc, float by, size_t n) {
  for (size_t i = 0; i < n; ++i) acc[i] *= by;
}
FSDPRUN_MULTIVERSION void multiply_f64(double* acc, double by, size_t n) {
  for (size_t i = 0; i < n; ++i) acc[i] *= by;
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

void add_two(float* out, const float* a, const float* b, size_t n) { add_two_f32(out, a, b, n); }
void add_two(double* out, const double* a, const double* b, size_t n) { add_two_f64(out, a, b, n); }
template <typename Int>
void add_two(Int* out, const Int* a, const Int* b, size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] = a[i] + b[i];
}

// The reciprocal of a power of two is exact, so multiplication by it has the bits of the division,
// in a fraction of the time.
void divide(float* acc, size_t by, size_t n) {
  if (std::has_single_bit(by)) {
    multiply_f32(acc, 1.0F / static_cast<float>(by), n);
  } else {
    divide_f32(acc, static_cast<float>(by), n);
  }
}
void divide(double* acc, size_t by, size_t n) {
  if (std::has_single_bit(by)) {
    multiply_f64(acc, 1.0 / static_cast<double>(by), n);
  } else {
    divide_f64(acc, static_cast<double>(by), n);
  }
}
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

/// acc = the `n` elements from `begin` of all sources, reduced.
template <typename Type>
void reduce_block(typename Type::Acc* acc, const void* const* sources, size_t count, size_t begin,
                  size_t n, ReduceOp op) {
  using Acc = typename Type::Acc;
  const auto load = [&](Acc* scratch, size_t source) {
    return Type::load(scratch, static_cast<const typename Type::Storage*>(sources[source]) + begin,
                      n);
  };
  alignas(64) Acc scratch[kBlock];
  const Acc* first = load(acc, 0);
  size_t next = 1;
  if (first != acc && count > 1 && op != ReduceOp::kMax) {
    add_two(acc, first, load(scratch, next++), n);  // without a copy of the first
  } else if (first != acc) {
    std::memcpy(acc, first, n * sizeof(Acc));
  }
  for (; next < count; ++next) {
    const Acc* x = load(scratch, next);
    if (op == ReduceOp::kMax) {
      take_max(acc, x, n);
    } else {
      add(acc, x, n);
    }
  }
  if (op == ReduceOp::kAvg) {
    divide(acc, count, n);
  }
}

template <typename Type>
void reduce(void* out, const void* const* sources, size_t count, size_t numel, ReduceOp op,
            Result result) {
  using Storage = typename Type::Storage;
  // The sum of a block is complete before it is stored: `out` may be one of the sources.
  alignas(64) typename Type::Acc acc[kBlock];
  for (size_t begin = 0; begin < numel; begin += kBlock) {
    const size_t n = std::min(kBlock, numel - begin);
    reduce_block<Type>(acc, sources, count, begin, n, op);
    Storage* target = static_cast<Storage*>(out) + begin;
    if constexpr (std::is_floating_point_v<Storage>) {
      if (result == Result::kAdded) {
        add(target, acc, n);
        continue;
      }
    }
    Type::store(target, acc, n);
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
                    ReduceOp op, Result result) {
  switch (dtype) {
    case DType::kF32:
      return reduce<Plain<float>>(out, sources, count, numel, op, result);
    case DType::kF64:
      return reduce<Plain<double>>(out, sources, count, numel, op, result);
    case DType::kBF16:
      return reduce<BFloat16>(out, sources, count, numel, op, result);
    case DType::kF16:
      return reduce<Float16>(out, sources, count, numel, op, result);
    case DType::kI32:
      return reduce<Plain<int32_t>>(out, sources, count, numel, op, result);
    case DType::kI64:
      return reduce<Plain<int64_t>>(out, sources, count, numel, op, result);
    case DType::kByte:
      break;
  }
}

}  // namespace fsdp::shm
