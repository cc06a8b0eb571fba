#include "rows.cuh"

// (a, b) -> (a cos - b sin, b cos + a sin), as RotateHeads() of row_kernels.h.

namespace {

/// Distances between neighbours of an axis, in numbers; those of a head lie side by side.
struct Strides {
  i64 batch, token, head;
};

/// One block a token. cos, sin: [length, 2 * half], of which the halves are equal; y: contiguous
/// [batch, length, heads, 2 * half]. sign: -1 turns back, which is the gradient.
template <typename T, int kWide>
__device__ void Rope(const T* x, Strides strides, const T* cos, const T* sin, float sign,
                     i64 length, int heads, int half, T* y) {
  const i64 token = blockIdx.x % length;
  x += blockIdx.x / length * strides.batch + token * strides.token;
  y += blockIdx.x * static_cast<i64>(heads) * half * 2;
  cos += token * half * 2;
  sin += token * half * 2;
  const int packs = half / kWide;
  for (int pack = static_cast<int>(threadIdx.x); pack < heads * packs;
       pack += static_cast<int>(blockDim.x)) {
    const int head = pack / packs, i = pack % packs * kWide;
    const T* const from = x + head * strides.head + i;
    const Pack<T, kWide> a = Load<kWide>(from), b = Load<kWide>(from + half);
    const Pack<T, kWide> c = Load<kWide>(cos + i), s = Load<kWide>(sin + i);
    Pack<T, kWide> first, second;
    for (int k = 0; k < kWide; ++k) {
      const float turned = sign * ToFloat(s.values[k]), straight = ToFloat(c.values[k]);
      const float left = ToFloat(a.values[k]), right = ToFloat(b.values[k]);
      Store(left * straight - right * turned, &first.values[k]);
      Store(right * straight + left * turned, &second.values[k]);
    }
    T* const to = y + static_cast<i64>(head) * half * 2 + i;
    Write(first, to);
    Write(second, to + half);
  }
}

}  // namespace

#define FSDPRUN_DEFINE(suffix, T, kWide)                                                        \
  FSDPRUN_KERNEL(block_sizes::kRope)                                                            \
  rope_##suffix(const T* x, i64 batch_stride, i64 token_stride, i64 head_stride, const T* cos,  \
                const T* sin, float sign, i64 length, int heads, int half, T* y) {              \
    Rope<T, kWide>(x, {batch_stride, token_stride, head_stride}, cos, sin, sign, length, heads, \
                   half, y);                                                                    \
  }
FSDPRUN_INSTANCES(FSDPRUN_DEFINE)
#undef FSDPRUN_DEFINE
