#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <mutex>
#include <unordered_map>

namespace fsdp {

class ParamGroup;

/// Which group a leaf of FSDPModule::parameters() is of, for whoever has an optimizer of
/// torch::optim and nothing else. Process-wide; guarded by a mutex, because ranks may be threads.
class LeafOwners {
 public:
  static LeafOwners& get();

  void add(const at::Tensor& leaf, const std::weak_ptr<ParamGroup>& group);
  /// Null if it is no leaf of a group, or the group is gone.
  std::shared_ptr<ParamGroup> find(const at::Tensor& leaf);

 private:
  struct Owner {
    c10::weak_intrusive_ptr<c10::TensorImpl> leaf;  // keeps the address from being used again
    std::weak_ptr<ParamGroup> group;
  };

  std::mutex mutex_;
  std::unordered_map<const c10::TensorImpl*, Owner> owners_;  // only for lookups
  size_t sweep_at_ = 1024;  // size of owners_ from which those of dead leaves are looked for
};

}  // namespace fsdp
