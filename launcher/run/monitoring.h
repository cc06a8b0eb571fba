#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "agent/local/file_timer.h"
#include "agent/local/local_agent.h"
#include "base/event_loop.h"
#include "base/mono_time.h"
#include "launcher/cli/command_line.h"
#include "launcher/coordinator/job_machine.h"
#include "launcher/run/health_port.h"

namespace fsdprun {

/// When a worker of this node last showed progress: with a record on its control socket, or with a
/// request to the watchdog. Thread: loop thread only.
class ProgressSigns {
 public:
  void On(const node::Event& event);
  void OnTimerRequest() { Note(); }

  /// Since the last sign, or since the workers' start without one.
  Duration age() const { return MonoNow() - last_; }
  /// Of the workers that run now.
  bool any() const { return any_; }

 private:
  void Note() {
    last_ = MonoNow();
    any_ = true;
  }

  MonoTime last_ = MonoNow();
  bool any_ = false;
};

/// torchrun's watchdog, with TORCHELASTIC_ENABLE_FILE_TIMER=1; else null. The FIFO is
/// TORCHELASTIC_TIMER_FILE, or a private one if that is not set or another launcher has it (of
/// which this one may be a worker). Errors: as FileTimer::Open.
absl::StatusOr<std::unique_ptr<FileTimer>> OpenFileTimer(EventLoop& loop,
                                                         const Environment& environment);

/// The port of TORCHELASTIC_HEALTH_CHECK_PORT; null if that is not set, or cannot be used, which is
/// warned about: the variable may come with an image, for several jobs of one machine.
std::unique_ptr<HealthPort> OpenHealthPort(EventLoop& loop, const Environment& environment,
                                           HealthSources sources);

/// What the port says of an agent; null: there is none yet. `end`: why it has ended, if it has.
HealthReport DescribeHealth(const LocalAgent* agent, const std::optional<std::string>& end,
                            const ProgressSigns& signs);

/// What the port says of a coordinator without an agent beside it.
HealthReport DescribeHealth(const JobMachine& job);

/// Whether events go to the console: LOGLEVEL may mute them, as in torchrun.
bool ShowsEvents(const LaunchPlan& plan, const Environment& environment);

}  // namespace fsdprun
