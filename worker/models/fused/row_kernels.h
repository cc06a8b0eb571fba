#pragma once

#include <cstddef>

/// 1: each loop has a version for CPUs with AVX2 and FMA (x86-64-v3), and one for any other.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define FSDPRUN_HAS_ROW_VERSIONS 1
#else
#define FSDPRUN_HAS_ROW_VERSIONS 0
#endif

namespace fsdprun::worker::fused {

// Loops over float32 rows in memory, without LibTorch. Threads: each is one thread's; calls on
// different rows may run side by side.

/// Of `rows` rows of `n`: y = x * w / sqrt(mean(x^2) + eps). `scales` gets the factor of each row.
void RmsNormRows(const float* x, const float* w, float eps, size_t rows, size_t n, float* y,
                 float* scales);

/// Its gradients: writes dx, and adds to dw. `scales`: from RmsNormRows.
void RmsNormRowsBackward(const float* dy, const float* x, const float* w, const float* scales,
                         size_t rows, size_t n, float* dx, float* dw);

/// Of the `heads` heads of one token, each of `dim` numbers: (a, b) -> (a cos - b sin, b cos + a
/// sin), where a is the first half of a head and b the second. cos, sin: [dim / 2].
void RotateHeads(const float* x, const float* cos, const float* sin, size_t heads, size_t dim,
                 float* y);

/// As RotateHeads() by the negative angles, which is its gradient.
void RotateHeadsBack(const float* x, const float* cos, const float* sin, size_t heads, size_t dim,
                     float* y);

/// y = silu(gate) * up. exp() is within 2 units in the last place.
void SwigluRow(const float* gate, const float* up, size_t n, float* y);

/// Its gradients.
void SwigluRowBackward(const float* dy, const float* gate, const float* up, size_t n, float* dgate,
                       float* dup);

/// The larger one of `low` and the largest of the row.
float LargestOf(const float* x, size_t n, float low);

void ScaleRow(float* x, size_t n, float by);

/// x[i] becomes exp(x[i] - shift); returns their sum.
float ExpOfDifference(float* x, size_t n, float shift);

}  // namespace fsdprun::worker::fused
