#include "rows.cuh"

// Of a row of logits: the cross entropy, and in their place its gradient, as LinearCrossEntropy()
// of ops.h needs them of a chunk.

namespace {

constexpr i64 kIgnored = -100;

/// One block a row of n logits, a multiple of kWide. targets: [rows]; count: of targets that count,
/// a float by which gradients are divided; losses: [rows], 0 where the target does not count.
template <typename T, int kWide>
__device__ void CrossEntropy(T* logits, const i64* targets, const float* count, i64 n,
                             float* losses) {
  __shared__ float scratch[2][32];
  logits += blockIdx.x * n;
  const i64 target = targets[blockIdx.x];
  if (target == kIgnored) {
    Pack<T, kWide> nothing;
    for (int k = 0; k < kWide; ++k) Store(0.0F, &nothing.values[k]);
    for (i64 i = threadIdx.x * kWide; i < n; i += blockDim.x * kWide) Write(nothing, logits + i);
    if (threadIdx.x == 0) losses[blockIdx.x] = 0.0F;
    return;
  }
  if (target < 0 || target >= n) {  // a device-side assertion, as of ATen's operations
    __assertfail("0 <= target && target < vocab_size", "cross_entropy.cu", __LINE__,
                 "LinearCrossEntropy of model.kernels=fused", sizeof(char));
    return;
  }
  const float wanted = ToFloat(logits[target]);  // before anybody writes
  float largest = -Infinity(), sum = 0;
  // In one pass: what is summed is scaled again when a larger one is met.
  for (i64 i = threadIdx.x * kWide; i < n; i += blockDim.x * kWide) {
    const Pack<T, kWide> pack = Load<kWide>(logits + i);
    float above = ToFloat(pack.values[0]);
    for (int k = 1; k < kWide; ++k) above = Largest::Of(above, ToFloat(pack.values[k]));
    if (above == -Infinity()) continue;  // adds nothing, and has no difference from a -infinity
    if (above > largest) {
      sum *= expf(largest - above);
      largest = above;
    }
    for (int k = 0; k < kWide; ++k) sum += expf(ToFloat(pack.values[k]) - largest);
  }
  const float shift = Reduce<Largest>(largest, -Infinity(), scratch[0]);
  // A thread without logits has -infinity, and a sum of 0.
  const float part = largest == shift ? sum : sum * expf(largest - shift);
  const float total = Reduce<Sum>(part, 0.0F, scratch[1]);
  const float share = 1.0F / *count, factor = share / total;
  if (threadIdx.x == 0) losses[blockIdx.x] = logf(total) - (wanted - shift);
  for (i64 i = threadIdx.x * kWide; i < n; i += blockDim.x * kWide) {
    Pack<T, kWide> pack = Load<kWide>(logits + i);
    for (int k = 0; k < kWide; ++k) {
      const float of_target = i + k == target ? share : 0.0F;
      Store(expf(ToFloat(pack.values[k]) - shift) * factor - of_target, &pack.values[k]);
    }
    Write(pack, logits + i);
  }
}

}  // namespace

#define FSDPRUN_DEFINE(suffix, T, kWide)                                           \
  FSDPRUN_KERNEL(block_sizes::kCrossEntropy)                                       \
  cross_entropy_##suffix(T* logits, const i64* targets, const float* count, i64 n, \
                         float* losses) {                                          \
    CrossEntropy<T, kWide>(logits, targets, count, n, losses);                     \
  }
FSDPRUN_INSTANCES(FSDPRUN_DEFINE)
#undef FSDPRUN_DEFINE
