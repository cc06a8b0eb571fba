#pragma once

// Messages in flight on thousands of streams.

#include <cstdint>
#include <utility>
#include <vector>

namespace fsdprun::sim {

/// Holds the messages of many FIFOs in cells that are used again, last freed first: however many
/// streams there are, only what is in flight takes up cache. A message is moved once, into its
/// cell, and stepped from there.
template <class Event>
class MessagePool {
 public:
  using Cell = uint32_t;
  static constexpr Cell kNone = ~Cell{0};

  struct Fifo {
    Cell head = kNone;
    Cell tail = kNone;

    bool empty() const { return head == kNone; }
  };

  template <class Message>
  void Append(Fifo& fifo, Message&& message) {
    const Cell cell = Allocate();
    slots_[cell].event = std::forward<Message>(message);
    slots_[cell].next = kNone;
    (fifo.empty() ? fifo.head : slots_[fifo.tail].next) = cell;
    fifo.tail = cell;
  }

  /// Takes the first message of a FIFO that is not empty; to be given back with Release.
  Cell TakeFirst(Fifo& fifo) {
    const Cell cell = fifo.head;
    fifo.head = slots_[cell].next;
    return cell;
  }

  /// Valid until the next Append.
  const Event& operator[](Cell cell) const { return slots_[cell].event; }

  void Release(Cell cell) {
    slots_[cell].next = free_;
    free_ = cell;
  }

  void Clear(Fifo& fifo) {
    while (!fifo.empty()) {
      Release(TakeFirst(fifo));
    }
  }

  size_t Length(const Fifo& fifo) const {
    size_t length = 0;
    for (Cell cell = fifo.head; cell != kNone; cell = slots_[cell].next) {
      ++length;
    }
    return length;
  }

 private:
  struct Slot {
    Event event;
    Cell next = kNone;
  };

  Cell Allocate() {
    if (free_ == kNone) {
      slots_.emplace_back();
      return static_cast<Cell>(slots_.size() - 1);
    }
    const Cell cell = free_;
    free_ = slots_[cell].next;
    return cell;
  }

  std::vector<Slot> slots_;
  Cell free_ = kNone;
};

}  // namespace fsdprun::sim
