#include "worker/metrics/progress.h"

#include <cmath>
#include <cstdio>
#include <utility>

namespace fsdprun::worker {
namespace {

constexpr auto kRedrawInterval = std::chrono::milliseconds(100);
constexpr double kEtaWeight = 0.1;

template <class... Args>
std::string Format(const char* format, Args... args) {
  char text[256];
  std::snprintf(text, sizeof text, format, args...);
  return text;
}

std::string FormatMemory(int64_t bytes) {
  const double mib = static_cast<double>(bytes) / (1 << 20);
  return mib >= 10240 ? Format("%.1f GiB", mib / 1024) : Format("%.0f MiB", mib);
}

}  // namespace

std::string FormatRate(double per_second) {
  if (per_second >= 1e6) {
    return Format("%.2fM", per_second / 1e6);
  }
  return per_second >= 1e4 ? Format("%.1fk", per_second / 1e3) : Format("%.0f", per_second);
}

std::string FormatDuration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) {
    return "-";
  }
  const auto whole = std::llround(seconds);
  if (whole < 60) {
    return Format("%llds", whole);
  }
  if (whole < 3600) {
    return Format("%lldm%02llds", whole / 60, whole % 60);
  }
  if (whole < 86400) {
    return Format("%lldh%02lldm", whole / 3600, whole / 60 % 60);
  }
  return Format("%lldd%02lldh", whole / 86400, whole / 3600 % 24);
}

std::string FormatProgress(const StepMetrics& m, double eta_seconds) {
  return Format("loss %.4f grad %.3g lr %.2e ", double{m.loss}, double{m.grad_norm}, m.lr) +
         FormatRate(m.tokens_per_second) + " tok/s " +
         (m.mfu > 0 ? Format("%.0f%% MFU ", 100 * m.mfu) : std::string()) +
         FormatMemory(m.memory_bytes) + " ETA " + FormatDuration(eta_seconds);
}

void EtaEstimate::Record(double step_seconds) {
  mean_ = mean_ == 0 ? step_seconds : mean_ + kEtaWeight * (step_seconds - mean_);
}

Progress::Progress(ProgressView view, int64_t total_steps, int64_t every_steps,
                   ControlChannel& channel, std::function<Clock::time_point()> now)
    : view_(view),
      total_steps_(total_steps),
      every_steps_(every_steps),
      channel_(channel),
      now_(std::move(now)) {}

Progress::~Progress() {
  if (has_open_line_) {
    std::fputc('\n', stdout);
    std::fflush(stdout);
  }
}

void Progress::Step(const StepMetrics& metrics) {
  if (view_ == ProgressView::kNone) {
    return;
  }
  eta_.Record(metrics.step_seconds);
  const std::string text = FormatProgress(metrics, eta_.SecondsFor(total_steps_ - metrics.step));
  const std::string line =
      "step " + std::to_string(metrics.step) + "/" + std::to_string(total_steps_) + " " + text;
  const bool is_last = metrics.step == total_steps_;
  if (view_ == ProgressView::kPlain && every_steps_ > 0 &&
      (metrics.step % every_steps_ == 0 || is_last)) {
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
  }
  const Clock::time_point now = now_();
  if (!is_last && now - last_shown_ < kRedrawInterval) {
    return;
  }
  last_shown_ = now;
  channel_.SendProgress(metrics.step, total_steps_, text);
  if (view_ == ProgressView::kTerminal) {
    Redraw(line);
  }
}

void Progress::Evaluation(int64_t step, double loss) {
  Event("eval after step " + std::to_string(step) + ": loss " + Format("%.4f", loss));
}

void Progress::Event(const std::string& text) {
  if (view_ == ProgressView::kNone) {
    return;
  }
  std::printf("%s%s\n", has_open_line_ ? "\r\033[K" : "", text.c_str());
  std::fflush(stdout);
  has_open_line_ = false;
}

void Progress::Redraw(const std::string& line) {
  // A terminal that is too narrow cuts the line instead of wrapping it.
  std::printf("\r\033[K\033[?7l%s\033[?7h", line.c_str());
  std::fflush(stdout);
  has_open_line_ = true;
}

}  // namespace fsdprun::worker
