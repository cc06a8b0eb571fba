#include "fsdp_runtime/src/engine/retargetable_storage.h"

#include <ATen/ATen.h>
#include <c10/util/strides.h>

namespace fsdp {

RetargetableStorage::RetargetableStorage(int64_t bytes, c10::Device device)
    : storage_(c10::Storage::use_byte_size_t(), static_cast<size_t>(bytes),
               at::DataPtr(nullptr, device), /*allocator=*/nullptr, /*resizable=*/false),
      device_(device),
      bytes_(bytes) {
  if (device.is_cpu()) {
    guarded_.emplace(bytes);
  }
  poison();
}

RetargetableStorage::~RetargetableStorage() { poison(); }

void RetargetableStorage::point_to(void* data) {
  storage_.unsafeGetStorageImpl()->set_data_ptr_noswap(at::DataPtr(data, device_));
}

void RetargetableStorage::poison() {
  // On a device a kernel gets a null pointer: an illegal access that is reported at the next
  // synchronisation, later than the CPU's fault on the guard page. Operations that check for memory
  // throw.
  point_to(guarded_ ? guarded_->address() : nullptr);
}

void RetargetableStorage::set_name(at::ScalarType dtype, int64_t offset, int64_t numel,
                                   const std::string& name) {
  if (guarded_) {
    const auto size = static_cast<int64_t>(c10::elementSize(dtype));
    guarded_->set_name(offset * size, (offset + numel) * size, name);
  }
}

at::Tensor RetargetableStorage::view(at::ScalarType dtype, int64_t offset,
                                     at::IntArrayRef sizes) const {
  at::Tensor tensor = at::empty({0}, at::TensorOptions().dtype(dtype).device(device_));
  tensor.set_(storage_, offset, sizes, c10::contiguous_strides(sizes));
  return tensor;
}

}  // namespace fsdp
