#include "fsdp_runtime/src/init/deferred_memory.h"

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StorageImpl.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace fsdp {
namespace {

/// From which memory is mapped.
constexpr size_t kMappedBytes = size_t{256} << 10;
constexpr size_t kAlignment = 64;

struct MappedMemory {
  void* data;
  size_t bytes;
};

void unmap(void* context) {
  auto* memory = static_cast<MappedMemory*>(context);
  munmap(memory->data, memory->bytes);
  delete memory;
}

at::DataPtr zeros_on_cpu(size_t bytes) {
  if (bytes < kMappedBytes) {
    void* data = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
    TORCH_CHECK(data != nullptr, "deferred_init: no memory for ", bytes, " bytes");
    std::memset(data, 0, bytes);
    return {data, data, &std::free, c10::kCPU};
  }
  // Pages come with the first write.
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  TORCH_CHECK(data != MAP_FAILED, "deferred_init: cannot reserve ", bytes,
              " bytes of addresses: ", std::strerror(errno));
  return {data, new MappedMemory{data, bytes}, &unmap, c10::kCPU};
}

size_t storage_bytes(at::IntArrayRef sizes, at::IntArrayRef strides, size_t element_bytes) {
  int64_t last = 0;
  for (size_t d = 0; d < sizes.size(); ++d) {
    last += (sizes[d] - 1) * strides[d];
  }
  return (static_cast<size_t>(last) + 1) * element_bytes;
}

}  // namespace

at::Tensor deferred_tensor(at::IntArrayRef sizes, at::IntArrayRef strides,
                           const at::TensorOptions& options) {
  const size_t bytes =
      storage_bytes(sizes, strides, c10::elementSize(c10::typeMetaToScalarType(options.dtype())));
  at::Tensor tensor = at::empty({0}, options);  // with the device's index
  const c10::Device device = tensor.device();
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes,
                       device.is_cpu() ? zeros_on_cpu(bytes) : at::DataPtr(nullptr, device),
                       /*allocator=*/nullptr, /*resizable=*/false);
  tensor.set_(storage, 0, sizes, strides);
  return tensor;
}

void ensure_memory(const c10::Storage& storage) {
  if (storage.data() == nullptr) {
    const c10::DeviceGuard guard(storage.device());
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(
        c10::GetAllocator(storage.device_type())->allocate(storage.nbytes()));
  }
}

void discard_memory(const c10::Storage& storage) {
  if (!storage.device().is_cpu()) {
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(at::DataPtr(nullptr, storage.device()));
  } else if (storage.data_ptr().get_deleter() == &unmap) {
    madvise(storage.mutable_data(), storage.nbytes(), MADV_DONTNEED);
  }
}

}  // namespace fsdp
