#pragma once

#include <cstdint>

namespace fsdprun::worker {

/// What the host reads of a step, float32: by place. All but the last two the ranks tell each other
/// in it.
enum Told : int64_t {
  kToldLoss,     // mean over the ranks
  kToldStop,     // some rank was asked to stop, so that all stop after the same step
  kToldSeconds,  // mean over the ranks, so that all ask equally often
  kToldSave,     // rank 0 was asked for a checkpoint
  kToldDue,      // by rank 0's clock one is due
  kToldWriting,  // some rank still writes one
  kToldLost,     // some rank cannot tell how that ends
  kToldShare,    // of the targets that count
  kToldNorm,     // of the gradient; the same on all ranks
  kToldVerdict,  // a Verdict
  kToldCount
};

}  // namespace fsdprun::worker
