#include "worker/metrics/run_report.h"

#include <cstdio>
#include <utility>

#include "formats/checkpoint/file_system.h"
#include "worker/metrics/jsonl_sink.h"
#include "worker/metrics/tensorboard_sink.h"

namespace fsdprun::worker {
namespace {

constexpr size_t kPlotWidth = 76;

}  // namespace

RunReport::RunReport(RunReportOptions options, ControlChannel& channel)
    : options_(std::move(options)),
      progress_(options_.view, options_.total_steps, options_.every_steps, channel) {}

void RunReport::OpenMetrics(RunStart start) {
  if (!options_.is_first_rank) {
    return;
  }
  began_at_ = std::chrono::steady_clock::now();
  const RecordedSteps steps{options_.every_steps, options_.total_steps};
  outputs_.push_back(
      {std::make_unique<JsonlSink>(options_.metrics_path, options_.checkpoint_dir, steps),
       /*is_essential=*/true});
  if (!options_.tensorboard_dir.empty()) {
    outputs_.push_back({std::make_unique<TensorBoardSink>(
        options_.tensorboard_dir, "```json\n" + options_.configuration + "\n```\n", steps)});
  }
  start_ = std::move(start);
  last_step_ = start_.completed_steps;
  Record(start_.completed_steps, [&](MetricSink& sink) { sink.Begin(start_); });
}

void RunReport::GoBackTo(int64_t step, int64_t tokens) {
  summary_.GoBackTo(step, tokens);
  start_.completed_steps = last_step_ = step;
  Record(step, [&](MetricSink& sink) { sink.Begin(start_); });
}

void RunReport::Step(StepMetrics metrics) {
  if (!options_.is_first_rank) {
    return;
  }
  metrics.flops_per_second = options_.flops_per_token * metrics.tokens_per_second;
  metrics.mfu = peak_flops_ > 0 ? metrics.flops_per_second / peak_flops_ : 0;
  summary_.Step(metrics);
  last_step_ = metrics.step;
  Record(metrics.step, [&](MetricSink& sink) { sink.Step(metrics); });
  progress_.Step(metrics);
}

void RunReport::Evaluation(int64_t step, double loss) {
  summary_.Evaluation(step, loss);
  Record(step, [&](MetricSink& sink) { sink.Evaluation(step, loss); });
  progress_.Evaluation(step, loss);
}

void RunReport::Checkpoint(const std::string& path) {
  summary_.Checkpoint(path);
  Event("checkpoint " + path);
}

void RunReport::End() {
  if (!options_.is_first_rank) {
    return;
  }
  EndOutputs();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began_at_;
  std::string text = summary_.Text(took.count());
  if (options_.view == ProgressView::kTerminal || options_.view == ProgressView::kPlain) {
    text +=
        summary_.Plot(kPlotWidth, options_.is_unicode && options_.view == ProgressView::kTerminal);
  }
  if (!text.empty()) {
    text.pop_back();  // the end of the line, which Event adds
    Event("summary\n" + text);
  }
}

void RunReport::EndOutputs() {
  for (Output& output : outputs_) {
    try {
      output.sink->End();
    } catch (const MetricsError& error) {
      FaultNotice last;
      Warn(last, last_step_, std::string(error.what()) + "; the last records are lost");
    }
  }
  outputs_.clear();
}

void RunReport::Record(int64_t step, const Action& action) {
  for (size_t i = 0; i < outputs_.size(); ++i) {
    if (!RecordIn(outputs_[i], step, action)) {
      outputs_.clear();
    }
  }
}

bool RunReport::RecordIn(Output& output, int64_t step, const Action& action) {
  try {
    action(*output.sink);
  } catch (const MetricsReplacedError& error) {
    FaultNotice last;  // told in any case, and once
    Warn(last, step, std::string(error.what()) + "; no more metrics are written");
    return false;
  } catch (const MetricsError& error) {
    if (output.is_essential && !checkpoint::MayPass(error.error_number())) {
      throw;
    }
    Warn(output.notice, step,
         std::string(error.what()) + "; training goes on and tries again at the next record");
  }
  return true;
}

void RunReport::Warn(FaultNotice& notice, int64_t step, const std::string& text) {
  const auto line =
      options_.is_first_rank ? notice.Tell(text, std::chrono::steady_clock::now()) : std::nullopt;
  if (!line) {
    return;
  }
  std::fprintf(stderr, "warning: %s\n", line->c_str());
  for (Output& output : outputs_) {
    try {
      output.sink->Warning(step, *line);
    } catch (const MetricsError&) {
      // It was told; the next record tells what is wrong with the file.
    }
  }
}

}  // namespace fsdprun::worker
