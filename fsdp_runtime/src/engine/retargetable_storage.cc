#include "fsdp_runtime/src/engine/retargetable_storage.h"

#include <ATen/ATen.h>

#include "fsdp_runtime/src/engine/poison.h"

namespace fsdp {

RetargetableStorage::RetargetableStorage(int64_t bytes, c10::Device device)
    : storage_(c10::Storage::use_byte_size_t(), static_cast<size_t>(bytes),
               at::DataPtr(nullptr, device), /*allocator=*/nullptr, /*resizable=*/false),
      device_(device),
      bytes_(bytes) {
  poison();
}

RetargetableStorage::~RetargetableStorage() { poison(); }

void RetargetableStorage::point_to(void* data) {
  storage_.unsafeGetStorageImpl()->set_data_ptr_noswap(at::DataPtr(data, device_));
}

void RetargetableStorage::poison() {
  // A device kernel that is handed a null pointer faults as loudly as the CPU does on a guard page.
  point_to(device_.is_cpu() ? poison_address(bytes_) : nullptr);
}

at::Tensor RetargetableStorage::view(at::ScalarType dtype, int64_t offset,
                                     at::IntArrayRef sizes) const {
  at::Tensor tensor = at::empty({0}, at::TensorOptions().dtype(dtype).device(device_));
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= std::max<int64_t>(sizes[d], 1);
  }
  tensor.set_(storage_, offset, sizes, strides);
  return tensor;
}

}  // namespace fsdp
