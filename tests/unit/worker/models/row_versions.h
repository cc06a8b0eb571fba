#pragma once

#include "worker/models/fused/row_kernels.h"

namespace fsdprun::worker {

/// The loops of row_kernels.h, in one of their versions.
struct RowLoops {
  const char* name = "";
  decltype(&fused::RmsNormRows) rms_norm = nullptr;
  decltype(&fused::RmsNormRowsBackward) rms_norm_backward = nullptr;
  decltype(&fused::RotateHeads) rotate = nullptr;
  decltype(&fused::RotateHeadsBack) rotate_back = nullptr;
  decltype(&fused::SwigluRow) swiglu = nullptr;
  decltype(&fused::SwigluRowBackward) swiglu_backward = nullptr;
  decltype(&fused::LargestOf) largest = nullptr;
  decltype(&fused::ScaleRow) scale = nullptr;
  decltype(&fused::ExpOfDifference) exp_of_difference = nullptr;
};

/// Those that a CPU without AVX2 gets, compiled as the library's are.
RowLoops LoopsForAnyCpu();

}  // namespace fsdprun::worker
