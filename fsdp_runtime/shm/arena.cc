#include "fsdp_runtime/shm/arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <utility>

namespace fsdp::shm {
namespace {

size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

Arena::Arena(std::shared_ptr<Mapping> memory) : memory_(std::move(memory)), process_(::getpid()) {
  free_.emplace(0, memory_->bytes());
}

void* Arena::allocate(size_t bytes, bool in_pages) {
  const size_t unit = in_pages ? page_bytes() : kAlignment;
  const size_t wanted = round_up(std::max<size_t>(bytes, 1), unit);
  if (wanted < bytes) {
    return nullptr;
  }
  std::lock_guard lock(mu_);
  free_what_is_unused();
  auto best = free_.end();
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    const size_t begin = round_up(it->first, unit);
    const bool fits = begin <= it->second && it->second - begin >= wanted;
    if (fits && (best == free_.end() || it->second - it->first < best->second - best->first)) {
      best = it;
    }
  }
  if (best == free_.end()) {
    return nullptr;
  }
  const auto [free_begin, free_end] = *best;
  const size_t begin = round_up(free_begin, unit);
  free_.erase(best);
  if (free_begin < begin) {
    free_.emplace(free_begin, begin);
  }
  if (begin + wanted < free_end) {
    free_.emplace(begin + wanted, free_end);
  }
  used_.emplace(begin, begin + wanted);
  allocated_bytes_ += wanted;
  return memory_->data() + begin;
}

void Arena::free(void* piece) {
  std::lock_guard lock(mu_);
  free_now(piece);
}

void Arena::free_once(void* piece, std::function<bool()> is_unused) {
  std::lock_guard lock(mu_);
  postponed_.push_back({piece, std::move(is_unused)});
  free_what_is_unused();
}

void Arena::free_what_is_unused() {
  std::erase_if(postponed_, [this](const Postponed& each) {
    const bool is_unused = each.is_unused();
    if (is_unused) {
      free_now(each.piece);
    }
    return is_unused;
  });
}

void Arena::free_now(void* piece) {
  const auto used = used_.find(static_cast<size_t>(static_cast<char*>(piece) - memory_->data()));
  if (used == used_.end()) {
    // A double free; continuing would allocate the range twice.
    std::terminate();
  }
  size_t begin = used->first;
  size_t end = used->second;
  used_.erase(used);
  allocated_bytes_ -= end - begin;
  auto next = free_.lower_bound(begin);
  if (next != free_.end() && next->first == end) {
    end = next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin() && std::prev(next)->second == begin) {
    begin = std::prev(next)->first;
    free_.erase(std::prev(next));
  }
  release_pages(begin, end);
  free_.emplace(begin, end);
}

size_t Arena::allocated_bytes() const {
  std::lock_guard lock(mu_);
  return allocated_bytes_;
}

void Arena::release_pages(size_t begin, size_t end) {
  begin = round_up(begin, page_bytes());
  end = end / page_bytes() * page_bytes();
  if (begin < end && ::getpid() == process_) {
    ::madvise(memory_->data() + begin, end - begin, MADV_REMOVE);
  }
}

}  // namespace fsdp::shm
