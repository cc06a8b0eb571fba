#include "worker/run/step_trace.h"

#include <c10/util/Exception.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <vector>

#include "worker/metrics/merged_trace.h"

namespace fsdprun::worker {
namespace {

constexpr size_t kMaxFileBytes = size_t{1} << 30;

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
void WriteWhole(const std::filesystem::path& path, const std::string& text) {
  const std::filesystem::path temporary = path.string() + ".tmp";
  std::ofstream file(temporary, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (!file) {
    throw std::system_error(std::make_error_code(std::errc::io_error), temporary.string());
  }
  std::filesystem::rename(temporary, path);
}

}  // namespace

StepTrace::StepTrace(const RunContext& context)
    : context_(context), is_wanted_(!context.config.metrics.trace_dir.empty()) {}

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
  const TrainConfig::Metrics& metrics = context_.config.metrics;
  if (is_wanted_ && !is_on_ && step >= metrics.trace_first && step <= metrics.trace_last) {
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
  if (!is_on_) {
    return;
  }
  phase_range_.reset();
  step_range_.reset();
  if (step_ >= context_.config.metrics.trace_last) {
    Stop();
  }
}

void StepTrace::End() {
  if (is_on_) {
    Stop();
  }
}

void StepTrace::Stop() {
  is_on_ = false;
  is_wanted_ = false;
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
    try {
      Merge();
    } catch (const std::exception& error) {
      Warn(std::string("no timeline of all ranks: ") + error.what());
    }
  }
}

void StepTrace::Merge() {
  std::vector<Json> timelines;
  std::string missing;
  for (int64_t rank = 0; rank < context_.world.size(); ++rank) {
    if (std::filesystem::exists(FileOf(rank))) {
      timelines.push_back(
          ParseStrictJson(ReadSmallFile(FileOf(rank), kMaxFileBytes), FileOf(rank)));
    } else {
      missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
    }
  }
  if (timelines.empty()) {
    return;  // each rank has told why
  }
  const std::string path = context_.config.metrics.trace_dir + "/trace.json";
  WriteWhole(path, MergeTraces(timelines).dump());
  context_.report.Event("timeline " + path);
  if (!missing.empty()) {
    Warn("timeline " + path + " lacks the ranks " + missing +
         ", whose files are not in metrics.trace_dir here; is it a directory of each machine's "
         "own?");
  }
}

}  // namespace fsdprun::worker
