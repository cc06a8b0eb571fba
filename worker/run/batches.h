#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "worker/data/sample_order.h"
#include "worker/data/token_stream.h"

namespace fsdprun::worker {

/// Inputs and targets (the inputs shifted by one token); int64 [batch, seq_len].
struct Batch {
  at::Tensor inputs;
  at::Tensor targets;
};

struct BatchOptions {
  int64_t seq_len = 0;
  bool is_shuffled = false;
  uint64_t seed = 0;
  int64_t rank = 0;
  int64_t world_size = 1;
  at::Device device = at::kCPU;
};

/// This rank's windows of the training stream, in DistributedSampler's order (see SampleOrder);
/// shuffled by torch.randperm with seed + epoch, as Python does. Memory: 8 bytes per window when
/// shuffled.
class TrainBatches {
 public:
  /// Precondition: the stream has at least one window.
  TrainBatches(std::shared_ptr<const TokenStream> stream, const BatchOptions& options);

  /// The batch at `cursor`, which then stands behind it.
  Batch Next(int64_t batch_size, DataCursor& cursor);
  int64_t window_count() const { return window_count_; }
  const TokenStream& stream() const { return *stream_; }
  /// A valid position for one of data that had another length.
  DataCursor Normalize(const DataCursor& cursor) const { return order_.Normalize(cursor); }

 private:
  int64_t WindowAt(const DataCursor& cursor);

  std::shared_ptr<const TokenStream> stream_;
  BatchOptions options_;
  int64_t window_count_;
  SampleOrder order_;
  at::Tensor permutation_;
  int64_t permutation_epoch_ = -1;
};

/// Copies the given windows of `stream` into one batch.
Batch ReadWindows(const TokenStream& stream, const std::vector<int64_t>& windows, int64_t seq_len,
                  at::Device device);

}  // namespace fsdprun::worker
