#include "fsdp_runtime/src/engine/claims.h"

#include <c10/util/intrusive_ptr.h>

#include <mutex>
#include <unordered_map>
#include <utility>

namespace fsdp {
namespace {

struct Entry {
  c10::weak_intrusive_ptr<c10::TensorImpl> tensor;
  Claim claim;
};

struct Claims {
  std::mutex mutex;
  std::unordered_map<const c10::TensorImpl*, Entry> by_tensor;
  size_t sweep_at = 1024;
};

Claims& claims() {
  // Never destroyed: parameters may die after the static objects of the process.
  static Claims* claims = new Claims;
  return *claims;
}

}  // namespace

void claim(const at::Tensor& parameter, Claim claim) {
  Claims& all = claims();
  std::lock_guard<std::mutex> lock(all.mutex);
  all.by_tensor.insert_or_assign(
      parameter.unsafeGetTensorImpl(),
      Entry{c10::weak_intrusive_ptr<c10::TensorImpl>(parameter.getIntrusivePtr()),
            std::move(claim)});
  if (all.by_tensor.size() > all.sweep_at) {
    std::erase_if(all.by_tensor, [](const auto& entry) { return entry.second.tensor.expired(); });
    all.sweep_at = 2 * all.by_tensor.size() + 1024;
  }
}

void rename_claim(const c10::TensorImpl* parameter, const std::string& fqn) {
  Claims& all = claims();
  std::lock_guard<std::mutex> lock(all.mutex);
  const auto found = all.by_tensor.find(parameter);
  if (found != all.by_tensor.end()) {
    found->second.claim.fqn = fqn;
  }
}

std::optional<Claim> claim_of(const at::Tensor& parameter) {
  Claims& all = claims();
  std::lock_guard<std::mutex> lock(all.mutex);
  const auto found = all.by_tensor.find(parameter.unsafeGetTensorImpl());
  // The weak reference keeps the address from being reused, so a live entry is this tensor.
  if (found == all.by_tensor.end() || found->second.tensor.expired()) {
    return std::nullopt;
  }
  return found->second.claim;
}

}  // namespace fsdp
