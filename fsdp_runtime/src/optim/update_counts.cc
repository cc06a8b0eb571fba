#include "fsdp_runtime/src/optim/update_counts.h"

#include <ATen/ATen.h>

namespace fsdp {

UpdateCounts::UpdateCounts(size_t params, c10::Device device)
    : counts_(at::zeros({static_cast<int64_t>(params)},
                        at::TensorOptions().dtype(at::kLong).device(device))) {}

void UpdateCounts::add(const std::vector<uint8_t>& takes_part, const at::Tensor& kept) {
  if (!mask_.defined() || takes_part != takes_part_) {
    takes_part_ = takes_part;
    const std::vector<int64_t> wide(takes_part.begin(), takes_part.end());
    mask_ = at::tensor(at::ArrayRef<int64_t>(wide)).to(counts_.device());
  }
  counts_.add_(kept.defined() ? mask_ * kept.to(at::kLong) : mask_);
}

std::vector<int64_t> UpdateCounts::read() const {
  const at::Tensor counts = counts_.cpu();
  const auto* data = counts.const_data_ptr<int64_t>();
  return {data, data + counts.numel()};
}

void UpdateCounts::set(const std::vector<int64_t>& counts) {
  counts_.copy_(at::tensor(at::ArrayRef<int64_t>(counts)));
}

}  // namespace fsdp
