#include <poll.h>
#include <sys/poll.h>

#include <algorithm>
#include <cstring>

#include "fsdp_runtime/shm/error.h"
#include "fsdp_runtime/shm/futex.h"
#include "fsdp_runtime/shm/group_internal.h"

namespace fsdp::shm {
namespace {

// Ranks usually share their cores with the compute of others, so spin for about a microsecond only.
constexpr int kSpins = 40;
// How long a dead peer can stay unnoticed; a live one rings the bell.
constexpr std::chrono::milliseconds kLivenessPeriod{20};

bool has_exited(const Fd& pidfd) {
  pollfd entry{pidfd.get(), POLLIN, 0};
  return pidfd.valid() && ::poll(&entry, 1, 0) == 1;
}

}  // namespace

void Group::ring_peers(int lane) {
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank_) {
      continue;
    }
    Slot& slot = world_->slot(lane, peer);
    slot.bell.fetch_add(1);
    if (slot.is_sleeping.load() != 0) {
      futex_wake(slot.bell);
    }
  }
}

// Note [Bell]
// The sleeper reads the bell, says that it sleeps, looks again, and sleeps only while the bell is
// as it was. A ringer changes the data, then the bell, then looks for a sleeper. All of these are
// sequentially consistent, so either the sleeper sees the data or the ringer sees the sleeper.
void Group::sleep_until_rung(int lane, const std::function<bool()>& is_done) {
  Slot& own = world_->slot(lane, rank_);
  const uint32_t bell = own.bell.load();
  own.is_sleeping.store(1);
  if (!is_done()) {
    futex_wait(own.bell, bell, kLivenessPeriod);
  }
  own.is_sleeping.store(0);
}

void Group::wait_for_peers(const Operation& operation, const char* phase, const IsReady& is_ready) {
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
    sleep_until_rung(operation.lane, is_done);
    throw_if_failed();
    const auto now = std::chrono::steady_clock::now();
    if (now < next_check) {
      continue;
    }
    next_check = now + kLivenessPeriod;
    for (int other = 0; other < size(); ++other) {
      throw_if_gone(operation, phase, other, is_ready);
    }
    if (now >= operation.deadline && !is_done()) {
      fail(operation.name() + ": rank " + std::to_string(rank_) + " waited " +
           std::to_string(timeout_.count()) + " ms for rank " + std::to_string(peer) + " to " +
           phase + ", and it did not (it has issued " +
           std::to_string(world_->slot(operation.lane, peer).posted.load()) +
           " operations on this lane); look at its log and stack, or raise the group's timeout");
    }
  }
}

void Group::throw_if_gone(const Operation& operation, const char* phase, int peer,
                          const IsReady& is_ready) {
  if (peer == rank_) {
    return;
  }
  const bool is_dead =
      !world_->pidfds.empty() && has_exited(world_->pidfds[static_cast<size_t>(peer)]);
  const bool has_left = world_->block().ranks[peer].left.load() != 0;
  // What it did before it went still counts: look at its words after seeing it gone.
  if ((is_dead || has_left) && !is_ready(peer)) {
    fail(operation.name() + ": rank " + std::to_string(peer) +
             (is_dead && !has_left ? " died" : " left the group") + " before it could " + phase,
         Cause::kPeerLost);
  }
}

void Group::throw_if_failed() const {
  Control& block = world_->block();
  if (block.is_reason_written.load() == 0) {
    return;
  }
  const std::string reason =
      "shared-memory group failed, noticed by rank " +
      std::to_string(block.failed_rank.load() - 1) + ": " +
      std::string(block.reason.data(), ::strnlen(block.reason.data(), block.reason.size()));
  throw_error(reason, block.is_peer_lost.load() != 0 ? Cause::kPeerLost : Cause::kOther);
}

void Group::throw_error(const std::string& reason, Cause cause) {
  if (cause == Cause::kPeerLost) {
    throw PeerLost(reason);
  }
  throw Error(reason);
}

void Group::fail(const std::string& reason, Cause cause) {
  publish_failure(reason, cause);
  throw_if_failed();
  // Another rank was first and has yet to write its reason, or died while it wrote.
  throw_error(reason, cause);
}

void Group::abort(const std::string& reason) { publish_failure(reason, Cause::kPeerLost); }

void Group::publish_failure(const std::string& reason, Cause cause) {
  Control& block = world_->block();
  uint32_t nobody = 0;
  if (block.failed_rank.compare_exchange_strong(nobody, static_cast<uint32_t>(rank_) + 1)) {
    const size_t length = std::min(reason.size(), block.reason.size() - 1);
    std::memcpy(block.reason.data(), reason.data(), length);
    block.reason[length] = '\0';
    block.is_peer_lost.store(cause == Cause::kPeerLost ? 1 : 0);
    block.is_reason_written.store(1);
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    ring_peers(lane);
  }
}

int64_t Group::arena_offset_of(const void* pointer) const {
  const Mapping& arena = *world_->arenas[static_cast<size_t>(rank_)];
  const char* begin = arena.data();
  const auto* address = static_cast<const char*>(pointer);
  const bool is_inside =
      !std::less<>()(address, begin) && std::less<>()(address, begin + arena.bytes());
  return is_inside ? address - begin : kNotInArena;
}

}  // namespace fsdp::shm
