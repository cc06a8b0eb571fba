#include "fsdp_runtime/src/engine/shard_memory.h"

#include <ATen/ATen.h>

#include <variant>

#include "fsdp_runtime/src/engine/disk_memory.h"

namespace fsdp {
namespace {

class HostMemory : public ShardMemory {
 public:
  explicit HostMemory(bool is_pinned) : is_pinned_(is_pinned) {}

  at::Tensor empty(int64_t numel, at::ScalarType dtype, const std::string&) const override {
    return at::empty({numel}, at::TensorOptions(dtype).pinned_memory(is_pinned_));
  }
  bool is_pinned() const override { return is_pinned_; }

 private:
  const bool is_pinned_;
};

}  // namespace

at::Tensor ShardMemory::zeros(int64_t numel, at::ScalarType dtype,
                              const std::string& content) const {
  return empty(numel, dtype, content).zero_();
}

std::shared_ptr<const ShardMemory> make_shard_memory(const OffloadPolicy& policy,
                                                     const Collectives& comm) {
  if (const auto* disk = std::get_if<DiskOffloadPolicy>(&policy)) {
    return std::make_shared<DiskMemory>(disk->folder);
  }
  const auto* host = std::get_if<CPUOffloadPolicy>(&policy);
  if (host == nullptr || !comm.is_stream_ordered()) {
    return nullptr;
  }
  return std::make_shared<HostMemory>(host->pin_memory);
}

}  // namespace fsdp
