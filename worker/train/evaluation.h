#pragma once

#include "worker/data/token_stream.h"
#include "worker/train/job.h"

namespace fsdprun::worker {

/// Mean loss over the first windows of `stream`: micro batch b on rank r takes windows
/// (b * batch_size + j) * world + r, so every evaluation uses the same windows. Windows
/// past the end of the stream have weight 0, so the mean is over distinct windows.
/// `batches` per rank; 0: the whole stream. Collective.
double Evaluate(Job& job, const TokenStream& stream, int64_t seq_len, int64_t batch_size,
                int64_t batches);

}  // namespace fsdprun::worker
