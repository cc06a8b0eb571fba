#include "fsdp_runtime/src/engine/unit_buffers.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <torch/nn/module.h>

#include <string>

#include "fsdp_runtime/src/engine/module_walk.h"
#include "fsdp_runtime/src/engine/registry.h"

namespace fsdp {

UnitBuffers::UnitBuffers(const std::vector<std::shared_ptr<torch::nn::Module>>& modules) {
  walk_modules(
      modules, [this](const std::string&, const std::shared_ptr<torch::nn::Module>& visited) {
        if (Registry::get().find(*visited)) {
          return false;
        }
        for (const at::Tensor& buffer : visited->buffers(/*recurse=*/false)) {
          if (buffer.defined() && buffer.is_floating_point()) {
            buffers_.push_back({c10::weak_intrusive_ptr<c10::TensorImpl>(buffer.getIntrusivePtr()),
                                buffer.scalar_type()});
          }
        }
        return true;
      });
}

void UnitBuffers::cast(std::optional<at::ScalarType> dtype) const {
  const c10::InferenceMode outside(false);  // an evaluation's is not that of the training behind it
  const at::NoGradGuard no_grad;
  for (const Buffer& buffer : buffers_) {
    const at::ScalarType wanted = dtype.value_or(buffer.own_dtype);
    if (auto impl = buffer.tensor.lock();
        impl && impl->dtype() != c10::scalarTypeToTypeMeta(wanted)) {
      at::Tensor tensor(std::move(impl));
      tensor.set_data(tensor.to(wanted));
    }
  }
}

}  // namespace fsdp
