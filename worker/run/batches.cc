#include "worker/run/batches.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/DeviceGuard.h>

#include <chrono>
#include <utility>

namespace fsdprun::worker {
namespace {

// Enough to bridge a slow read; a batch is small beside its activations.
constexpr size_t kBatchesAhead = 4;

GlobalOrder::Options OrderOptions(const TrainData& data, const BatchOptions& options) {
  GlobalOrder::Options order{{}, data.weights(), options.is_shuffled, options.seed};
  for (const Windows& source : data.sources()) {
    order.window_counts.push_back(source.count());
  }
  return order;
}

EpochEnd EndOf(const BatchOptions& options) {
  return options.sampler == Sampler::kGlobal ? EpochEnd::kJoin
         : options.drops_last                ? EpochEnd::kDrop
                                             : EpochEnd::kPad;
}

/// Empty tensors for windows of `seq_len`.
Batch EmptyBatch(int64_t count, int64_t seq_len, at::Device device) {
  c10::OptionalDeviceGuard guard;
  if (device.is_cuda()) {
    // Pinned memory belongs to the context of the thread's present device.
    guard.reset_device(device);
  }
  const auto options = at::TensorOptions(at::kLong).pinned_memory(device.is_cuda());
  return {at::empty({count, seq_len}, options), at::empty({count, seq_len}, options), 0};
}

/// Reads one window into row `row`.
void ReadRow(const Windows& from, int64_t window, int64_t row, Batch& batch) {
  const int64_t begin = row * from.seq_len();
  batch.counted += from.Read(window, batch.inputs.mutable_data_ptr<int64_t>() + begin,
                             batch.targets.mutable_data_ptr<int64_t>() + begin);
}

void CountOne(Batch& batch) {
  if (batch.counted == 0 && batch.targets.numel() > 0) {
    *batch.targets.mutable_data_ptr<int64_t>() = 0;
  }
}

}  // namespace

Batch ReadWindows(const Windows& from, const std::vector<int64_t>& windows, at::Device device) {
  const auto count = static_cast<int64_t>(windows.size());
  Batch batch = EmptyBatch(count, from.seq_len(), device);
  for (int64_t row = 0; row < count; ++row) {
    ReadRow(from, windows[static_cast<size_t>(row)], row, batch);
  }
  return batch;
}

Batch MoveTo(at::Device device, const Batch& batch) {
  return {batch.inputs.to(device, batch.inputs.scalar_type(), /*non_blocking=*/true),
          batch.targets.to(device, batch.targets.scalar_type(), /*non_blocking=*/true),
          batch.counted};
}

TrainBatches::TrainBatches(std::shared_ptr<const TrainData> data, const BatchOptions& options)
    : data_(std::move(data)),
      options_(options),
      global_(OrderOptions(*data_, options)),
      order_(global_.epoch_samples(), options.world_size, EndOf(options)) {
  ahead_.emplace(kBatchesAhead, [this](const Place& place) { return Make(place); });
}

SampleRef TrainBatches::Sample(const DataCursor& cursor) {
  const DataCursor at = order_.Take(cursor, options_.rank);
  if (options_.sampler == Sampler::kGlobal || !options_.is_shuffled) {
    return global_.At(at);
  }
  if (permutation_epoch_ != at.epoch) {
    const at::Generator generator =
        at::make_generator<at::CPUGeneratorImpl>(options_.seed + static_cast<uint64_t>(at.epoch));
    permutation_ = at::randperm(global_.epoch_samples(), generator, at::TensorOptions(at::kLong));
    permutation_epoch_ = at.epoch;
  }
  return {0, permutation_.const_data_ptr<int64_t>()[at.offset]};
}

TrainBatches::Ahead::Made TrainBatches::Make(const Place& place) {
  Batch batch = EmptyBatch(place.batch_size, data_->sources().front().seq_len(), options_.device);
  DataCursor cursor = place.cursor;
  for (int64_t row = 0; row < place.batch_size; ++row) {
    const SampleRef sample = Sample(cursor);
    ReadRow(data_->sources()[static_cast<size_t>(sample.source)], sample.window, row, batch);
    cursor = order_.NextRound(cursor);
  }
  CountOne(batch);
  return {{std::move(batch), cursor}, Following(place, cursor)};
}

TrainBatches::Place TrainBatches::Following(const Place& place, const DataCursor& end) const {
  if (step_sizes_.empty()) {
    return {end, place.batch_size, 0, end};
  }
  const size_t turn = place.turn + 1;
  if (turn < step_sizes_.size()) {
    return {end, step_sizes_[turn], turn, place.step_begin};
  }
  const DataCursor begin = step_samples_ > 0 ? Behind(place.step_begin, step_samples_) : end;
  return {begin, step_sizes_.front(), 0, begin};
}

void TrainBatches::ExpectSteps(std::vector<int64_t> batch_sizes, int64_t samples) {
  step_sizes_ = std::move(batch_sizes);
  step_samples_ = samples;
}

Batch TrainBatches::Next(int64_t batch_size, DataCursor& cursor) {
  // After a jump it is the first batch of a step.
  Place place{cursor, batch_size, 0, cursor};
  place = expected_ && *expected_ == place ? *expected_ : place;
  const Ahead::Made made = ahead_->Take(place);
  expected_ = made.next;
  cursor = made.value.end;
  return MoveTo(options_.device, made.value.batch);
}

DataCursor TrainBatches::AfterRounds(DataCursor cursor, int64_t rounds) const {
  for (int64_t round = 0; round < rounds; ++round) {
    cursor = order_.NextRound(cursor);
  }
  return cursor;
}

double TrainBatches::waited_seconds() const {
  return std::chrono::duration<double>(ahead_->waited()).count();
}

}  // namespace fsdprun::worker
