#include "fsdp_runtime/shm/group.h"

#include <poll.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "fsdp_runtime/shm/error.h"
#include "fsdp_runtime/shm/futex.h"

namespace fsdp::shm {
namespace {

// Up to this size an all-reduce is one exchange in which every rank reduces everything; above, a
// reduce-scatter and an all-gather, which read each element twice regardless of the world size.
constexpr size_t kAllReduceOneShotBytes = 256 * 1024;

// Ranks usually share cores with other ranks' compute, so spin for about a microsecond only.
constexpr int kSpins = 40;
// Interval of liveness checks of peers; a live peer wakes the sleeper through its doorbell.
constexpr std::chrono::milliseconds kLivenessPeriod{20};

size_t chunks_for(size_t units, size_t units_per_chunk) {
  return (units + units_per_chunk - 1) / units_per_chunk;
}

bool has_exited(const Fd& pidfd) {
  pollfd entry{pidfd.get(), POLLIN, 0};
  return pidfd.valid() && ::poll(&entry, 1, 0) == 1;
}

}  // namespace

/// One collective in flight on this rank.
struct Group::Operation {
  int lane = 0;
  uint64_t sequence = 0;
  Descriptor own;
  std::chrono::steady_clock::time_point deadline;
  std::vector<bool> is_staged;  // per rank; the root's only in a broadcast
  bool is_any_staged = false;

  std::string name() const;
};

std::string Group::Operation::name() const { return describe(own, lane, sequence); }

Group::Group(std::shared_ptr<World> world, int rank, std::chrono::milliseconds timeout)
    : world_(std::move(world)),
      rank_(rank),
      timeout_(timeout),
      arena_(std::make_shared<Arena>(world_->arenas.at(static_cast<size_t>(rank)))) {}

Group::~Group() {
  world_->block().ranks[rank_].left.store(1);
  for (int lane = 0; lane < kLanes; ++lane) {
    wake_peers(lane);
  }
}

std::shared_ptr<void> Group::allocate(size_t bytes) {
  void* piece = arena_->allocate(bytes);
  if (piece == nullptr) {
    return nullptr;
  }
  return {piece, [arena = arena_](void* gone) { arena->free(gone); }};
}

Group::Operation Group::begin(int lane, Descriptor descriptor, const void* contribution) {
  throw_if_failed();
  Operation operation;
  operation.lane = lane;
  operation.sequence = ++sequence_[lane];
  descriptor.purpose = purpose_[lane];
  descriptor.arena_offset = contribution == nullptr ? kNotInArena : arena_offset_of(contribution);
  operation.own = descriptor;
  operation.deadline = std::chrono::steady_clock::now() + timeout_;

  Slot& slot = world_->slot(lane, rank_);
  slot.descriptor = descriptor;
  slot.posted.store(operation.sequence);
  wake_peers(lane);
  wait_for_peers(operation, "start it", [&](int peer) {
    return world_->slot(lane, peer).posted.load() >= operation.sequence;
  });

  check_in_step(operation);
  operation.is_staged.resize(static_cast<size_t>(size()));
  for (int peer = 0; peer < size(); ++peer) {
    const bool provides = descriptor.kind != Kind::kBroadcast || peer == descriptor.root;
    const bool is_staged =
        provides && world_->slot(lane, peer).descriptor.arena_offset == kNotInArena;
    operation.is_staged[static_cast<size_t>(peer)] = is_staged;
    operation.is_any_staged = operation.is_any_staged || is_staged;
  }
  return operation;
}

void Group::check_in_step(const Operation& operation) {
  bool is_in_step = true;
  std::vector<Descriptor> issued;
  for (int peer = 0; peer < size(); ++peer) {
    issued.push_back(world_->slot(operation.lane, peer).descriptor);
    is_in_step = is_in_step && is_same_operation(issued.back(), operation.own);
  }
  if (!is_in_step) {
    // The ranks cannot recover, so the whole group fails.
    fail(describe_out_of_step(issued, operation.lane, operation.sequence));
  }
}

void Group::finish(const Operation& operation) {
  world_->slot(operation.lane, rank_).done.store(operation.sequence);
  wake_peers(operation.lane);
  wait_for_peers(operation, "finish it", [&](int peer) {
    return world_->slot(operation.lane, peer).done.load() >= operation.sequence;
  });
}

const char* Group::source(const Operation& operation, int peer, size_t offset, size_t chunk) const {
  if (operation.is_staged[static_cast<size_t>(peer)]) {
    return world_->staging(operation.lane, peer) + chunk % kStagingChunks * kStagingChunkBytes;
  }
  const Descriptor& descriptor = world_->slot(operation.lane, peer).descriptor;
  return world_->arenas[static_cast<size_t>(peer)]->data() + descriptor.arena_offset + offset;
}

template <typename Stage, typename Consume>
void Group::run(Operation& operation, size_t chunks, Stage stage, Consume consume) {
  if (chunks > kChunksMax) {
    fail(operation.name() + ": larger than one operation can be");
  }
  const int lane = operation.lane;
  Slot& own = world_->slot(lane, rank_);
  const bool is_own_staged = operation.is_staged[static_cast<size_t>(rank_)];
  for (size_t chunk = 0; chunk < chunks; ++chunk) {
    if (is_own_staged) {
      if (chunk >= kStagingChunks) {
        const uint64_t freed = progress(operation.sequence, chunk + 1 - kStagingChunks);
        wait_for_peers(operation, "read staged data",
                       [&](int peer) { return world_->slot(lane, peer).consumed.load() >= freed; });
      }
      stage(chunk, world_->staging(lane, rank_) + chunk % kStagingChunks * kStagingChunkBytes);
      own.produced.store(progress(operation.sequence, chunk + 1));
      wake_peers(lane);
    }
    if (operation.is_any_staged) {
      wait_for_peers(operation, "provide data", [&](int peer) {
        return !operation.is_staged[static_cast<size_t>(peer)] ||
               world_->slot(lane, peer).produced.load() >= progress(operation.sequence, chunk + 1);
      });
    }
    consume(chunk);
    if (operation.is_any_staged) {
      own.consumed.store(progress(operation.sequence, chunk + 1));
      wake_peers(lane);
    }
  }
}

void Group::all_gather(int lane, void* output, const void* input, size_t bytes) {
  Operation operation =
      begin(lane, {.kind = Kind::kAllGather, .dtype = DType::kByte, .numel = bytes}, input);
  const size_t step = operation.is_any_staged ? kStagingChunkBytes : std::max<size_t>(bytes, 1);
  const auto length = [&](size_t chunk) { return std::min(step, bytes - chunk * step); };
  const auto* own = static_cast<const char*>(input);
  auto* out = static_cast<char*>(output);
  run(
      operation, chunks_for(bytes, step),
      [&](size_t chunk, char* ring) { std::memcpy(ring, own + chunk * step, length(chunk)); },
      [&](size_t chunk) {
        // Every rank starts with a different peer, so that they do not all read the same memory.
        for (int i = 0; i < size(); ++i) {
          const int peer = (rank_ + i) % size();
          char* target = out + static_cast<size_t>(peer) * bytes + chunk * step;
          const char* from =
              peer == rank_ ? own + chunk * step : source(operation, peer, chunk * step, chunk);
          if (target != from) {
            std::memcpy(target, from, length(chunk));
          }
        }
      });
  finish(operation);
}

void Group::reduce_scatter(int lane, void* output, const void* input, size_t numel, DType dtype,
                           ReduceOp op) {
  Operation operation =
      begin(lane, {.kind = Kind::kReduceScatter, .dtype = dtype, .op = op, .numel = numel}, input);
  const size_t element = size_of(dtype);
  const auto world = static_cast<size_t>(size());
  // A staged chunk holds `step` elements for each destination.
  const size_t step = operation.is_any_staged ? kStagingChunkBytes / world / 64 * 64 / element
                                              : std::max<size_t>(numel, 1);
  const auto length = [&](size_t chunk) { return std::min(step, numel - chunk * step); };
  const auto* own = static_cast<const char*>(input);
  const auto offset_for = [&](int destination, size_t chunk) {
    return (static_cast<size_t>(destination) * numel + chunk * step) * element;
  };
  std::vector<const void*> sources(world);
  run(
      operation, chunks_for(numel, step),
      [&](size_t chunk, char* ring) {
        for (int to = 0; to < size(); ++to) {
          if (to != rank_) {
            std::memcpy(ring + static_cast<size_t>(to) * step * element,
                        own + offset_for(to, chunk), length(chunk) * element);
          }
        }
      },
      [&](size_t chunk) {
        const size_t offset = offset_for(rank_, chunk);
        for (int from = 0; from < size(); ++from) {
          const size_t in_ring = operation.is_staged[static_cast<size_t>(from)]
                                     ? static_cast<size_t>(rank_) * step * element
                                     : 0;
          sources[static_cast<size_t>(from)] =
              from == rank_ ? own + offset : source(operation, from, offset, chunk) + in_ring;
        }
        reduce_ordered(static_cast<char*>(output) + chunk * step * element, sources.data(), world,
                       length(chunk), dtype, op);
      });
  finish(operation);
}

void Group::all_reduce(int lane, void* buffer, size_t numel, DType dtype, ReduceOp op) {
  const size_t element = size_of(dtype);
  const auto world = static_cast<size_t>(size());
  if (numel * element <= kAllReduceOneShotBytes || numel < world) {
    return all_reduce_staged(lane, buffer, numel, dtype, op);
  }
  const size_t share = numel / world;
  auto* data = static_cast<char*>(buffer);
  char* own = data + static_cast<size_t>(rank_) * share * element;
  reduce_scatter(lane, own, data, share, dtype, op);
  all_gather(lane, data, own, share * element);
  if (const size_t rest = numel - share * world; rest > 0) {
    all_reduce_staged(lane, data + share * world * element, rest, dtype, op);
  }
}

// Always staged: the result overwrites the contribution while peers may still read it.
void Group::all_reduce_staged(int lane, void* buffer, size_t numel, DType dtype, ReduceOp op) {
  Operation operation =
      begin(lane, {.kind = Kind::kAllReduce, .dtype = dtype, .op = op, .numel = numel}, nullptr);
  const size_t element = size_of(dtype);
  const size_t step = kStagingChunkBytes / element;
  const auto length = [&](size_t chunk) { return std::min(step, numel - chunk * step); };
  auto* data = static_cast<char*>(buffer);
  std::vector<const void*> sources(static_cast<size_t>(size()));
  run(
      operation, chunks_for(numel, step),
      [&](size_t chunk, char* ring) {
        std::memcpy(ring, data + chunk * step * element, length(chunk) * element);
      },
      [&](size_t chunk) {
        for (int from = 0; from < size(); ++from) {
          sources[static_cast<size_t>(from)] = source(operation, from, 0, chunk);
        }
        reduce_ordered(data + chunk * step * element, sources.data(), sources.size(), length(chunk),
                       dtype, op);
      });
  finish(operation);
}

void Group::broadcast(int lane, void* buffer, size_t bytes, int root) {
  Operation operation =
      begin(lane, {.kind = Kind::kBroadcast, .dtype = DType::kByte, .root = root, .numel = bytes},
            buffer);
  const size_t step = operation.is_any_staged ? kStagingChunkBytes : std::max<size_t>(bytes, 1);
  const auto length = [&](size_t chunk) { return std::min(step, bytes - chunk * step); };
  auto* data = static_cast<char*>(buffer);
  run(
      operation, chunks_for(bytes, step),
      [&](size_t chunk, char* ring) { std::memcpy(ring, data + chunk * step, length(chunk)); },
      [&](size_t chunk) {
        if (rank_ != root) {
          std::memcpy(data + chunk * step, source(operation, root, chunk * step, chunk),
                      length(chunk));
        }
      });
  finish(operation);
}

void Group::barrier(int lane) { finish(begin(lane, {.kind = Kind::kBarrier}, nullptr)); }

// --- Waiting and failing

void Group::wake_peers(int lane) {
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank_) {
      continue;
    }
    Slot& slot = world_->slot(lane, peer);
    slot.doorbell.fetch_add(1);
    if (slot.is_sleeping.load() != 0) {
      futex_wake(slot.doorbell);
    }
  }
}

// Note [Doorbell]
// The sleeper reads the doorbell, sets is_sleeping, checks the condition again, and sleeps only if
// the doorbell is unchanged. The waker changes the data, then the doorbell, then checks
// is_sleeping. All of these are sequentially consistent, so either the sleeper sees the data or the
// waker sees the sleeper.
void Group::sleep_until_woken(int lane, const std::function<bool()>& is_done) {
  Slot& own = world_->slot(lane, rank_);
  const uint32_t doorbell = own.doorbell.load();
  own.is_sleeping.store(1);
  if (!is_done()) {
    futex_wait(own.doorbell, doorbell, kLivenessPeriod);
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
    sleep_until_woken(operation.lane, is_done);
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
  // What it did before it left still counts: check its state after seeing that it is gone.
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
  // Another rank failed first and has not yet written its reason, or died while writing it.
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
    wake_peers(lane);
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
