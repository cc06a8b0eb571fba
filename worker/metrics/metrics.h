#pragma once

#include <cstdint>
#include <functional>
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
  /// Of it, how long rank 0 has waited for its batches.
  double data_wait_seconds = 0;
  /// Of the whole job, by ModelFlopsPerToken(); 0: not known.
  double flops_per_second = 0;
  /// That as a part of what the devices could do at most; 0: not known.
  double mfu = 0;
  /// Peak memory of rank 0: allocated on the GPU, else resident.
  int64_t memory_bytes = 0;
  /// It was a bad step, and no weight was updated.
  bool is_skipped = false;
};

/// One JSON record without newline. Floating point numbers have 17 significant digits, so they read
/// back exactly.
std::string FormatStepRecord(const StepMetrics& metrics);
std::string FormatEvalRecord(int64_t step, double loss);
/// Of something that went wrong and did not end the run.
std::string FormatWarningRecord(int64_t step, const std::string& warning);

/// Who writes a record; part of each, unless `run` is empty.
struct MetricsOrigin {
  std::string run;     // as in checkpoint::State
  std::string launch;  // FSDPRUN_JOB_ID
  uint64_t generation = 0;
};

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

/// This process has been replaced: another one writes the file now.
class MetricsReplacedError : public MetricsError {
 public:
  using MetricsError::MetricsError;
};

// Note [One file per opening]
// Whoever opens the log of a run puts a new file in the place of the old one, with the records that
// it keeps. A process that was replaced and still runs holds the old file, so nothing that it
// writes can come between its successor's records; and it can see that its file has lost its name.
// What is not kept is cut only if the same run will write it anew; else the old file keeps all its
// records under another name. A process that was replaced before it has opened the log must not put
// a file in the place of its successor's: records of a newer generation of its launch tell it so,
// and of another launch, whose records look like those of an earlier one, checkpoint.dir's claim,
// which the trainer looks at.

/// The JSON lines file of a run. Records are appended with one write each; a reader sees whole
/// lines.
class MetricsLog {
 public:
  /// Opens `path` (empty: every call does nothing) for a run that continues after
  /// `completed_steps`, 0: that begins. Keeps the leading records up to that step, if they are of
  /// the same run or do not tell theirs. Removes the run's records of later steps, which were done
  /// after the last checkpoint, and an incomplete last line. If there is more, the earlier file is
  /// kept as the first free name of `path`.1, `path`.2 and so on. What is no regular file, and what
  /// is below /dev or /proc, is only appended to. Errors: MetricsError; also for a non-empty file
  /// that is not a metrics file, which is not modified.
  MetricsLog(const std::string& path, int64_t completed_steps, MetricsOrigin origin = {});
  /// The same, but Open() or the first Append opens it.
  struct Later {};
  MetricsLog(Later later, std::string path, int64_t completed_steps, MetricsOrigin origin);
  ~MetricsLog();
  MetricsLog(const MetricsLog&) = delete;
  MetricsLog& operator=(const MetricsLog&) = delete;

  /// Does nothing if it is open. Errors: as the constructor's, and the next call may succeed.
  /// MetricsReplacedError: another process has opened it since the first call, or a newer
  /// generation of this launch at any time, and no later one will; or `is_replaced` says so, which
  /// is asked right before the file is changed: this process may have been stopped since it knew
  /// better.
  void Open(const std::function<bool()>& is_replaced = nullptr);
  bool is_open() const { return is_open_; }

  /// Errors: MetricsError; the next call may succeed, and the file has only whole records.
  /// MetricsReplacedError: no later call will. A file that was removed is made anew.
  void Append(const std::string& record);

  /// Opens and closes `path` without changing its content, to detect an invalid path before the job
  /// is formed. Errors: as the constructor's.
  static void CheckWritable(const std::string& path);

 private:
  void OpenEarlier();
  void RequireOwnFile();

  std::string path_;  // of the file itself, not of a link to it
  int64_t completed_steps_;
  std::string run_;
  std::string launch_;
  uint64_t generation_;
  int fd_ = -1;  // the earlier file until is_open_
  bool is_open_ = false;
  bool is_file_ = false;  // as Note [One file per opening]
  std::string origin_;    // of the records, as their end
};

/// What a run at `completed_steps` does with the records of an earlier opening. Pure.
struct MetricsCut {
  std::string kept;
  bool loses_others = false;  // the rest is not only of steps that the run will do again
};
MetricsCut CutRecords(const std::string& content, int64_t completed_steps, const std::string& run);

/// Whether a newer generation of the launch (empty: unknown) has written a record of it. Pure.
bool IsOfSuccessor(const std::string& content, const std::string& launch, uint64_t generation);

}  // namespace fsdprun::worker
