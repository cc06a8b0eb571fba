#pragma once

#include "worker/data/token_stream.h"
#include "worker/train/job.h"

namespace fsdprun::worker {

/// Mean loss over the first windows of `stream`: micro batch b on rank r takes windows
/// (b * batch_size + j) * world + r, so the same windows are judged at every evaluation. Windows
/// past the end of the stream do not count, so the mean is over distinct windows.
/// `batches` per rank; 0: the whole stream. Collective.
double Evaluate(Job& job, const TokenStream& stream, int64_t seq_len, int64_t batch_size,
                int64_t batches);

}  // namespace fsdprun::worker
