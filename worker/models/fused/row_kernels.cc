#include "worker/models/fused/row_kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

// One version of each loop for CPUs with AVX2 and FMA and one for any other, selected at load time,
// when the sanitizers' runtimes are not initialised yet. By the level of the instruction set:
// "arch=haswell" would select the first one on that very processor and on none of its successors.
#if FSDPRUN_HAS_ROW_VERSIONS
#define FSDPRUN_MULTIVERSION __attribute__((target_clones("arch=x86-64-v3", "default")))
#else
#define FSDPRUN_MULTIVERSION
#endif

namespace fsdprun::worker::fused {
namespace {

// So many sums side by side fill two registers of AVX2.
constexpr size_t kLanes = 16;

float SumOf(const float (&sums)[kLanes]) {
  float total = 0;
  for (const float sum : sums) {
    total += sum;
  }
  return total;
}

/// Cody and Waite's reduction to |r| <= ln(2) / 2, and Cephes' polynomial. No branch, so that the
/// loops around it become vector instructions. Below -87 it is exp(-87), 1e-38.
inline float Exp(float x) {
  const float bounded = std::min(std::max(x, -87.0F), 88.0F);
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: what is added to it is rounded.
  const float shifted = bounded * 1.44269504F + kRound;
  const float n = shifted - kRound;
  const float r = (bounded - n * 0.693359375F) + n * 2.12194440e-4F;
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  const float mantissa = p * r * r + r + 1.0F;
  const int32_t exponent = std::bit_cast<int32_t>(shifted) << 23;
  return std::bit_cast<float>(std::bit_cast<int32_t>(mantissa) + exponent);
}

inline float Sigmoid(float x) { return 1.0F / (1.0F + Exp(-x)); }

FSDPRUN_MULTIVERSION float SumOfSquares(const float* x, size_t n) {
  float sums[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) sums[lane] += x[i + lane] * x[i + lane];
  }
  for (; i < n; ++i) sums[0] += x[i] * x[i];
  return SumOf(sums);
}

FSDPRUN_MULTIVERSION float SumOfProducts(const float* a, const float* b, const float* c, size_t n) {
  float sums[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      sums[lane] += a[i + lane] * b[i + lane] * c[i + lane];
    }
  }
  for (; i < n; ++i) sums[0] += a[i] * b[i] * c[i];
  return SumOf(sums);
}

FSDPRUN_MULTIVERSION void Scale(const float* x, const float* w, float by, size_t n,
                                float* __restrict y) {
  for (size_t i = 0; i < n; ++i) y[i] = w[i] * (x[i] * by);
}

FSDPRUN_MULTIVERSION void NormGradients(const float* dy, const float* x, const float* w,
                                        float scale, float mean, size_t n, float* __restrict dx,
                                        float* __restrict dw) {
  for (size_t i = 0; i < n; ++i) {
    const float normed = x[i] * scale;
    dx[i] = scale * (dy[i] * w[i] - normed * mean);
    dw[i] += dy[i] * normed;
  }
}

FSDPRUN_MULTIVERSION void Rotate(const float* x, const float* cos, const float* sin, float sign,
                                 size_t half, float* __restrict y) {
  const float* b = x + half;
  for (size_t i = 0; i < half; ++i) {
    const float turned = sign * sin[i];
    y[i] = x[i] * cos[i] - b[i] * turned;
    y[i + half] = b[i] * cos[i] + x[i] * turned;
  }
}

FSDPRUN_MULTIVERSION float ExpOfBlock(float* __restrict x, size_t n, float shift) {
  float sums[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      x[i + lane] = Exp(x[i + lane] - shift);
      sums[lane] += x[i + lane];
    }
  }
  for (; i < n; ++i) {
    x[i] = Exp(x[i] - shift);
    sums[0] += x[i];
  }
  return SumOf(sums);
}

}  // namespace

void RmsNormRows(const float* x, const float* w, float eps, size_t rows, size_t n, float* y,
                 float* scales) {
  for (size_t row = 0; row < rows; ++row) {
    const float mean = SumOfSquares(x + row * n, n) / static_cast<float>(n);
    scales[row] = 1.0F / std::sqrt(mean + eps);
    Scale(x + row * n, w, scales[row], n, y + row * n);
  }
}

void RmsNormRowsBackward(const float* dy, const float* x, const float* w, const float* scales,
                         size_t rows, size_t n, float* dx, float* dw) {
  for (size_t row = 0; row < rows; ++row) {
    const size_t at = row * n;
    const float mean = SumOfProducts(dy + at, w, x + at, n) * scales[row] / static_cast<float>(n);
    NormGradients(dy + at, x + at, w, scales[row], mean, n, dx + at, dw);
  }
}

void RotateHeads(const float* x, const float* cos, const float* sin, size_t heads, size_t dim,
                 float* y) {
  for (size_t head = 0; head < heads; ++head) {
    Rotate(x + head * dim, cos, sin, 1.0F, dim / 2, y + head * dim);
  }
}

void RotateHeadsBack(const float* x, const float* cos, const float* sin, size_t heads, size_t dim,
                     float* y) {
  for (size_t head = 0; head < heads; ++head) {
    Rotate(x + head * dim, cos, sin, -1.0F, dim / 2, y + head * dim);
  }
}

FSDPRUN_MULTIVERSION void SwigluRow(const float* gate, const float* up, size_t n,
                                    float* __restrict y) {
  for (size_t i = 0; i < n; ++i) y[i] = gate[i] * Sigmoid(gate[i]) * up[i];
}

FSDPRUN_MULTIVERSION void SwigluRowBackward(const float* dy, const float* gate, const float* up,
                                            size_t n, float* __restrict dgate,
                                            float* __restrict dup) {
  for (size_t i = 0; i < n; ++i) {
    const float s = Sigmoid(gate[i]);
    dup[i] = dy[i] * gate[i] * s;
    dgate[i] = dy[i] * up[i] * s * (1.0F + gate[i] * (1.0F - s));
  }
}

FSDPRUN_MULTIVERSION float LargestOf(const float* x, size_t n, float low) {
  float largest[kLanes];
  std::fill(largest, largest + kLanes, low);
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      largest[lane] = largest[lane] < x[i + lane] ? x[i + lane] : largest[lane];
    }
  }
  for (; i < n; ++i) largest[0] = largest[0] < x[i] ? x[i] : largest[0];
  return *std::max_element(largest, largest + kLanes);
}

FSDPRUN_MULTIVERSION void ScaleRow(float* x, size_t n, float by) {
  for (size_t i = 0; i < n; ++i) x[i] *= by;
}

float ExpOfDifference(float* x, size_t n, float shift) {
  // Sums of sums: a vocabulary is long.
  constexpr size_t kBlock = 1024;
  float total = 0;
  for (size_t i = 0; i < n; i += kBlock) {
    total += ExpOfBlock(x + i, std::min(kBlock, n - i), shift);
  }
  return total;
}

}  // namespace fsdprun::worker::fused
