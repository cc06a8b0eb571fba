#include "fsdp_runtime/src/nccl/world_communicators.h"

#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <thread>
#include <utility>

namespace fsdp {
namespace {

std::atomic<int64_t> revocations_done = 0;

/// On a thread of its own, which may take as long as what is in flight.
std::shared_future<void> revoke_all(std::vector<ncclComm_t> all, c10::Device device) {
  static const auto start = entry_of_nccl<decltype(&::ncclGroupStart)>("ncclGroupStart");
  static const auto end = entry_of_nccl<decltype(&::ncclGroupEnd)>("ncclGroupEnd");
  static const auto revoke = entry_of_nccl<decltype(&::ncclCommRevoke)>("ncclCommRevoke");
  if (start == nullptr || end == nullptr || revoke == nullptr) {
    return {};
  }
  auto ended = std::make_shared<std::promise<void>>();
  std::shared_future<void> future = ended->get_future().share();
  std::thread([ended, all = std::move(all), device] {
    const c10::cuda::CUDAGuard guard(device);
    start();
    for (const ncclComm_t communicator : all) {
      revoke(communicator, NCCL_REVOKE_DEFAULT);
    }
    end();  // waits for all of them at once
    ended->set_value();
  }).detach();
  return future;
}

}  // namespace

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
  std::shared_future<void> end;
  {
    std::lock_guard lock(mu_);
    std::erase(communicators_, communicator);
    end = revocation_;
  }
  if (end.valid()) {
    end.wait();
  }
}

void WorldCommunicators::revoke(c10::Device device) {
  std::shared_future<void> end;
  {
    std::lock_guard lock(mu_);
    const std::vector<ncclComm_t> all = std::exchange(communicators_, {});
    if (!all.empty()) {
      ++revocations_done;
      revocation_ = revoke_all(all, device);
    }
    end = revocation_;
  }
  if (end.valid()) {
    end.wait_for(kRevokeMax);
  }
}

int64_t WorldCommunicators::revocations() { return revocations_done; }

}  // namespace fsdp
