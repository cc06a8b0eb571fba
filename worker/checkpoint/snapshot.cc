#include "worker/checkpoint/snapshot.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "formats/checkpoint/torch_blob.h"
#include "worker/checkpoint/scalar_type.h"

namespace fsdprun::checkpoint {
namespace {

constexpr char kParamGroupsKey[] = "optim.param_groups";
constexpr char kTrainStateKey[] = "train.state";

BlobToWrite ObjectBlob(const char* key, const std::string& text) {
  const nlohmann::json value = nlohmann::json::parse(text, nullptr, false);
  if (value.is_discarded()) {
    throw CheckpointError(std::string("cannot save ") + key +
                          ": not valid JSON: " + text.substr(0, 100));
  }
  BlobToWrite blob;
  blob.key = key;
  blob.object = PackObject(value);
  return blob;
}

SliceInfo InfoOfSlice(const fsdp::LocalShard& slice) {
  const int64_t numel = fsdp::plan::total_numel(slice.boxes);
  if (slice.local.numel() != numel) {
    throw CheckpointError("cannot save " + slice.fqn + ": expected " + std::to_string(numel) +
                          " local elements, got " + std::to_string(slice.local.numel()));
  }
  return {slice.fqn, ToDType(slice.local.scalar_type(), slice.fqn), slice.global_shape,
          slice.boxes};
}

}  // namespace

Snapshot TakeSnapshot(int64_t step, const State& state, bool is_rank0) {
  if (step < 0) {
    throw CheckpointError("cannot save step " + std::to_string(step) + ": expected >= 0");
  }
  Snapshot snapshot;
  snapshot.step = step;
  snapshot.tokens = state.tokens;
  snapshot.run = state.run;
  for (const fsdp::LocalShard& slice : state.tensors) {
    snapshot.slices.push_back(InfoOfSlice(slice));
    snapshot.host.push_back(slice.local.detach());
  }
  if (is_rank0) {
    snapshot.objects.push_back(ObjectBlob(kParamGroupsKey, state.param_groups_json));
    snapshot.objects.push_back(ObjectBlob(kTrainStateKey, state.training_state_json));
  }
  return snapshot;
}

void CopyToHost(Snapshot& snapshot) {
  for (at::Tensor& tensor : snapshot.host) {
    tensor = tensor.to(at::kCPU).contiguous();
  }
}

void Staging::Mark(const Snapshot& snapshot) {
  computed_.reset();
  const auto on_device = std::find_if(snapshot.host.begin(), snapshot.host.end(),
                                      [](const at::Tensor& tensor) { return !tensor.is_cpu(); });
  if (on_device != snapshot.host.end()) {
    const c10::Device device = on_device->device();
    computed_.emplace(device.type());
    computed_->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  }
}

void Staging::Copy(Snapshot& snapshot) {
  if (!computed_) {
    CopyAll(snapshot, /*is_beside=*/false);
    return;
  }
  const c10::Device device = computed_->device();
  const c10::Stream beside =
      c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
  const c10::StreamGuard guard(beside);
  computed_->block(beside);
  CopyAll(snapshot, /*is_beside=*/true);
  beside.synchronize();
}

void Staging::CopyAll(Snapshot& snapshot, bool is_beside) {
  const at::NoGradGuard no_grad;
  buffers_.resize(snapshot.host.size());
  for (size_t i = 0; i < buffers_.size(); ++i) {
    at::Tensor& tensor = snapshot.host[i];
    at::Tensor& buffer = buffers_[i];
    if (!buffer.defined() || buffer.sizes() != tensor.sizes() ||
        buffer.scalar_type() != tensor.scalar_type()) {
      buffer = at::empty(tensor.sizes(),
                         tensor.options().device(at::kCPU).pinned_memory(!tensor.is_cpu()));
    }
    buffer.copy_(tensor, /*non_blocking=*/is_beside);
    tensor = buffer;
  }
}

std::vector<BlobToWrite> BlobsOf(const Snapshot& snapshot,
                                 const std::vector<PlannedChunk>& chunks) {
  std::vector<BlobToWrite> blobs = snapshot.objects;
  for (const PlannedChunk& chunk : chunks) {
    const SliceInfo& slice = snapshot.slices[chunk.slice];
    const auto* bytes = static_cast<const char*>(snapshot.host[chunk.slice].const_data_ptr());
    BlobToWrite blob;
    blob.key = slice.key;
    blob.dtype = slice.dtype;
    blob.sizes = chunk.box.sizes;
    blob.data = bytes + chunk.begin * InfoOf(slice.dtype).element_bytes;
    blobs.push_back(std::move(blob));
  }
  return blobs;
}

}  // namespace fsdprun::checkpoint
