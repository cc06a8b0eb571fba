#include "worker/metrics/jsonl_sink.h"

#include <utility>

namespace fsdprun::worker {

JsonlSink::JsonlSink(std::string path, std::string checkpoint_dir, RecordedSteps steps)
    : path_(std::move(path)), checkpoint_dir_(std::move(checkpoint_dir)), steps_(steps) {}

void JsonlSink::Begin(const RunStart& start) {
  is_replaced_ = start.is_replaced;
  log_ =
      std::make_unique<MetricsLog>(MetricsLog::Later{}, path_, start.completed_steps, start.origin);
  Open();
}

void JsonlSink::Step(const StepMetrics& metrics) {
  if (steps_.Has(metrics.step)) {
    Record(FormatStepRecord(metrics));
  }
}

void JsonlSink::Evaluation(int64_t step, double loss) { Record(FormatEvalRecord(step, loss)); }

void JsonlSink::Warning(int64_t step, const std::string& text) {
  Record(FormatWarningRecord(step, text));
}

void JsonlSink::Open() {
  if (!log_->is_open() && is_replaced_ && is_replaced_()) {
    throw MetricsReplacedError("metrics file " + path_ +
                                   " is left alone, because another start has taken over " +
                                   checkpoint_dir_,
                               0);
  }
  log_->Open(is_replaced_);
}

void JsonlSink::Record(const std::string& record) {
  if (log_) {
    Open();
    log_->Append(record);
  }
}

}  // namespace fsdprun::worker
