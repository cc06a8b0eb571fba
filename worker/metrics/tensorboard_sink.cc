#include "worker/metrics/tensorboard_sink.h"

#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <string_view>
#include <utility>
#include <vector>

#include "worker/metrics/tensorboard_events.h"

namespace fsdprun::worker {
namespace {

double WallTime() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// Readers take the files of a folder in the order of their names.
std::string EventFileName() {
  static int count = 0;
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  // A run may be started twice in a second.
  std::array<char, 64> time{};
  std::snprintf(time.data(), time.size(), "%017.6f", WallTime());
  return std::string("events.out.tfevents.") + time.data() + "." + host.data() + "." +
         std::to_string(getpid()) + "." + std::to_string(count++);
}

std::vector<tensorboard::Scalar> ScalarsOf(const StepMetrics& metrics) {
  std::vector<tensorboard::Scalar> scalars = {
      {"train/loss", double{metrics.loss}},
      {"train/grad_norm", double{metrics.grad_norm}},
      {"train/lr", metrics.lr},
      {"train/tokens", static_cast<double>(metrics.tokens)},
      {"speed/tokens_per_second", metrics.tokens_per_second},
      {"speed/step_seconds", metrics.step_seconds},
      {"speed/data_wait_seconds", metrics.data_wait_seconds},
      {"memory/peak_bytes", static_cast<double>(metrics.memory_bytes)}};
  if (metrics.flops_per_second > 0) {
    scalars.push_back({"speed/flops_per_second", metrics.flops_per_second});
  }
  if (metrics.mfu > 0) {
    scalars.push_back({"speed/mfu", metrics.mfu});
  }
  return scalars;
}

}  // namespace

TensorBoardSink::TensorBoardSink(std::string folder, std::string markdown, RecordedSteps steps)
    : folder_(std::move(folder)), markdown_(std::move(markdown)), steps_(steps) {}

void TensorBoardSink::Begin(const RunStart& start) {
  if (start.is_replaced && start.is_replaced()) {
    throw MetricsReplacedError(
        "no TensorBoard file is written in " + folder_ + ", because another start has taken over",
        0);
  }
  const std::string path = folder_ + "/" + EventFileName();
  file_ = std::make_unique<BackgroundFile>(
      path,
      [file = std::make_shared<NewAppendedFile>(path)](std::string_view bytes) {
        return file->Write(bytes);
      },
      BackgroundFile::Limits{});
  const double now = WallTime();
  Add(tensorboard::VersionEvent(now));
  Add(tensorboard::StartEvent(now, start.completed_steps + 1));
  Add(tensorboard::MarkdownEvent(now, "config", markdown_));
}

void TensorBoardSink::Step(const StepMetrics& metrics) {
  if (steps_.Has(metrics.step)) {
    Add(tensorboard::ScalarsEvent(WallTime(), metrics.step, ScalarsOf(metrics)));
  }
}

void TensorBoardSink::Evaluation(int64_t step, double loss) {
  Add(tensorboard::ScalarsEvent(WallTime(), step, {{"eval/loss", loss}}));
}

void TensorBoardSink::End() {
  const std::unique_ptr<BackgroundFile> ended = std::exchange(file_, nullptr);
  if (const auto fault = ended ? ended->End() : std::nullopt) {
    throw MetricsError(*fault, 0);
  }
}

void TensorBoardSink::Add(const std::string& event) {
  if (!file_) {
    return;
  }
  file_->Add(tensorboard::Frame(event));
  if (const auto fault = file_->Fault(BackgroundFile::Clock::now())) {
    throw MetricsError(*fault, 0);
  }
}

}  // namespace fsdprun::worker
