#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

namespace fsdp {

class InitTape;

/// While this lives, operations of this thread on what they have made go to a tape.
class DeferredOperations {
 public:
  /// Errors: TORCH_CHECK if there is one on this thread.
  explicit DeferredOperations(InitTape& tape);
  ~DeferredOperations();
  DeferredOperations(const DeferredOperations&) = delete;
  DeferredOperations& operator=(const DeferredOperations&) = delete;

 private:
  const c10::impl::IncludeDispatchKeyGuard intercepts_;
};

}  // namespace fsdp
