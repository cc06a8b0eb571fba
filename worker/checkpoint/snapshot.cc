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

// Allocators of pinned memory round each request up to a power of two, so that one for each tensor
// could be twice as much.
constexpr int64_t kSlabBytes = int64_t{256} << 20;
constexpr int64_t kAlignment = 64;

at::Tensor HostBytes(int64_t byte_count, bool is_pinned) {
  const at::TensorOptions options(at::kByte);
  if (is_pinned) {
    try {
      return at::empty({byte_count}, options.pinned_memory(true));
    } catch (const c10::Error&) {
      // Less memory may be locked than used.
    }
  }
  return at::empty({byte_count}, options);
}

int64_t AlignedBytes(const at::Tensor& tensor) {
  return (static_cast<int64_t>(tensor.nbytes()) + kAlignment - 1) / kAlignment * kAlignment;
}

/// One on the host for each of `tensors`.
std::vector<at::Tensor> MakeBuffers(const std::vector<at::Tensor>& tensors, bool is_pinned) {
  int64_t needed = 0;
  for (const at::Tensor& tensor : tensors) {
    needed += AlignedBytes(tensor);
  }
  std::vector<at::Tensor> buffers;
  at::Tensor slab = at::empty({0}, at::kByte);
  for (const at::Tensor& tensor : tensors) {
    const int64_t byte_count = AlignedBytes(tensor);
    if (slab.numel() < byte_count) {
      slab = HostBytes(std::max(byte_count, std::min(needed, kSlabBytes)), is_pinned);
    }
    buffers.push_back(slab.narrow(0, 0, static_cast<int64_t>(tensor.nbytes()))
                          .view(tensor.scalar_type())
                          .view(tensor.sizes()));
    slab = slab.narrow(0, byte_count, slab.numel() - byte_count);
    needed -= byte_count;
  }
  return buffers;
}

bool IsRoomFor(const at::Tensor& buffer, const at::Tensor& tensor) {
  return buffer.sizes() == tensor.sizes() && buffer.scalar_type() == tensor.scalar_type();
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
  for (const at::Tensor& tensor : snapshot.host) {
    if (const std::optional<c10::Device> device = device_of_(tensor)) {
      computed_.emplace(device->type());
      computed_->record(c10::impl::VirtualGuardImpl(device->type()).getStream(*device));
      return;
    }
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
  if (!std::equal(buffers_.begin(), buffers_.end(), snapshot.host.begin(), snapshot.host.end(),
                  IsRoomFor)) {
    buffers_.clear();  // before there are others
    buffers_ = MakeBuffers(snapshot.host, /*is_pinned=*/computed_.has_value());
  }
  for (size_t i = 0; i < buffers_.size(); ++i) {
    buffers_[i].copy_(snapshot.host[i], /*non_blocking=*/is_beside);
    snapshot.host[i] = buffers_[i];
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
