#pragma once

// What the kernels of fused operations have in common. NVRTC compiles them with nothing but its
// builtins, hence the bfloat16 of our own; a test compiles them as C++, with what CUDA has built in
// defined by its emulation.

#include "block_sizes.h"

using i64 = long long;
namespace block_sizes = fsdprun::worker::fused::block_sizes;

/// Of blocks of up to so many threads, whose registers it fits.
#define FSDPRUN_KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads)

struct Bfloat16 {
  unsigned short bits;
};

/// kWide numbers that are read and written by one instruction.
template <typename T, int kWide>
struct alignas(sizeof(T) * kWide) Pack {
  T values[kWide];
};

__device__ inline float ToFloat(float x) { return x; }
__device__ inline float ToFloat(Bfloat16 x) {
  return __uint_as_float(static_cast<unsigned>(x.bits) << 16);
}

__device__ inline void Store(float x, float* to) { *to = x; }
/// To the nearest one, to the even one of two; NaN stays NaN.
__device__ inline void Store(float x, Bfloat16* to) {
  const unsigned bits = __float_as_uint(x);
  const unsigned rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  to->bits = static_cast<unsigned short>(x == x ? rounded : 0x7fc0U);
}

__device__ inline float Infinity() { return __uint_as_float(0x7f800000U); }

template <int kWide, typename T>
__device__ inline Pack<T, kWide> Load(const T* from) {
  return *reinterpret_cast<const Pack<T, kWide>*>(from);
}

template <int kWide, typename T>
__device__ inline void Write(const Pack<T, kWide>& pack, T* to) {
  *reinterpret_cast<Pack<T, kWide>*>(to) = pack;
}

struct Sum {
  __device__ static float Of(float a, float b) { return a + b; }
};

struct Largest {
  __device__ static float Of(float a, float b) { return b > a || b != b ? b : a; }  // keeps NaN
};

/// Of all threads of the block, to each of them; always in the same order. `scratch`: 32 floats of
/// shared memory, free again when the threads have next met. A block is whole warps.
template <typename Operation>
__device__ inline float Reduce(float value, float nothing, float* scratch) {
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  for (int distance = 16; distance > 0; distance /= 2) {
    value = Operation::Of(value, __shfl_xor_sync(0xffffffffU, value, distance));
  }
  if (lane == 0) scratch[warp] = value;
  __syncthreads();
  value = lane < warps ? scratch[lane] : nothing;
  for (int distance = 16; distance > 0; distance /= 2) {
    value = Operation::Of(value, __shfl_xor_sync(0xffffffffU, value, distance));
  }
  return value;
}

// Kernels are templates of a dtype and of how many numbers a thread takes at a time. Each has four
// instances with names that the driver finds: rope_f32, rope_f32_wide and so on.
#define FSDPRUN_INSTANCES(define)                                            \
  define(f32, float, 1) define(f32_wide, float, 4) define(bf16, Bfloat16, 1) \
      define(bf16_wide, Bfloat16, 8)
