#include "fsdp_runtime/src/engine/leaf_owners.h"

#include "fsdp_runtime/src/engine/param_group.h"

namespace fsdp {

LeafOwners& LeafOwners::get() {
  // Never destroyed: leaves may die after the static objects of the process.
  static LeafOwners* owners = new LeafOwners;
  return *owners;
}

void LeafOwners::add(const at::Tensor& leaf, const std::weak_ptr<ParamGroup>& group) {
  std::lock_guard<std::mutex> lock(mutex_);
  owners_.insert_or_assign(
      leaf.unsafeGetTensorImpl(),
      Owner{c10::weak_intrusive_ptr<c10::TensorImpl>(leaf.getIntrusivePtr()), group});
  if (owners_.size() > sweep_at_) {
    std::erase_if(owners_, [](const auto& entry) { return entry.second.leaf.expired(); });
    sweep_at_ = 2 * owners_.size() + 1024;
  }
}

std::shared_ptr<ParamGroup> LeafOwners::find(const at::Tensor& leaf) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = owners_.find(leaf.unsafeGetTensorImpl());
  return found == owners_.end() ? nullptr : found->second.group.lock();
}

}  // namespace fsdp
