#include "fsdp_runtime/src/trace/trace_file.h"

#include <c10/util/Exception.h>
#include <fsdp/trace.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "fsdp_runtime/src/state_dict/new_file.h"
#include "fsdp_runtime/src/trace/chrome_trace.h"
#include "fsdp_runtime/src/trace/trace_log.h"

namespace fsdp {
namespace {

struct RunningTrace {
  std::mutex mu;
  TraceOptions options;  // guarded by mu
};

RunningTrace& running_trace() {
  static RunningTrace& running = *new RunningTrace;
  return running;
}

int64_t rank_of_environment() {
  const char* rank = std::getenv("RANK");
  return rank == nullptr ? 0 : std::strtoll(rank, nullptr, 10);
}

int64_t clock_ns(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

/// Those that are still there; a thread that has ended has no name.
std::map<int, std::string> thread_names(const trace::Recording& recording) {
  std::set<int> threads;
  for (const trace::Event& event : recording.events) {
    threads.insert(event.thread);
  }
  std::map<int, std::string> names;
  for (const int thread : threads) {
    std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/comm");
    std::string name;
    if (std::getline(file, name)) {
      names[thread] = thread == ::getpid() ? "main: " + name : name;
    }
  }
  return names;
}

trace::Subject subject_of(const trace::Recording& recording, int64_t rank) {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return {rank, ::getpid(), host.data(), thread_names(recording),
          clock_ns(CLOCK_REALTIME) - clock_ns(CLOCK_MONOTONIC)};
}

void write_trace(const trace::Recording& recording, const TraceOptions& options) {
  constexpr size_t kPiece = size_t{1} << 20;
  NewFile file(options.path);
  std::string piece;
  trace::write_chrome_trace(recording, subject_of(recording, options.rank.value_or(0)),
                            [&](std::string_view text) {
                              piece.append(text);
                              if (piece.size() >= kPiece) {
                                file.write(piece.data(), piece.size());
                                piece.clear();
                              }
                            });
  file.write(piece.data(), piece.size());
  file.publish();
}

/// When the process ends, which nobody can be told of in another way.
void stop_and_say() noexcept {
  try {
    stop_trace();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fsdp: the trace is lost: %s\n", error.what());
  }
}

/// Nothing if there is none; else, and nothing is done, where the one that runs will be written to.
std::optional<std::string> start_unless_running(const TraceOptions& options) {
  RunningTrace& running = running_trace();
  std::lock_guard lock(running.mu);
  if (!trace::begin_recording(options.max_events)) {
    return running.options.path;
  }
  running.options = options;
  running.options.rank = options.rank.value_or(rank_of_environment());
  return std::nullopt;
}

}  // namespace

void start_trace(const TraceOptions& options) {
  TORCH_CHECK(!options.path.empty(), "start_trace: give the path of the file to be written");
  const std::optional<std::string> other = start_unless_running(options);
  TORCH_CHECK(!other, "start_trace: a trace is running, which will be written to ",
              other.value_or(""), "; call stop_trace() first");
}

void stop_trace() {
  RunningTrace& running = running_trace();
  std::lock_guard lock(running.mu);
  if (trace::is_on()) {
    write_trace(trace::end_recording(), running.options);
  }
}

struct TraceRange::Open {
  explicit Open(const std::string& name) : span("user", name.c_str(), {}) {}
  trace::Span span;
};

TraceRange::TraceRange(const std::string& name) {
  if (trace::is_on()) {
    open_ = std::make_unique<Open>(name);
  }
}

TraceRange::~TraceRange() = default;

namespace trace {

void start_from_environment(int64_t rank) {
  const char* folder = std::getenv("FSDP_TRACE_DIR");
  if (folder == nullptr || *folder == '\0' || is_on()) {
    return;
  }
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  TORCH_CHECK(!error, "FSDP_TRACE_DIR: cannot make the folder ", folder, ": ", error.message());
  // Ranks may be threads: the first of them is the process's.
  start_unless_running(
      {.path = std::string(folder) + "/rank-" + std::to_string(rank) + ".json", .rank = rank});
  static const bool will_be_written = [] { return std::atexit(stop_and_say) == 0; }();
  TORCH_CHECK(will_be_written, "FSDP_TRACE_DIR: no room for another function at the process' end");
}

}  // namespace trace

}  // namespace fsdp
