#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "worker/data/global_order.h"
#include "worker/data/read_ahead.h"
#include "worker/data/sample_order.h"
#include "worker/data/train_data.h"
#include "worker/data/windows.h"

namespace fsdprun::worker {

/// Inputs and targets (the inputs shifted by one token); int64 [batch, seq_len].
struct Batch {
  at::Tensor inputs;
  at::Tensor targets;
  /// How many targets count: not kIgnoredTarget.
  int64_t counted = 0;
};

/// Which order the windows of an epoch have.
enum class Sampler {
  /// PyTorch's DistributedSampler: the same windows as a Python program has. Its shuffling needs 8
  /// bytes a window on each rank.
  kTorch,
  /// Note [The global order]: the same for all world sizes; needs no memory.
  kGlobal,
};

struct BatchOptions {
  bool is_shuffled = false;
  uint64_t seed = 0;
  int64_t rank = 0;
  int64_t world_size = 1;
  at::Device device = at::kCPU;
  Sampler sampler = Sampler::kTorch;
  /// DistributedSampler's drop_last.
  bool drops_last = false;
};

/// This rank's windows of the training data, batch after batch (see SampleOrder). They are read
/// ahead on a thread; what goes wrong there is thrown when the step comes to that batch. Memory: a
/// few batches; see Sampler. Thread: one.
class TrainBatches {
 public:
  /// Precondition: each source of the data has a window, with drops_last as many as there are
  /// ranks; a mixture has Sampler::kGlobal.
  TrainBatches(std::shared_ptr<const TrainData> data, const BatchOptions& options);

  /// What will be asked for, so that it is read ahead: in each step batches of these sizes, not
  /// empty; the next step begins `samples` of all ranks behind the beginning of this one, as
  /// Behind says, or, with 0, at its end. Without this call: batches of one size. Before the first
  /// Next.
  void ExpectSteps(std::vector<int64_t> batch_sizes, int64_t samples);

  /// The batch at `cursor`, which then stands behind it. If none of its targets count, one is an id
  /// all the same, so that a mean over those that are not kIgnoredTarget is a number: `counted` is
  /// what a loss is weighted with. Errors: as Windows::Read's.
  Batch Next(int64_t batch_size, DataCursor& cursor);
  int64_t window_count() const { return data_->window_count(); }
  const TrainData& data() const { return *data_; }
  /// A valid position for one of data that had another length.
  DataCursor Normalize(const DataCursor& cursor) const { return order_.Normalize(cursor); }
  /// The position after the first `rounds` samples of each rank.
  DataCursor CursorAfter(int64_t rounds) const { return order_.After(rounds); }
  /// The position after the `rounds` that begin at `cursor`.
  DataCursor AfterRounds(DataCursor cursor, int64_t rounds) const;
  /// The position `samples` of all ranks together behind `cursor`. Precondition:
  /// Sampler::kGlobal.
  DataCursor Behind(const DataCursor& cursor, int64_t samples) const {
    return order_.Take(cursor, samples);
  }
  /// How long all calls of Next have waited for data.
  double waited_seconds() const;

 private:
  /// Of a batch.
  struct Place {
    DataCursor cursor;
    int64_t batch_size = 0;
    // In the step that is expected: which batch it is, and where the step begins.
    size_t turn = 0;
    DataCursor step_begin = {};
    /// Of the same windows.
    bool operator==(const Place& other) const {
      return cursor == other.cursor && batch_size == other.batch_size;
    }
  };
  struct ReadBatch {
    Batch batch;
    DataCursor end;
  };
  using Ahead = ReadAhead<Place, ReadBatch>;

  // On the other thread.
  Ahead::Made Make(const Place& place);
  Place Following(const Place& place, const DataCursor& end) const;
  SampleRef Sample(const DataCursor& cursor);

  std::shared_ptr<const TrainData> data_;
  const BatchOptions options_;
  const GlobalOrder global_;
  const SampleOrder order_;
  at::Tensor permutation_;
  int64_t permutation_epoch_ = -1;
  std::vector<int64_t> step_sizes_;
  int64_t step_samples_ = 0;
  std::optional<Place> expected_;
  std::optional<Ahead> ahead_;  // the last, because it uses the others
};

/// Copies the given windows into one batch on the CPU, in pinned memory if it is for a GPU.
Batch ReadWindows(const Windows& from, const std::vector<int64_t>& windows, at::Device device);

/// On `device`; without a wait of the host where the memory is pinned.
Batch MoveTo(at::Device device, const Batch& batch);

}  // namespace fsdprun::worker
