#include "worker/run/step_trace.h"

#include <c10/util/Exception.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "worker/run/stop_signal.h"

namespace fsdprun::worker {
namespace {

// How long a stop waits for this rank's file to be written; see StopSignal.
constexpr auto kWriteTimeout = std::chrono::seconds(30);

const char* NameOf(contract::WorkerPhase phase) {
  switch (phase) {
    case contract::WorkerPhase::kWaitingForData:
      return "data";
    case contract::WorkerPhase::kForward:
      return "forward";
    case contract::WorkerPhase::kBackward:
      return "backward";
    case contract::WorkerPhase::kOptimizer:
      return "optimizer";
    case contract::WorkerPhase::kEvaluating:
      return "evaluation";
    case contract::WorkerPhase::kSaving:
      return "saving";
    default:
      return "other";
  }
}

/// Under a temporary name first, so that nobody reads a part of it. Throws what says why not.
void WriteWhole(const std::filesystem::path& path,
                const std::function<void(std::ostream&)>& write) {
  const std::filesystem::path temporary = path.string() + ".tmp";
  std::ofstream file(temporary, std::ios::binary | std::ios::trunc);
  write(file);
  file.close();
  if (!file) {
    throw std::system_error(std::make_error_code(std::errc::io_error), temporary.string());
  }
  std::filesystem::rename(temporary, path);
}

int64_t SizeOf(const std::vector<std::filesystem::path>& files) {
  int64_t bytes = 0;
  for (const std::filesystem::path& file : files) {
    bytes += static_cast<int64_t>(std::filesystem::file_size(file));
  }
  return bytes;
}

}  // namespace

StepTrace::StepTrace(const RunContext& context, Merge merge, Limits limits)
    : context_(context),
      merge_(std::move(merge)),
      limits_(limits),
      is_wanted_(!context.config.metrics.trace_dir.empty()) {}

StepTrace::~StepTrace() { context_.vitals.SetObserver(nullptr); }

std::string StepTrace::FileOf(int64_t rank) const {
  return context_.config.metrics.trace_dir + "/rank-" + std::to_string(rank) + ".json";
}

void StepTrace::Warn(const std::string& text) {
  // Also of other ranks, which have no metrics to be warned in.
  if (context_.world.rank() == 0) {
    context_.report.Warn(notice_, step_, text);
  } else {
    std::fprintf(stderr, "warning: %s\n", text.c_str());
  }
}

void StepTrace::BeginStep(int64_t step) {
  step_ = step;
  first_step_ = first_step_.value_or(step);
  if (is_wanted_ && !is_on_ && step - *first_step_ + 1 >= context_.config.metrics.trace_first) {
    Start();
  }
  if (is_on_) {
    step_range_.emplace("step " + std::to_string(step));
  }
}

void StepTrace::Start() {
  is_on_ = true;
  const int64_t rank = context_.world.rank();
  try {
    std::filesystem::create_directories(context_.config.metrics.trace_dir);
    std::filesystem::remove(FileOf(rank));
    fsdp::start_trace({.path = FileOf(rank), .rank = rank});
  } catch (const c10::Error& error) {
    Warn(std::string("no timeline of this rank: ") + error.what_without_backtrace());
  } catch (const std::filesystem::filesystem_error& error) {
    Warn(std::string("no timeline of this rank: ") + error.what());
  }
  context_.world.group->barrier();
  {
    // All ranks come from the barrier before, so they enter this one together and leave it so.
    const fsdp::TraceRange mark(kClockMark);
    context_.world.group->barrier();
  }
  context_.vitals.SetObserver([this](contract::WorkerPhase phase) {
    phase_range_.reset();
    phase_range_.emplace(NameOf(phase));
  });
}

void StepTrace::EndStep() {
  if (merging_.valid() && merging_.wait_for(std::chrono::seconds(0)) == std::future_status::ready) {
    TellMerge();
  }
  if (!is_on_) {
    return;
  }
  phase_range_.reset();
  step_range_.reset();
  if (step_ - *first_step_ + 1 >= context_.config.metrics.trace_last) {
    Stop();
  }
}

void StepTrace::End() {
  if (is_on_) {
    Stop();
  }
  if (!merging_.valid()) {
    return;
  }
  if (merging_.wait_for(limits_.merge_max) == std::future_status::ready) {
    TellMerge();
  } else {
    Warn("no timeline of all ranks: the files of the ranks, which are in " +
         context_.config.metrics.trace_dir + ", were not put together in time");
  }
}

void StepTrace::Stop() {
  is_on_ = false;
  is_wanted_ = false;
  StopSignal::SetTimeout(kWriteTimeout);
  context_.vitals.SetObserver(nullptr);
  phase_range_.reset();
  step_range_.reset();
  try {
    fsdp::stop_trace();
  } catch (const c10::Error& error) {
    Warn(std::string("the timeline of this rank is lost: ") + error.what_without_backtrace());
  }
  context_.world.group->barrier();
  if (context_.world.rank() == 0) {
    BeginMerge();
  }
}

// Note [Timelines are merged aside]
// The ranks' files may be gigabytes, and meanwhile the other ranks, and whoever watches this one,
// wait for the next step. So a thread puts them together, as a stream. Nobody can end a write that
// hangs, so it is detached, and all that it uses is its own.
void StepTrace::BeginMerge() {
  std::vector<std::filesystem::path> files;
  std::string missing;
  for (int64_t rank = 0; rank < context_.world.size(); ++rank) {
    std::error_code unknown;
    if (std::filesystem::exists(FileOf(rank), unknown)) {
      files.emplace_back(FileOf(rank));
    } else {
      missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
    }
  }
  if (files.empty()) {
    return;  // each rank has told why
  }
  const std::string path = context_.config.metrics.trace_dir + "/trace.json";
  const std::string warning =
      missing.empty()
          ? ""
          : "timeline " + path + " lacks the ranks " + missing +
                ", whose files are not in metrics.trace_dir here; is it a directory of each "
                "machine's own?";
  std::packaged_task<Merged()> task([merge = merge_, limits = limits_, files, path, warning] {
    try {
      if (SizeOf(files) > limits.merged_bytes_max) {
        return Merged{"", "no timeline of all ranks: the files of the ranks are larger than " +
                              std::to_string(limits.merged_bytes_max >> 20) +
                              " MiB together; ask for fewer metrics.trace_steps"};
      }
      WriteWhole(path, [&](std::ostream& out) { merge(files, out); });
      return Merged{"timeline " + path, warning};
    } catch (const std::exception& error) {
      return Merged{"", std::string("no timeline of all ranks: ") + error.what()};
    }
  });
  merging_ = task.get_future();
  std::thread(std::move(task)).detach();
}

void StepTrace::TellMerge() {
  const Merged merged = merging_.get();
  if (!merged.event.empty()) {
    context_.report.Event(merged.event);
  }
  if (!merged.warning.empty()) {
    Warn(merged.warning);
  }
}

}  // namespace fsdprun::worker
