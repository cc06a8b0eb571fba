#include "launcher/run/monitoring.h"

#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "launcher/directory/job_token.h"
#include "proto/worker_contract.h"

namespace fsdprun {
namespace {

constexpr char kHealthPortVariable[] = "TORCHELASTIC_HEALTH_CHECK_PORT";

/// Empty if it is not set.
std::string Get(const Environment& environment, const char* name) {
  const auto it = environment.find(name);
  return it == environment.end() ? "" : it->second;
}

std::string PrivateTimerFile(const Environment& environment) {
  const std::string folder = Get(environment, "TMPDIR");
  return absl::StrCat(folder.empty() ? "/tmp" : folder, "/watchdog_timer_", RandomHex(16));
}

}  // namespace

void ProgressSigns::On(const node::Event& event) {
  if (std::holds_alternative<node::WorkerProgress>(event)) {
    Note();
  } else if (std::holds_alternative<node::WorkersSpawned>(event)) {
    last_ = MonoNow();
    any_ = false;
  }
}

absl::StatusOr<std::unique_ptr<FileTimer>> OpenFileTimer(EventLoop& loop,
                                                         const Environment& environment) {
  if (Get(environment, "TORCHELASTIC_ENABLE_FILE_TIMER") != "1") {
    return nullptr;
  }
  const std::string path = Get(environment, contract::kEnvTimerFile);
  if (path.empty()) {
    return FileTimer::Open(loop, PrivateTimerFile(environment));
  }
  auto timer = FileTimer::Open(loop, path);
  if (!absl::IsAlreadyExists(timer.status())) {
    return timer;
  }
  const std::string other = PrivateTimerFile(environment);
  Log(LogLevel::kWarning, absl::StrCat("TORCHELASTIC_TIMER_FILE: another launcher reads ", path,
                                       "; the workers of this one get ", other));
  return FileTimer::Open(loop, other);
}

std::unique_ptr<HealthPort> OpenHealthPort(EventLoop& loop, const Environment& environment,
                                           HealthSources sources) {
  const std::string text = Get(environment, kHealthPortVariable);
  if (text.empty()) {
    return nullptr;
  }
  int port = -1;
  if (!absl::SimpleAtoi(text, &port) || port < 0 || port > 65535) {
    Log(LogLevel::kWarning, absl::StrCat(kHealthPortVariable, "=", text,
                                         " is no number from 0 to 65535; no port is opened"));
    return nullptr;
  }
  auto opened = HealthPort::Open(loop, static_cast<uint16_t>(port), std::move(sources));
  if (!opened.ok()) {
    // A launcher inside of another one's worker leaves the port to that.
    const bool is_worker = !Get(environment, contract::kEnvRunId).empty() ||
                           !Get(environment, contract::kEnvJobId).empty();
    Log(is_worker ? LogLevel::kInfo : LogLevel::kWarning,
        absl::StrCat(opened.status().message(), "; the job goes on, probes are not answered"));
    return nullptr;
  }
  if (opened.ok() && port == 0) {
    Log(LogLevel::kWarning, absl::StrCat("health probes are answered at port ", (*opened)->port()));
  }
  return *std::move(opened);
}

HealthReport DescribeHealth(const LocalAgent* agent, const std::optional<std::string>& end,
                            const ProgressSigns& signs) {
  HealthReport report;
  if (agent == nullptr) {
    return report;
  }
  const NodeMachine& machine = agent->machine();
  report.generation = machine.generation().value();
  report.restarts = machine.assignment().restart_count;
  if (end.has_value()) {
    report.phase = "ended";
    report.problem = absl::StrCat("the agent has ended: ", *end);
    return report;
  }
  switch (machine.phase()) {
    case node::Phase::kIdle:
    case node::Phase::kPreparing:
    case node::Phase::kPrepared:
    case node::Phase::kGone:
      break;
    case node::Phase::kSpawning:
    case node::Phase::kRunning:
      report.phase = "running";
      report.progress_age = signs.age();
      report.has_progress = signs.any();
      break;
    case node::Phase::kStopping:
    case node::Phase::kKilling:
      report.phase = "stopping";
      break;
    case node::Phase::kWedged:
      report.phase = "wedged";
      report.problem = "a process survived SIGKILL";
      break;
  }
  if (machine.coordinator_deadline().has_value()) {
    report.notice = "the coordinator does not answer";
  }
  return report;
}

HealthReport DescribeHealth(const JobMachine& job) {
  HealthReport report;
  report.phase = std::string(job::PhaseName(job.phase()));
  report.generation = job.generation().value();
  report.restarts = job.restarts_used();
  report.has_progress = job.world().has_progress();
  return report;
}

bool ShowsEvents(const LaunchPlan& plan, const Environment& environment) {
  const std::string level = Get(environment, "LOGLEVEL");
  return plan.event_handler == EventHandler::kConsole &&
         (level.empty() || ParseLogLevel(level) <= LogLevel::kInfo);
}

}  // namespace fsdprun
