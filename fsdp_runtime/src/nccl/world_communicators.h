#pragma once

#include <c10/core/Device.h>
#include <dlfcn.h>
#include <nccl.h>

#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <mutex>
#include <vector>

namespace fsdp {

class Membership;

/// NCCL's communicators of all groups of a world, as far as their revocation goes. NCCL revokes one
/// by telling its kernels to end, and then waits for the end of the last of them; that may be
/// queued behind a kernel of another communicator, which has not been told. So all are told before
/// one is waited for. Thread: any.
class WorldCommunicators {
 public:
  /// That of the groups with this membership.
  static std::shared_ptr<WorldCommunicators> of(const Membership* membership);

  void add(ncclComm_t communicator);
  /// It is about to be freed. Waits for the end of a revocation, however long that takes.
  void remove(ncclComm_t communicator);
  /// Ends what is in flight on all of them, which are those of `device`. Those that do not end soon
  /// are left to themselves.
  void revoke(c10::Device device);
  /// How often one of this process has been revoked.
  static int64_t revocations();

 private:
  static constexpr std::chrono::seconds kRevokeMax{10};

  std::mutex mu_;
  std::vector<ncclComm_t> communicators_;  // guarded by mu_; without those that were revoked
  std::shared_future<void> revocation_;    // guarded by mu_
};

/// Entries of the NCCL that LibTorch has loaded, which does not hand them on. Null: an older one.
template <typename Entry>
Entry entry_of_nccl(const char* name) {
  return reinterpret_cast<Entry>(::dlsym(RTLD_DEFAULT, name));
}

}  // namespace fsdp
