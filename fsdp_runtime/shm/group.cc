#include "fsdp_runtime/shm/group.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <new>
#include <utility>

#include "fsdp_runtime/shm/error.h"

namespace fsdp::shm {
namespace {

// Up to this size an all-reduce is one exchange in which every rank reduces everything; above, a
// reduce-scatter and an all-gather, which read each element twice regardless of the world size.
constexpr size_t kAllReduceOneShotBytes = 256 * 1024;

size_t chunks_for(size_t units, size_t units_per_chunk) {
  return (units + units_per_chunk - 1) / units_per_chunk;
}

}  // namespace

/// One collective in flight on this rank.
struct Group::Operation : Peers::Waiter {
  std::string name() const override { return describe(own, lane, sequence); }

  uint64_t sequence = 0;
  Descriptor own;
  std::vector<bool> is_staged;  // per rank; the root's only in a broadcast
  bool is_any_staged = false;
};

Group::Group(std::shared_ptr<World> world, int rank, std::chrono::milliseconds timeout,
             std::vector<int64_t> names)
    : world_(std::move(world)),
      rank_(rank),
      arena_(std::make_shared<Arena>(world_->arenas.at(static_cast<size_t>(rank)))),
      peers_(world_, rank, timeout, std::move(names)),
      windows_(std::make_shared<WindowLane>(world_, peers_)) {}

Group::~Group() { peers_.leave(); }

void Group::abort(const std::string& reason, std::optional<int64_t> lost_rank) {
  peers_.publish_failure(reason, lost_rank);
}

std::shared_ptr<void> Group::allocate(size_t bytes) {
  void* piece = arena_->allocate(bytes);
  if (piece == nullptr) {
    return nullptr;
  }
  return {piece, [arena = arena_](void* gone) { arena->free(gone); }};
}

Group::Operation Group::begin(int lane, Descriptor descriptor, const void* contribution) {
  peers_.throw_if_failed();
  Operation operation;
  operation.lane = lane;
  operation.sequence = ++sequence_[lane];
  descriptor.purpose = purpose_[lane];
  descriptor.arena_offset = contribution == nullptr ? kNotInArena : arena_offset_of(contribution);
  operation.own = descriptor;
  operation.deadline = peers_.deadline();

  Slot& slot = world_->slot(lane, rank_);
  slot.descriptor = descriptor;
  slot.posted.store(operation.sequence);
  peers_.wake(lane);
  peers_.wait(operation, "start it", [&](int peer) {
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
    peers_.fail(describe_out_of_step(issued, operation.lane, operation.sequence, peers_.names()));
  }
}

void Group::finish(const Operation& operation) {
  world_->slot(operation.lane, rank_).done.store(operation.sequence);
  peers_.wake(operation.lane);
  peers_.wait(operation, "finish it", [&](int peer) {
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
    peers_.fail(operation.name() + ": larger than one operation can be");
  }
  const int lane = operation.lane;
  Slot& own = world_->slot(lane, rank_);
  const bool is_own_staged = operation.is_staged[static_cast<size_t>(rank_)];
  for (size_t chunk = 0; chunk < chunks; ++chunk) {
    if (is_own_staged) {
      if (chunk >= kStagingChunks) {
        const uint64_t freed = progress(operation.sequence, chunk + 1 - kStagingChunks);
        peers_.wait(operation, "read staged data",
                    [&](int peer) { return world_->slot(lane, peer).consumed.load() >= freed; });
      }
      stage(chunk, world_->staging(lane, rank_) + chunk % kStagingChunks * kStagingChunkBytes);
      own.produced.store(progress(operation.sequence, chunk + 1));
      peers_.wake(lane);
    }
    if (operation.is_any_staged) {
      peers_.wait(operation, "provide data", [&](int peer) {
        return !operation.is_staged[static_cast<size_t>(peer)] ||
               world_->slot(lane, peer).produced.load() >= progress(operation.sequence, chunk + 1);
      });
    }
    consume(chunk);
    if (operation.is_any_staged) {
      own.consumed.store(progress(operation.sequence, chunk + 1));
      peers_.wake(lane);
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
                           ReduceOp op, Result result) {
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
                       length(chunk), dtype, op, result);
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

std::shared_ptr<Window> Group::make_window(int lane, size_t bytes, std::string purpose) {
  if (bytes == 0 || bytes % page_bytes() != 0) {
    throw Error("making a window of " + purpose + ": " + std::to_string(bytes) +
                " bytes per rank; a multiple of the page size, " + std::to_string(page_bytes()) +
                ", expected");
  }
  const int number = ++window_count_;
  std::vector<Window::Place> places(static_cast<size_t>(size()));
  const Window::Place own = place_window(bytes);
  all_gather(lane, places.data(), &own, sizeof(own));
  std::shared_ptr<Window> window;
  if (has_place_everywhere(places, purpose)) {
    try {
      window = std::make_shared<Window>(number, std::move(purpose), places, world_, arena_, peers_);
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch): the others hear that there is none
    }
  } else if (own.part != kNotInArena) {
    arena_->free(world_->arenas[static_cast<size_t>(rank_)]->data() + own.part);
  }
  std::vector<char> is_mapped(static_cast<size_t>(size()));
  const char is_mapped_here = window != nullptr ? 1 : 0;
  all_gather(lane, is_mapped.data(), &is_mapped_here, 1);
  if (std::count(is_mapped.begin(), is_mapped.end(), 1) != size()) {
    return nullptr;
  }
  windows_->add(window);
  return window;
}

bool Group::has_place_everywhere(const std::vector<Window::Place>& places,
                                 const std::string& purpose) const {
  bool is_everywhere = true;
  for (size_t rank = 0; rank < places.size(); ++rank) {
    if (places[rank].bytes != places.front().bytes) {
      peers_.fail("making a window of " + purpose + ": " + peers_.called(static_cast<int>(rank)) +
                  " makes it of " + std::to_string(places[rank].bytes) + " bytes per rank and " +
                  peers_.called(0) + " of " + std::to_string(places.front().bytes) +
                  "; all ranks must make the same windows");
    }
    is_everywhere =
        is_everywhere && places[rank].part != kNotInArena && places[rank].uses != kNotInArena;
  }
  return is_everywhere;
}

// A rank that cannot tell what it has written over a window would have to drop all of its pages at
// each release, which takes longer than to copy them.
// The counts of uses are not given back: peers may look at them for as long as they please.
Window::Place Group::place_window(size_t bytes) {
  Window::Place place{.bytes = bytes};
  if (!world_->pages.is_readable()) {
    return place;
  }
  if (void* part = arena_->allocate_pages(bytes)) {
    place.part = arena_offset_of(part);
  }
  if (void* uses = arena_->allocate(sizeof(WindowUses))) {
    new (uses) WindowUses{};
    place.uses = arena_offset_of(uses);
  }
  return place;
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
