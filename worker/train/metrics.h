#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace fsdprun::worker {

/// The metrics of one optimizer step.
struct StepMetrics {
  /// Number of completed steps, including this one.
  int64_t step = 0;
  /// Mean over all samples of the step on all ranks.
  float loss = 0;
  /// Global 2-norm of the gradient before clipping.
  float grad_norm = 0;
  double lr = 0;
  /// Tokens of the whole job since its first step.
  int64_t tokens = 0;
  double tokens_per_second = 0;
  double step_seconds = 0;
  /// Peak memory of rank 0: allocated on the GPU, else resident.
  int64_t memory_bytes = 0;
};

/// One JSON record without newline. Floating point numbers have 17 significant digits, so they read
/// back exactly.
std::string FormatStepRecord(const StepMetrics& metrics);
std::string FormatEvalRecord(int64_t step, double loss);

/// One line that names the metrics file, the cause and the remedy.
class MetricsError : public std::runtime_error {
 public:
  MetricsError(const std::string& message, int error_number)
      : std::runtime_error(message), error_number_(error_number) {}

  /// The errno of the call that failed; 0: it was no system call.
  int error_number() const { return error_number_; }

 private:
  int error_number_;
};

/// The JSON lines file of a run. Records are appended with one write each; a reader sees whole
/// lines.
class MetricsLog {
 public:
  /// Opens `path` (empty: every call does nothing) for a run that continues after
  /// `completed_steps`: records of later steps, which were done after the last checkpoint, and an
  /// incomplete last line are removed; 0 starts the file anew, and an earlier one is moved to the
  /// first free name of `path`.1, `path`.2 and so on. Errors: MetricsError; also for a
  /// non-empty file that is not a metrics file, which is not modified.
  MetricsLog(const std::string& path, int64_t completed_steps);
  ~MetricsLog();
  MetricsLog(const MetricsLog&) = delete;
  MetricsLog& operator=(const MetricsLog&) = delete;

  void Append(const std::string& record);

  /// Opens and closes `path` without changing its content, to detect an invalid path before the job
  /// is formed. Errors: as the constructor's.
  static void CheckWritable(const std::string& path);

 private:
  std::string path_;
  int fd_ = -1;
};

/// The part of a metrics file that a run at `completed_steps` keeps: its leading whole lines whose
/// "step" is at most that. Pure.
std::string KeptRecords(const std::string& content, int64_t completed_steps);

}  // namespace fsdprun::worker
