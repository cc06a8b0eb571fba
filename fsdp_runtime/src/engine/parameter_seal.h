#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/util/intrusive_ptr.h>

#include <string>

namespace fsdp {

/// Takes the memory away from a module's parameter while its unit is sharded: whoever reads or
/// writes the tensor's data gets a c10::Error that names the parameter and says what to do. What
/// needs no data (shape, dtype, requires_grad) is there. Tensors that forward has made as views of
/// the parameter have its old storage, and none of this.
///
/// Thread: the rank's. Costs a few reference counts each time.
class ParameterSeal {
 public:
  /// `parameter` has its storage for as long as this lives. Held weakly.
  ParameterSeal(const at::Tensor& parameter, const std::string& fqn);

  void close();
  void open();
  void set_fqn(const std::string& fqn);

 private:
  void give(const c10::Storage& storage);

  c10::weak_intrusive_ptr<c10::TensorImpl> parameter_;
  c10::Storage whole_;
  c10::Storage sealed_;
};

}  // namespace fsdp
