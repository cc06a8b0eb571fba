#include "fsdp_runtime/shm/peers.h"

#include <poll.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "fsdp_runtime/shm/error.h"
#include "fsdp_runtime/shm/futex.h"

namespace fsdp::shm {
namespace {

// Ranks usually share cores with other ranks' compute, so spin for about a microsecond only.
constexpr int kSpins = 40;
// Interval of liveness checks of peers; a live peer wakes the sleeper through its doorbell.
constexpr std::chrono::milliseconds kLivenessPeriod{20};
// How long the first rank that fails may take to write why.
constexpr std::chrono::seconds kReasonMax{5};

bool has_exited(const Fd& pidfd) {
  pollfd entry{pidfd.get(), POLLIN, 0};
  return pidfd.valid() && ::poll(&entry, 1, 0) == 1;
}

[[noreturn]] void throw_error(const std::string& reason, std::optional<int64_t> lost_rank) {
  if (lost_rank) {
    throw PeerLost(reason, *lost_rank);
  }
  throw Error(reason);
}

}  // namespace

std::string Peers::Waiter::progress_of(int peer, const World& world) const {
  return "it has issued " + std::to_string(world.slot(lane, peer).posted.load()) +
         " operations on this lane";
}

Peers::Peers(std::shared_ptr<World> world, int rank, std::chrono::milliseconds timeout,
             std::vector<int64_t> names)
    : world_(std::move(world)), rank_(rank), timeout_(timeout), names_(std::move(names)) {}

int64_t Peers::number_of(int rank) const {
  return names_.empty() ? rank : names_[static_cast<size_t>(rank)];
}

void Peers::wake(int lane) const {
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank_) {
      continue;
    }
    Slot& slot = world_->slot(lane, peer);
    slot.doorbell.fetch_add(1);
    if (slot.sleepers.load() != 0) {
      futex_wake(slot.doorbell);
    }
  }
}

// Note [Doorbell]
// The sleeper reads the doorbell, counts itself among the sleepers, checks the condition again, and
// sleeps only if the doorbell is unchanged. The waker changes the data, then the doorbell, then
// looks for sleepers. All of these are sequentially consistent, so either the sleeper sees the data
// or the waker sees the sleeper.
void Peers::sleep_until_woken(int lane, const std::function<bool()>& is_done) const {
  Slot& own = world_->slot(lane, rank_);
  const uint32_t doorbell = own.doorbell.load();
  own.sleepers.fetch_add(1);
  if (!is_done()) {
    futex_wait(own.doorbell, doorbell, kLivenessPeriod);
  }
  own.sleepers.fetch_sub(1);
}

void Peers::wait(const Waiter& waiter, const char* phase, const IsReady& is_ready) const {
  int peer = 0;
  // Advances over the peers that are ready; done at size().
  const auto is_done = [&] {
    while (peer < size() && (peer == rank_ || is_ready(peer))) {
      ++peer;
    }
    return peer == size();
  };
  for (int spin = 0; spin < kSpins; ++spin) {
    if (is_done()) {
      return;
    }
    cpu_relax();
  }
  auto next_check = std::chrono::steady_clock::now() + kLivenessPeriod;
  while (!is_done()) {
    sleep_until_woken(waiter.lane, is_done);
    throw_if_failed();
    const auto now = std::chrono::steady_clock::now();
    if (now < next_check) {
      continue;
    }
    next_check = now + kLivenessPeriod;
    for (int other = 0; other < size(); ++other) {
      throw_if_gone(waiter, phase, other, is_ready);
    }
    if (now >= waiter.deadline && !is_done()) {
      fail(waiter.name() + ": " + called(rank_) + " waited " + std::to_string(timeout_.count()) +
           " ms for " + called(peer) + " to " + phase + ", and it did not (" +
           waiter.progress_of(peer, *world_) +
           "); look at its log and stack, or raise the group's timeout");
    }
  }
}

void Peers::throw_if_gone(const Waiter& waiter, const char* phase, int peer,
                          const IsReady& is_ready) const {
  if (peer == rank_) {
    return;
  }
  const bool is_dead =
      !world_->pidfds.empty() && has_exited(world_->pidfds[static_cast<size_t>(peer)]);
  const bool has_left = world_->block().ranks[peer].left.load() != 0;
  // What it did before it left still counts: check its state after seeing that it is gone.
  if ((is_dead || has_left) && !is_ready(peer)) {
    fail(waiter.name() + ": " + called(peer) +
             (is_dead && !has_left ? " died" : " left the group") + " before it could " + phase,
         number_of(peer));
  }
}

void Peers::throw_if_failed() const {
  Control& block = world_->block();
  if (block.is_reason_written.load() == 0) {
    return;
  }
  const int noticed_by = static_cast<int>(block.failed_rank.load()) - 1;
  const std::string reason =
      "shared-memory group failed, noticed by " + called(noticed_by) + ": " +
      std::string(block.reason.data(), ::strnlen(block.reason.data(), block.reason.size()));
  const uint32_t lost = block.lost_rank.load();
  throw_error(reason, lost == 0 ? std::nullopt : std::optional<int64_t>(lost - 1));
}

void Peers::fail(const std::string& reason, std::optional<int64_t> lost_rank) const {
  publish_failure(reason, lost_rank);
  wait_for_reason();
  throw_if_failed();
  // The rank that failed first has died while it wrote its reason.
  throw_error(reason, lost_rank);
}

// Whoever fails first writes why at once. Without its word a rank that has heard it, and left,
// would be taken for the cause by one that only sees that it has left.
void Peers::wait_for_reason() const {
  Control& block = world_->block();
  const auto deadline = std::chrono::steady_clock::now() + kReasonMax;
  const auto is_writer_alive = [&] {
    const size_t writer = block.failed_rank.load() - 1;
    return block.ranks[writer].left.load() == 0 &&
           (world_->pidfds.empty() || !has_exited(world_->pidfds[writer]));
  };
  while (block.is_reason_written.load() == 0 && is_writer_alive() &&
         std::chrono::steady_clock::now() < deadline) {
    futex_wait(block.is_reason_written, 0, kLivenessPeriod);
  }
}

void Peers::publish_failure(const std::string& reason, std::optional<int64_t> lost_rank) const {
  Control& block = world_->block();
  uint32_t nobody = 0;
  if (block.failed_rank.compare_exchange_strong(nobody, static_cast<uint32_t>(rank_) + 1)) {
    const size_t length = std::min(reason.size(), block.reason.size() - 1);
    std::memcpy(block.reason.data(), reason.data(), length);
    block.reason[length] = '\0';
    block.lost_rank.store(lost_rank ? static_cast<uint32_t>(*lost_rank) + 1 : 0);
    block.is_reason_written.store(1);
    futex_wake(block.is_reason_written);
  }
  wake_all_lanes();
}

void Peers::leave() const {
  world_->block().ranks[rank_].left.store(1);
  wake_all_lanes();
}

void Peers::wake_all_lanes() const {
  for (int lane = 0; lane < kAllLanes; ++lane) {
    wake(lane);
  }
}

}  // namespace fsdp::shm
