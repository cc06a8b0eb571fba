#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <optional>
#include <vector>

namespace torch::nn {
class Module;
}

namespace fsdp {

/// A unit's floating-point buffers, for FSDP1's buffer_dtype: cast in place, so that modules and
/// whoever else has the tensors see them in the other dtype. Held weakly. Thread: the rank's.
class UnitBuffers {
 public:
  /// Those of `modules` and of all below them that are in no other unit, in the dtypes that they
  /// have now, which are their own.
  explicit UnitBuffers(const std::vector<std::shared_ptr<torch::nn::Module>>& modules);
  /// Unset: to their own dtypes. No-op for those that have the dtype.
  void cast(std::optional<at::ScalarType> dtype) const;

 private:
  struct Buffer {
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;
    at::ScalarType own_dtype;
  };
  std::vector<Buffer> buffers_;
};

}  // namespace fsdp
