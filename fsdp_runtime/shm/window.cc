#include "fsdp_runtime/shm/window.h"

#include <unistd.h>

#include <utility>

namespace fsdp::shm {
namespace {

std::unique_ptr<PrivateView> view_of(const std::vector<Window::Place>& places, const World& world) {
  std::vector<PrivateView::Part> parts;
  for (size_t rank = 0; rank < places.size(); ++rank) {
    parts.push_back({world.arenas[rank].get(), static_cast<size_t>(places[rank].part)});
  }
  return std::make_unique<PrivateView>(parts, places.front().bytes);
}

}  // namespace

Window::Window(int number, std::string purpose, std::vector<Place> places,
               std::shared_ptr<World> world, std::shared_ptr<Arena> arena, const Peers& peers)
    : number_(number),
      purpose_(std::move(purpose)),
      places_(std::move(places)),
      world_(std::move(world)),
      arena_(std::move(arena)),
      peers_(peers),
      process_(::getpid()),
      part_(world_->arenas[static_cast<size_t>(peers.rank())]->data() +
            places_[static_cast<size_t>(peers.rank())].part) {
  try {
    view_ = view_of(places_, *world_);
  } catch (...) {
    arena_->free(part_);
    throw;
  }
}

// The counts of this rank stay for ever, since a peer may look at them at any time.
Window::~Window() {
  if (::getpid() != process_) {
    return;  // the uses are those of the process that was forked, which may still read and gather
  }
  WindowUses& own = own_uses();
  const uint64_t gathered = own.gathered.load();
  if (own.is_held()) {
    own.released.store(gathered);
    peers_.wake(kWindowLane);
  }
  std::vector<const WindowUses*> of_ranks;
  of_ranks.reserve(places_.size());
  for (int rank = 0; rank < peers_.size(); ++rank) {
    of_ranks.push_back(&uses(rank));
  }
  arena_->free_once(part_, [world = world_, of_ranks = std::move(of_ranks), gathered] {
    for (const WindowUses* uses : of_ranks) {
      if (!uses->has_released(gathered)) {
        return false;
      }
    }
    return true;
  });
}

const WindowUses& Window::uses(int rank) const {
  const auto index = static_cast<size_t>(rank);
  return *reinterpret_cast<const WindowUses*>(world_->arenas[index]->data() + places_[index].uses);
}

WindowUses& Window::own_uses() const { return const_cast<WindowUses&>(uses(peers_.rank())); }

void Window::begin_use() { own_uses().gathered.fetch_add(1); }

// What was written through a pointer is not known to anybody: copies are looked for in each use.
void Window::end_use() {
  if (::getpid() != process_) {
    return;
  }
  view_->forget_writes(world_->pages);
  WindowUses& own = own_uses();
  own.released.store(own.gathered.load());
}

}  // namespace fsdp::shm
