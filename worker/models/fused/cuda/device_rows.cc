#include "worker/models/fused/cuda/device_rows.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>

#include "worker/models/fused/cuda/block_sizes.h"
#include "worker/models/fused/rows.h"

namespace fsdprun::worker::fused {
namespace {

// As NVRTC sees them: an i64 is a long long there, of as many bytes.
static_assert(sizeof(int64_t) == sizeof(long long));

const void* From(const at::Tensor& tensor) { return tensor.const_data_ptr(); }

void* To(const at::Tensor& tensor) { return tensor.mutable_data_ptr(); }

/// Numbers that an instruction of 16 bytes reads.
int64_t WidthOf(const at::Tensor& tensor) { return 16 / tensor.element_size(); }

/// Whether rows of n numbers can be read so in all of them.
bool IsWide(int64_t n, std::initializer_list<at::Tensor> tensors) {
  bool is_wide = true;
  for (const at::Tensor& tensor : tensors) {
    is_wide = is_wide && n % WidthOf(tensor) == 0 &&
              reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % 16 == 0;
  }
  return is_wide;
}

/// An instance of FSDPRUN_INSTANCES in rows.cuh.
std::string InstanceOf(const std::string& kernel, const at::Tensor& tensor, bool is_wide) {
  return kernel + (tensor.scalar_type() == at::kFloat ? "_f32" : "_bf16") +
         (is_wide ? "_wide" : "");
}

/// Whole warps, for each pack of numbers a thread, as far as there are so many.
unsigned ThreadsFor(int64_t packs, int64_t most) {
  return static_cast<unsigned>(std::min(most, (packs + 31) / 32 * 32));
}

/// A kernel gets addresses alone: one of another device's memory would be an illegal access, after
/// which the process has no device any more.
void CheckOnOneDevice(const char* operation, std::initializer_list<at::Tensor> tensors) {
  const at::Device device = tensors.begin()->device();
  for (const at::Tensor& tensor : tensors) {
    TORCH_CHECK(tensor.device() == device, operation,
                " of model.kernels=fused: expected all tensors on one device, got ", device,
                " and ", tensor.device());
  }
}

template <typename... Arguments>
void LaunchOn(const KernelLauncher& device, const at::Tensor& on, const KernelSource& source,
              const std::string& kernel, const LaunchShape& shape, Arguments... arguments) {
  void* pointers[] = {static_cast<void*>(&arguments)...};
  device.Launch(on, KernelCall{&source, kernel, shape, pointers});
}

/// Threads take one pack after the other.
LaunchShape ShapeOfSwiglu(const KernelLauncher& device, const at::Tensor& on, int64_t packs) {
  constexpr int64_t kThreads = block_sizes::kSwiglu, kBlocksOfMultiprocessor = 16;
  const int64_t blocks = std::min((packs + kThreads - 1) / kThreads,
                                  kBlocksOfMultiprocessor * device.MultiprocessorsOf(on));
  return {static_cast<unsigned>(std::max<int64_t>(1, blocks)), static_cast<unsigned>(kThreads)};
}

}  // namespace

bool FitsRopeOnDevice(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  return x.dim() == 4 && x.size(3) % 2 == 0 && cos.dim() == 3 && cos.size(0) == 1 &&
         cos.size(1) == x.size(1) && cos.size(2) == x.size(3) && sin.sizes() == cos.sizes() &&
         x.scalar_type() == cos.scalar_type() && sin.scalar_type() == cos.scalar_type() &&
         x.size(2) * x.size(3) <= std::numeric_limits<int>::max();
}

at::Tensor RopeOnDevice(const KernelLauncher& device, const at::Tensor& x, const at::Tensor& cos,
                        const at::Tensor& sin, float sign) {
  CheckOnOneDevice("Rope", {x, cos, sin});
  const at::Tensor from = x.stride(3) == 1 ? x : x.contiguous();
  const at::Tensor y = at::empty(x.sizes(), x.options());
  const int64_t heads = x.size(2), half = x.size(3) / 2, width = WidthOf(x);
  const bool is_wide = IsWide(half, {from, cos, sin, y}) && from.stride(0) % width == 0 &&
                       from.stride(1) % width == 0 && from.stride(2) % width == 0;
  const int64_t packs = heads * (is_wide ? half / width : half);
  LaunchOn(device, y, kRopeSource, InstanceOf("rope", y, is_wide),
           {static_cast<unsigned>(x.size(0) * x.size(1)), ThreadsFor(packs, block_sizes::kRope)},
           From(from), from.stride(0), from.stride(1), from.stride(2), From(cos), From(sin), sign,
           x.size(1), static_cast<int>(heads), static_cast<int>(half), To(y));
  return y;
}

at::Tensor SwigluOnDevice(const KernelLauncher& device, const at::Tensor& gate,
                          const at::Tensor& up) {
  CheckOnOneDevice("Swiglu", {gate, up});
  TORCH_CHECK(up.numel() == gate.numel(),
              "Swiglu of model.kernels=fused: expected as many numbers ", "as the gate's ",
              gate.numel(), ", got ", up.numel());
  const at::Tensor y = at::empty_like(gate);
  const bool is_wide = IsWide(0, {gate, up, y});
  const int64_t n = y.numel(), packs = is_wide ? n / WidthOf(y) : n;
  LaunchOn(device, y, kSwigluSource, InstanceOf("swiglu", y, is_wide),
           ShapeOfSwiglu(device, y, packs), From(gate), From(up), n, To(y));
  return y;
}

void SwigluBackwardOnDevice(const KernelLauncher& device, const at::Tensor& dy,
                            const at::Tensor& gate, const at::Tensor& up, const at::Tensor& dgate,
                            const at::Tensor& dup) {
  CheckOnOneDevice("Swiglu", {dy, gate, up, dgate, dup});
  for (const at::Tensor& tensor : {gate, up, dgate, dup}) {
    TORCH_CHECK(tensor.numel() == dy.numel(), "Swiglu of model.kernels=fused: expected as many ",
                "numbers as the gradient's ", dy.numel(), ", got ", tensor.numel());
  }
  const bool is_wide = IsWide(0, {dy, gate, up, dgate, dup});
  const int64_t n = dy.numel(), packs = is_wide ? n / WidthOf(dy) : n;
  LaunchOn(device, dy, kSwigluSource, InstanceOf("swiglu_backward", dy, is_wide),
           ShapeOfSwiglu(device, dy, packs), From(dy), From(gate), From(up), n, To(dgate), To(dup));
}

at::Tensor CrossEntropyOnDevice(const KernelLauncher& device, const at::Tensor& logits,
                                const at::Tensor& targets, const at::Tensor& count) {
  CheckOnOneDevice("LinearCrossEntropy", {logits, targets, count});
  const int64_t rows = logits.size(0), n = logits.size(1);
  TORCH_CHECK(targets.numel() == rows, "LinearCrossEntropy of model.kernels=fused: expected ", rows,
              " targets, one of each token, got ", targets.numel());
  const at::Tensor losses = at::empty({rows}, logits.options().dtype(at::kFloat));
  const bool is_wide = IsWide(n, {logits});
  const int64_t packs = is_wide ? n / WidthOf(logits) : n;
  LaunchOn(device, logits, kCrossEntropySource, InstanceOf("cross_entropy", logits, is_wide),
           {static_cast<unsigned>(rows), ThreadsFor(packs, block_sizes::kCrossEntropy)}, To(logits),
           targets.const_data_ptr<int64_t>(), count.const_data_ptr<float>(), n, To(losses));
  return losses;
}

}  // namespace fsdprun::worker::fused
