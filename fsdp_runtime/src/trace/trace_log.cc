#include "fsdp_runtime/src/trace/trace_log.h"

#include <unistd.h>

#include <mutex>
#include <utility>

#include "fsdp_runtime/vitals/own_vitals.h"

namespace fsdp::trace {
namespace detail {

std::atomic<bool> is_recording{false};

}  // namespace detail

namespace {

struct Log {
  std::mutex mu;
  Recording recording;  // guarded by mu, as is all below
  size_t max_events = 0;
};

/// Never destroyed: threads may add to it while the process ends.
Log& log_of_process() {
  static Log& log = *new Log;
  return log;
}

std::atomic<uint64_t> last_id{0};

int own_thread() {
  thread_local const int thread = static_cast<int>(::gettid());
  return thread;
}

}  // namespace

bool begin_recording(size_t max_events) {
  Log& log = log_of_process();
  std::lock_guard lock(log.mu);
  if (is_on()) {
    return false;
  }
  log.recording = {};
  log.max_events = max_events;
  detail::is_recording.store(true, std::memory_order_relaxed);
  return true;
}

Recording end_recording() {
  Log& log = log_of_process();
  std::lock_guard lock(log.mu);
  detail::is_recording.store(false, std::memory_order_relaxed);
  return std::exchange(log.recording, {});
}

void add(Event event) {
  if (!is_on()) {
    return;
  }
  event.thread = own_thread();
  Log& log = log_of_process();
  std::lock_guard lock(log.mu);
  if (!is_on()) {
    return;  // it has ended meanwhile
  }
  if (log.recording.events.size() >= log.max_events) {
    ++log.recording.dropped;
    return;
  }
  log.recording.events.push_back(std::move(event));
}

uint64_t next_id() { return last_id.fetch_add(1, std::memory_order_relaxed) + 1; }

uint64_t now_ns() { return vitals_now_ns(); }

Span::Span(const char* category, const char* what, std::string_view of) {
  if (!is_on()) {
    return;
  }
  event_.category = category;
  event_.name = what;
  if (!of.empty()) {
    event_.name.append(" ").append(of);
  }
  event_.at_ns = now_ns();
}

Span::~Span() {
  if (event_.at_ns != 0) {
    event_.length_ns = now_ns() - event_.at_ns;
    add(std::move(event_));
  }
}

}  // namespace fsdp::trace
