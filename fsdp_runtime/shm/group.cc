#include "fsdp_runtime/shm/group.h"

#include <algorithm>
#include <cstring>

#include "fsdp_runtime/shm/error.h"
#include "fsdp_runtime/shm/group_internal.h"

namespace fsdp::shm {
namespace {

// Below this an all-reduce is one exchange in which every rank adds everything; above, a
// reduce-scatter and an all-gather, which read each element twice whatever the world's size.
constexpr size_t kAllReduceOneShotBytes = 256 * 1024;

size_t chunks_for(size_t units, size_t units_per_chunk) {
  return (units + units_per_chunk - 1) / units_per_chunk;
}

}  // namespace

const char* name_of(Kind kind) {
  static constexpr const char* kNames[] = {"all_gather", "reduce_scatter", "all_reduce",
                                           "broadcast", "barrier"};
  const auto index = static_cast<size_t>(kind);
  return index < std::size(kNames) ? kNames[index] : "unknown";
}

std::string Group::Operation::name() const {
  return std::string(shm::name_of(own.kind)) + " #" + std::to_string(sequence) + " on lane " +
         std::to_string(lane) + " (" + std::to_string(own.numel) + " x " + shm::name_of(own.dtype) +
         ")";
}

Group::Group(std::shared_ptr<World> world, int rank, std::chrono::milliseconds timeout)
    : world_(std::move(world)),
      rank_(rank),
      timeout_(timeout),
      arena_(std::make_shared<Arena>(world_->arenas.at(static_cast<size_t>(rank)))) {}

Group::~Group() {
  world_->block().ranks[rank_].left.store(1);
  for (int lane = 0; lane < kLanes; ++lane) {
    ring_peers(lane);
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
  descriptor.arena_offset = contribution == nullptr ? kNotInArena : arena_offset_of(contribution);
  operation.own = descriptor;
  operation.deadline = std::chrono::steady_clock::now() + timeout_;

  Slot& slot = world_->slot(lane, rank_);
  slot.descriptor = descriptor;
  slot.posted.store(operation.sequence);
  ring_peers(lane);
  wait_for_peers(operation, "start it", [&](int peer) {
    return world_->slot(lane, peer).posted.load() >= operation.sequence;
  });

  operation.is_staged.resize(static_cast<size_t>(size()));
  for (int peer = 0; peer < size(); ++peer) {
    check_matches(operation, peer);
    const bool provides = descriptor.kind != Kind::kBroadcast || peer == descriptor.root;
    const bool is_staged =
        provides && world_->slot(lane, peer).descriptor.arena_offset == kNotInArena;
    operation.is_staged[static_cast<size_t>(peer)] = is_staged;
    operation.is_any_staged = operation.is_any_staged || is_staged;
  }
  return operation;
}

void Group::check_matches(const Operation& operation, int peer) {
  const Descriptor& own = operation.own;
  const Descriptor& other = world_->slot(operation.lane, peer).descriptor;
  if (other.kind == own.kind && other.dtype == own.dtype && other.op == own.op &&
      other.root == own.root && other.numel == own.numel) {
    return;
  }
  Operation theirs = operation;
  theirs.own = other;
  // The order of operations is lost for good, so the whole group fails.
  const std::string reason = "rank " + std::to_string(rank_) + " issued " + operation.name() +
                             " but rank " + std::to_string(peer) + " issued " + theirs.name() +
                             "; every rank must issue the same operations in the same order: look "
                             "for a branch that depends "
                             "on the rank or its data";
  fail(reason);
}

void Group::finish(const Operation& operation) {
  world_->slot(operation.lane, rank_).done.store(operation.sequence);
  ring_peers(operation.lane);
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
      ring_peers(lane);
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
      ring_peers(lane);
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
        // Every rank starts at another peer, so that they do not all read the same memory.
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

// Always through the rings: the result replaces the contribution while peers may still read it.
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

}  // namespace fsdp::shm
