#include "worker/metrics/run_report.h"

#include <chrono>
#include <cstdio>
#include <utility>

#include "formats/checkpoint/file_system.h"

namespace fsdprun::worker {

RunReport::RunReport(RunReportOptions options, ControlChannel& channel)
    : options_(std::move(options)),
      progress_(options_.view, options_.total_steps, options_.every_steps, channel) {}

void RunReport::OpenMetrics(int64_t completed_steps, MetricsOrigin origin,
                            std::function<bool()> is_replaced) {
  if (!options_.is_first_rank) {
    return;
  }
  is_replaced_ = std::move(is_replaced);
  metrics_ = std::make_unique<MetricsLog>(MetricsLog::Later{}, options_.metrics_path,
                                          completed_steps, std::move(origin));
  Record(completed_steps, "");
}

void RunReport::Step(const StepMetrics& metrics) {
  if (!options_.is_first_rank) {
    return;
  }
  const int64_t every = options_.every_steps;
  if (every > 0 && (metrics.step % every == 0 || metrics.step == options_.total_steps)) {
    Record(metrics.step, FormatStepRecord(metrics));
  }
  progress_.Step(metrics);
}

void RunReport::Evaluation(int64_t step, double loss) {
  Record(step, FormatEvalRecord(step, loss));
  char text[64];
  std::snprintf(text, sizeof text, "%.4f", loss);
  Event("eval after step " + std::to_string(step) + ": loss " + text);
}

void RunReport::Open() {
  if (!metrics_->is_open() && is_replaced_()) {
    throw MetricsReplacedError("metrics file " + options_.metrics_path +
                                   " is left alone, because another start has taken over " +
                                   options_.checkpoint_dir,
                               0);
  }
  metrics_->Open(is_replaced_);
}

void RunReport::Record(int64_t step, const std::string& record) {
  if (!metrics_) {
    return;
  }
  try {
    Open();
    if (!record.empty()) {
      metrics_->Append(record);
    }
  } catch (const MetricsReplacedError& error) {
    metrics_.reset();
    FaultNotice last;  // told in any case, and once
    Warn(last, step, std::string(error.what()) + "; no more metrics are written");
  } catch (const MetricsError& error) {
    if (!checkpoint::MayPass(error.error_number())) {
      throw;
    }
    Warn(metrics_notice_, step,
         std::string(error.what()) + "; training goes on and tries again at the next record");
  }
}

void RunReport::Warn(FaultNotice& notice, int64_t step, const std::string& text) {
  const auto line =
      options_.is_first_rank ? notice.Tell(text, std::chrono::steady_clock::now()) : std::nullopt;
  if (!line) {
    return;
  }
  std::fprintf(stderr, "warning: %s\n", line->c_str());
  try {
    if (metrics_) {
      Open();
      metrics_->Append(FormatWarningRecord(step, *line));
    }
  } catch (const MetricsError&) {
    // It was told; the next record tells what is wrong with the file.
  }
}

}  // namespace fsdprun::worker
