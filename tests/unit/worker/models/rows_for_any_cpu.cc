// The loops once more, without versions: the resolvers ask the CPU itself which one to select, so
// that no setting of the environment makes them select the other one.

#include "tests/unit/worker/models/row_versions.h"

#undef FSDPRUN_HAS_ROW_VERSIONS
#define FSDPRUN_HAS_ROW_VERSIONS 0
#define fused fused_for_any_cpu
#include "worker/models/fused/row_kernels.cc"
#undef fused

namespace fsdprun::worker {

RowLoops LoopsForAnyCpu() {
  namespace loops = fused_for_any_cpu;
  return {
      "for any CPU",          loops::RmsNormRows,    loops::RmsNormRowsBackward, loops::RotateHeads,
      loops::RotateHeadsBack, loops::SwigluRow,      loops::SwigluRowBackward,   loops::LargestOf,
      loops::ScaleRow,        loops::ExpOfDifference};
}

}  // namespace fsdprun::worker
