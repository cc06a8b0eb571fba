#include "fsdp_runtime/src/comm/collective_board.h"

#include <fsdp/counters.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "fsdp_runtime/src/trace/trace_log.h"
#include "fsdp_runtime/vitals/own_vitals.h"

namespace fsdp {
namespace {

constexpr std::string_view kUnit = "unit ";
/// Of what is only counted.
constexpr uint64_t kUnkept = ~uint64_t{0};

std::atomic<uint64_t> waited_ns{0};
thread_local int waits_of_thread = 0;

/// As much of `text` as there is room for.
char* append(char* at, const char* end, std::string_view text) {
  const size_t length = std::min(text.size(), static_cast<size_t>(end - at));
  return std::copy_n(text.data(), length, at);
}

/// Of a word that nobody else writes meanwhile: cheaper than an atomic addition.
void add_one(fsdprun::contract::VitalsPage::Word& word, std::memory_order order) {
  word.store(word.load(std::memory_order_relaxed) + 1, order);
}

void store_words(fsdprun::contract::VitalsPage::Text& words, const char* text) {
  for (size_t i = 0; i < words.size(); ++i) {
    uint64_t word = 0;
    std::memcpy(&word, text + i * sizeof(word), sizeof(word));
    words[i].store(word, std::memory_order_relaxed);
  }
}

/// Of a long one the end, which tells more.
std::string_view unit_of(std::string_view purpose, size_t room) {
  if (purpose.substr(0, kUnit.size()) == kUnit) {
    purpose.remove_prefix(kUnit.size());
  }
  return purpose.substr(purpose.size() - std::min(purpose.size(), room));
}

constexpr const char* kTraced = "collective";

/// The id of its end; 0: there is no trace.
uint64_t begin_in_trace(const CollectiveBoard::What& what) {
  if (!trace::is_on()) {
    return 0;
  }
  const uint64_t id = trace::next_id();
  std::string name = what.kind;
  if (!what.purpose.empty()) {
    name.append(" for ").append(what.purpose);
  }
  trace::add({.kind = trace::Event::Kind::kBegin,
              .category = kTraced,
              .name = std::move(name),
              .group = std::string(what.group),
              .at_ns = trace::now_ns(),
              .id = id,
              .bytes = what.bytes});
  return id;
}

}  // namespace

uint64_t CollectiveBoard::begin(const What& what) {
  if (page_ == nullptr) {
    return 0;
  }
  const uint64_t now = vitals_now_ns();
  std::lock_guard lock(mu_);
  add_one(page_->collectives_begun, std::memory_order_relaxed);
  Entry& entry = entry_of(next_ticket_);
  if (entry.ticket != 0) {
    return kUnkept;
  }
  entry.ticket = next_ticket_++;
  entry.began_ns = now;
  entry.bytes = what.bytes;
  entry.collective = {};
  const char* const end = entry.collective.end();
  char* at = append(entry.collective.begin(), end, what.kind);
  if (!what.group.empty()) {
    append(append(at, end, " of "), end, what.group);
  }
  entry.unit = {};
  append(entry.unit.begin(), entry.unit.end(), unit_of(what.purpose, entry.unit.size()));
  if (shown_ == 0) {
    show(entry);
  }
  return entry.ticket;
}

void CollectiveBoard::end(uint64_t ticket) {
  if (page_ == nullptr || ticket == 0) {
    return;
  }
  std::lock_guard lock(mu_);
  add_one(page_->collectives_ended, std::memory_order_relaxed);
  if (ticket == kUnkept) {
    return;
  }
  entry_of(ticket).ticket = 0;
  if (ticket == shown_) {
    show_next();
  }
}

void CollectiveBoard::show(const Entry& entry) {
  shown_ = entry.ticket;
  add_one(page_->text_lock, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  store_words(page_->collective, entry.collective.data());
  store_words(page_->unit, entry.unit.data());
  add_one(page_->text_lock, std::memory_order_release);
  page_->collective_bytes.store(entry.bytes, std::memory_order_relaxed);
  page_->collective_began_ns.store(entry.began_ns, std::memory_order_release);
}

void CollectiveBoard::show_next() {
  for (uint64_t ticket = shown_ + 1; ticket < next_ticket_; ++ticket) {
    if (entry_of(ticket).ticket == ticket) {
      show(entry_of(ticket));
      return;
    }
  }
  shown_ = 0;
  page_->collective_began_ns.store(0, std::memory_order_release);
}

CollectiveBoard& CollectiveBoard::of_process() {
  static CollectiveBoard& board = *new CollectiveBoard(own_vitals());
  return board;
}

OpenCollective::OpenCollective(const CollectiveBoard::What& what)
    : ticket_(CollectiveBoard::of_process().begin(what)), trace_id_(begin_in_trace(what)) {}

void OpenCollective::end() {
  if (const uint64_t id = trace_id_.exchange(0, std::memory_order_relaxed); id != 0) {
    trace::add({.kind = trace::Event::Kind::kEnd,
                .category = kTraced,
                .at_ns = trace::now_ns(),
                .id = id});
  }
  if (const uint64_t ticket = ticket_.exchange(0, std::memory_order_relaxed); ticket != 0) {
    CollectiveBoard::of_process().end(ticket);
  }
}

HostWait::HostWait() {
  if (waits_of_thread++ == 0) {
    began_ns_ = vitals_now_ns();
  }
}

HostWait::~HostWait() {
  if (--waits_of_thread == 0) {
    waited_ns.fetch_add(vitals_now_ns() - began_ns_, std::memory_order_relaxed);
  }
}

UncountedWaits::UncountedWaits() { ++waits_of_thread; }
UncountedWaits::~UncountedWaits() { --waits_of_thread; }

std::chrono::nanoseconds collective_wait_time() {
  return std::chrono::nanoseconds(waited_ns.load(std::memory_order_relaxed));
}

std::string group_text(const std::vector<int64_t>& world_ranks) {
  constexpr size_t kRoom = 60;
  std::string text;
  for (size_t i = 0; i < world_ranks.size();) {
    size_t last = i;
    while (last + 1 < world_ranks.size() && world_ranks[last + 1] == world_ranks[last] + 1) {
      ++last;
    }
    const std::string part =
        std::to_string(world_ranks[i]) +
        (last == i ? "" : (last == i + 1 ? ", " : "-") + std::to_string(world_ranks[last]));
    if (text.size() + part.size() > kRoom) {
      return text + ", ...";
    }
    text += (text.empty() ? (world_ranks.size() == 1 ? "rank " : "ranks ") : ", ") + part;
    i = last + 1;
  }
  return text;
}

}  // namespace fsdp
