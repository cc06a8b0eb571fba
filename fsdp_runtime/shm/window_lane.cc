#include "fsdp_runtime/shm/window_lane.h"

#include <utility>

#include "fsdp_runtime/shm/error.h"

namespace fsdp::shm {
namespace {

/// Who waits for a gather of the peers.
class Gathering : public Peers::Waiter {
 public:
  Gathering(const Gather& gather, const Peers& peers) : gather_(gather) {
    lane = kWindowLane;
    deadline = peers.deadline();
  }
  std::string name() const override {
    return describe(gather_.descriptor, kWindowLane, gather_.sequence);
  }

 private:
  const Gather gather_;
};

std::string readers_of(const Window& window) {
  return "the readers of the shard of " + (window.purpose().empty()
                                               ? "window " + std::to_string(window.number())
                                               : window.purpose());
}

/// Who waits for the end of what the peers do with a window.
class Writing : public Peers::Waiter {
 public:
  Writing(const Window& window, const Peers& peers) : window_(window) {
    lane = kWindowLane;
    deadline = peers.deadline();
  }
  std::string name() const override { return readers_of(window_); }
  std::string progress_of(int peer, const World&) const override {
    const WindowUses& uses = window_.uses(peer);
    return "it has ended " + std::to_string(uses.released.load()) + " uses of " +
           std::to_string(uses.gathered.load()) + " that it has begun";
  }

 private:
  const Window& window_;
};

}  // namespace

WindowLane::WindowLane(std::shared_ptr<World> world, const Peers& peers)
    : world_(std::move(world)), peers_(peers) {}

void WindowLane::add(const std::shared_ptr<Window>& window) {
  std::lock_guard lock(mu_);
  std::erase_if(windows_, [](const std::weak_ptr<Window>& each) { return each.expired(); });
  windows_.push_back(window);
}

Descriptor& WindowLane::descriptor(int rank, uint64_t sequence) const {
  return world_->block().gathers[rank][sequence % kWindowDescriptors];
}

Gather WindowLane::issue(Window& window, std::string_view purpose) {
  if (window.is_held()) {
    throw Error("all_gather of the window of " + window.purpose() + ": " +
                peers_.called(peers_.rank()) +
                " holds what it has gathered before; end that use (release) first");
  }
  return post({.kind = Kind::kWindowGather, .root = window.number(), .numel = window.bytes()},
              purpose, &window);
}

Gather WindowLane::mark(std::string_view purpose) {
  return post({.kind = Kind::kBarrier}, purpose, nullptr);
}

Gather WindowLane::post(Descriptor descriptor, std::string_view purpose, Window* window) {
  peers_.throw_if_failed();
  make_room(sequence_ + 1);
  if (window != nullptr) {
    window->begin_use();
  }
  descriptor.purpose = purpose_of(purpose);
  this->descriptor(peers_.rank(), ++sequence_) = descriptor;
  slot(peers_.rank()).posted.store(sequence_);
  peers_.wake(kWindowLane);
  return {sequence_, descriptor};
}

void WindowLane::make_room(uint64_t sequence) {
  if (sequence <= kWindowDescriptors) {
    return;
  }
  const uint64_t oldest = sequence - kWindowDescriptors;
  const Gather gather{oldest, descriptor(peers_.rank(), oldest)};
  // The peers wait for this rank likewise, also if it never asks for what it has issued.
  meet(gather);
  peers_.wait(Gathering(gather, peers_), "end it",
              [&](int peer) { return slot(peer).done.load() >= oldest; });
}

void WindowLane::wait(const Gather& gather) {
  peers_.throw_if_failed();
  meet(gather);
}

void WindowLane::meet(const Gather& gather) {
  peers_.wait(Gathering(gather, peers_), "start it",
              [&](int peer) { return slot(peer).posted.load() >= gather.sequence; });
  std::optional<std::string> difference;
  {
    std::lock_guard lock(mu_);
    if (compared_ >= gather.sequence) {
      return;
    }
    while (!difference && compared_ < gather.sequence) {
      difference = this->difference(compared_ + 1);
      compared_ += difference ? 0 : 1;
    }
    slot(peers_.rank()).done.store(compared_);
  }
  peers_.wake(kWindowLane);
  if (difference) {
    // The ranks cannot recover, so the whole group fails.
    peers_.fail(*difference);
  }
}

std::optional<std::string> WindowLane::difference(uint64_t sequence) const {
  bool is_in_step = true;
  std::vector<Descriptor> issued;
  for (int rank = 0; rank < peers_.size(); ++rank) {
    issued.push_back(descriptor(rank, sequence));
    is_in_step = is_in_step && is_same_operation(issued.back(), issued.front());
  }
  return is_in_step
             ? std::nullopt
             : std::optional(describe_out_of_step(issued, kWindowLane, sequence, peers_.names()));
}

bool WindowLane::is_done(const Gather& gather) const {
  if (world_->block().is_reason_written.load() != 0) {
    return true;
  }
  for (int rank = 0; rank < peers_.size(); ++rank) {
    if (slot(rank).posted.load() < gather.sequence) {
      return false;
    }
  }
  return true;
}

void WindowLane::release(Window& window) {
  if (!window.is_held()) {
    throw Error("release of the window of " + window.purpose() + ": " +
                peers_.called(peers_.rank()) + " has not gathered it since it was released");
  }
  window.end_use();
  peers_.wake(kWindowLane);
}

void WindowLane::wait_for_readers(const Window& window) {
  peers_.throw_if_failed();
  const WindowUses& own = window.uses(peers_.rank());
  if (own.is_held()) {
    throw Error(readers_of(window) + ": " + peers_.called(peers_.rank()) +
                " holds what it has gathered of it, and a peer could wait for that: end the use "
                "(release) before the shard is written");
  }
  const uint64_t gathered = own.gathered.load();
  peers_.wait(Writing(window, peers_), "end its use of it",
              [&](int peer) { return window.uses(peer).has_released(gathered); });
}

void WindowLane::wait_for_all_readers() {
  std::vector<std::shared_ptr<Window>> windows;
  {
    std::lock_guard lock(mu_);
    for (const std::weak_ptr<Window>& each : windows_) {
      if (std::shared_ptr<Window> window = each.lock()) {
        windows.push_back(std::move(window));
      }
    }
  }
  for (const std::shared_ptr<Window>& window : windows) {
    if (!window->is_held()) {
      wait_for_readers(*window);
    }
  }
}

}  // namespace fsdp::shm
