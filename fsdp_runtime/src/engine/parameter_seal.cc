#include "fsdp_runtime/src/engine/parameter_seal.h"

#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

namespace fsdp {

ParameterSeal::ParameterSeal(const at::Tensor& parameter, const std::string& fqn)
    : parameter_(parameter.getIntrusivePtr()),
      whole_(parameter.storage()),
      sealed_(c10::Storage::use_byte_size_t(), whole_.nbytes(),
              at::DataPtr(nullptr, whole_.device()), /*allocator=*/nullptr, /*resizable=*/false) {
  // Of a detached tensor it would be refused to give it another storage.
  parameter.unsafeGetTensorImpl()->set_allow_tensor_metadata_change(true);
  set_fqn(fqn);
}

void ParameterSeal::set_fqn(const std::string& fqn) {
  sealed_.unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(
      "fsdp: parameter " + fqn +
      " is sharded now, and its data was read or written. The whole of it is there only while its "
      "unit runs: call the module through fsdp::Unit, fsdp::call or fsdp::Sharded, not its own "
      "forward() (of a child that is an fsdp::Sharded<M>: as<fsdp::Sharded<M>>(), as<M>() is not "
      "enough). Elsewhere: sharded_parameters() and full_parameter() read it, unshard() gathers "
      "it. A sharded module can be neither moved or cast by to(), nor copied by clone(), nor "
      "written by torch::save().");
}

void ParameterSeal::close() { give(sealed_); }

void ParameterSeal::open() { give(whole_); }

void ParameterSeal::give(const c10::Storage& storage) {
  if (const auto parameter = parameter_.lock()) {
    parameter->set_storage_keep_dtype(storage);
  }
}

}  // namespace fsdp
