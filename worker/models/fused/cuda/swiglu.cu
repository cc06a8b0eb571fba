#include "rows.cuh"

// y = silu(gate) * up, as SwigluRow() of row_kernels.h.

namespace {

__device__ inline float Sigmoid(float x) { return 1.0F / (1.0F + expf(-x)); }

template <typename T>
struct Forward {
  const T* gate;
  const T* up;
  T* y;

  template <int kWide>
  __device__ void At(i64 i) const {
    const Pack<T, kWide> a = Load<kWide>(gate + i), b = Load<kWide>(up + i);
    Pack<T, kWide> to;
    for (int k = 0; k < kWide; ++k) {
      const float g = ToFloat(a.values[k]);
      Store(g * Sigmoid(g) * ToFloat(b.values[k]), &to.values[k]);
    }
    Write(to, y + i);
  }
};

template <typename T>
struct Backward {
  const T* dy;
  const T* gate;
  const T* up;
  T* dgate;
  T* dup;

  template <int kWide>
  __device__ void At(i64 i) const {
    const Pack<T, kWide> by = Load<kWide>(dy + i);
    const Pack<T, kWide> a = Load<kWide>(gate + i), b = Load<kWide>(up + i);
    Pack<T, kWide> to_gate, to_up;
    for (int k = 0; k < kWide; ++k) {
      const float g = ToFloat(a.values[k]), s = Sigmoid(g), d = ToFloat(by.values[k]);
      Store(d * g * s, &to_up.values[k]);
      Store(d * ToFloat(b.values[k]) * s * (1.0F + g * (1.0F - s)), &to_gate.values[k]);
    }
    Write(to_gate, dgate + i);
    Write(to_up, dup + i);
  }
};

/// All of n numbers, in packs, and one at a time where they do not fill one.
template <int kWide, typename Operation>
__device__ void ForEach(i64 n, const Operation& operation) {
  const i64 thread = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x;
  const i64 threads = static_cast<i64>(gridDim.x) * blockDim.x;
  const i64 packs = n / kWide;
  for (i64 pack = thread; pack < packs; pack += threads) {
    operation.template At<kWide>(pack * kWide);
  }
  for (i64 i = packs * kWide + thread; i < n; i += threads) {
    operation.template At<1>(i);
  }
}

}  // namespace

#define FSDPRUN_DEFINE(suffix, T, kWide)                                                          \
  FSDPRUN_KERNEL(block_sizes::kSwiglu) swiglu_##suffix(const T* gate, const T* up, i64 n, T* y) { \
    ForEach<kWide>(n, Forward<T>{gate, up, y});                                                   \
  }                                                                                               \
  FSDPRUN_KERNEL(block_sizes::kSwiglu)                                                            \
  swiglu_backward_##suffix(const T* dy, const T* gate, const T* up, i64 n, T* dgate, T* dup) {    \
    ForEach<kWide>(n, Backward<T>{dy, gate, up, dgate, dup});                                     \
  }
FSDPRUN_INSTANCES(FSDPRUN_DEFINE)
#undef FSDPRUN_DEFINE
