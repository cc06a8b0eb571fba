#include "worker/run/batches.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

namespace fsdprun::worker {

Batch ReadWindows(const TokenStream& stream, const std::vector<int64_t>& windows, int64_t seq_len,
                  at::Device device) {
  const auto count = static_cast<int64_t>(windows.size());
  const at::Tensor tokens = at::empty({count, seq_len + 1}, at::kLong);
  auto* row = tokens.mutable_data_ptr<int64_t>();
  for (const int64_t window : windows) {
    stream.CopyTokens(window * seq_len, seq_len + 1, row);
    row += seq_len + 1;
  }
  return {tokens.slice(1, 0, seq_len).contiguous().to(device),
          tokens.slice(1, 1, seq_len + 1).contiguous().to(device)};
}

TrainBatches::TrainBatches(std::shared_ptr<const TokenStream> stream, const BatchOptions& options)
    : stream_(std::move(stream)),
      options_(options),
      window_count_(stream_->window_count(options.seq_len)),
      order_(window_count_, options.world_size) {}

int64_t TrainBatches::WindowAt(const DataCursor& cursor) {
  const int64_t position = order_.Position(cursor, options_.rank);
  if (!options_.is_shuffled) {
    return position;
  }
  if (permutation_epoch_ != cursor.epoch) {
    const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(
        options_.seed + static_cast<uint64_t>(cursor.epoch));
    permutation_ = at::randperm(window_count_, generator, at::TensorOptions(at::kLong));
    permutation_epoch_ = cursor.epoch;
  }
  return permutation_.const_data_ptr<int64_t>()[position];
}

Batch TrainBatches::Next(int64_t batch_size, DataCursor& cursor) {
  std::vector<int64_t> windows;
  for (int64_t i = 0; i < batch_size; ++i) {
    windows.push_back(WindowAt(cursor));
    cursor = order_.NextRound(cursor);
  }
  return ReadWindows(*stream_, windows, options_.seq_len, options_.device);
}

}  // namespace fsdprun::worker
