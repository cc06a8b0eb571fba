#pragma once

#include <fsdp/export.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::trace {

/// Something that libfsdp has done, or an amount that has changed.
struct Event {
  enum class Kind : uint8_t {
    kSpan,    // of one thread, on which spans lie within each other
    kBegin,   // of something that has no thread: its end has the same id
    kEnd,     // of that
    kAmount,  // `bytes` from now on
  };
  Kind kind = Kind::kSpan;
  const char* category = "";  // static: "unit", "collective", "wait", "memory", "user"
  std::string name = {};
  std::string group = {};  // of a collective: CollectiveBoard::What::group
  uint64_t at_ns = 0;      // CLOCK_MONOTONIC
  uint64_t length_ns = 0;  // of a span
  uint64_t id = 0;
  uint64_t bytes = 0;
  int thread = 0;
};

/// What has been recorded, and how much there was no room for.
struct Recording {
  std::vector<Event> events;
  uint64_t dropped = 0;
};

namespace detail {
FSDP_API extern std::atomic<bool> is_recording;
}  // namespace detail

/// Whether add() keeps anything: all that whoever is not traced pays for it. Thread: any, as for
/// all here.
inline bool is_on() { return detail::is_recording.load(std::memory_order_relaxed); }

/// From now on events are kept, up to so many; those that come first, so that what is lost is the
/// end. False if they are already.
FSDP_API bool begin_recording(size_t max_events);
/// Ends that and returns what was kept; nothing if there was no beginning.
FSDP_API Recording end_recording();

/// Fills in the thread; no-op if nothing is recorded.
FSDP_API void add(Event event);
/// An id for a beginning and its end.
FSDP_API uint64_t next_id();
/// The clock of events.
FSDP_API uint64_t now_ns();

/// A span of the calling thread, from its construction to its destruction.
class FSDP_API Span {
 public:
  /// Called "`what` `of`"; `what` and `category` are static. Nothing unless recording.
  Span(const char* category, const char* what, std::string_view of);
  ~Span();
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  Event event_;  // at 0: it is not recorded
};

}  // namespace fsdp::trace
