#include "fsdp_runtime/src/nccl/world_communicators.h"

#include <algorithm>
#include <map>
#include <utility>

#include "fsdp_runtime/src/comm/device_watch.h"

namespace fsdp {

std::shared_ptr<WorldCommunicators> WorldCommunicators::of(const Membership* membership) {
  static std::mutex mu;
  static auto* const worlds = new std::map<const Membership*, std::weak_ptr<WorldCommunicators>>;
  std::lock_guard lock(mu);
  std::erase_if(*worlds, [](const auto& each) { return each.second.expired(); });
  std::weak_ptr<WorldCommunicators>& world = (*worlds)[membership];
  std::shared_ptr<WorldCommunicators> found = world.lock();
  if (found == nullptr) {
    world = found = std::make_shared<WorldCommunicators>();
  }
  return found;
}

void WorldCommunicators::add(ncclComm_t communicator) {
  std::lock_guard lock(mu_);
  communicators_.push_back(communicator);
}

void WorldCommunicators::remove(ncclComm_t communicator) {
  std::lock_guard lock(mu_);
  std::erase(communicators_, communicator);
}

void WorldCommunicators::revoke() {
  static const auto start = entry_of_nccl<decltype(&::ncclGroupStart)>("ncclGroupStart");
  static const auto end = entry_of_nccl<decltype(&::ncclGroupEnd)>("ncclGroupEnd");
  static const auto revoke_one = entry_of_nccl<decltype(&::ncclCommRevoke)>("ncclCommRevoke");
  std::lock_guard lock(mu_);
  const std::vector<ncclComm_t> all = std::exchange(communicators_, {});
  if (all.empty() || start == nullptr || end == nullptr || revoke_one == nullptr) {
    return;
  }
  call_within(kRevokeMax, [all] {
    start();
    for (const ncclComm_t communicator : all) {
      revoke_one(communicator, NCCL_REVOKE_DEFAULT);
    }
    end();  // waits for all of them at once
  });
}

}  // namespace fsdp
