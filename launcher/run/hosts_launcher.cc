#include "launcher/run/hosts_launcher.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "launcher/daemon/call_advice.h"
#include "launcher/daemon/order_seal.h"
#include "launcher/run/session_order.h"

namespace fsdprun {
namespace {

/// Before a word about a daemon that is still waited for.
constexpr Duration kHostsStopNoticeDelay = std::chrono::seconds(1);
/// Before the part of a node that was lost is ordered anew, and at most while that is refused.
constexpr Duration kReturnPause = std::chrono::seconds(1);
constexpr Duration kLongestReturnPause = std::chrono::seconds(30);

}  // namespace

HostsLauncher::HostsLauncher(const LaunchPlan& plan, const Environment& environment,
                             std::vector<std::string> arguments, std::function<void()> on_started)
    : plan_(plan),
      environment_(environment),
      arguments_(std::move(arguments)),
      on_started_(std::move(on_started)),
      job_(plan, environment, *this) {}

HostsLauncher::~HostsLauncher() = default;

// --- The begin

absl::StatusOr<std::string> HostsLauncher::Prepare() {
  ASSIGN_OR_RETURN(token_, DaemonToken(plan_, environment_));
  for (size_t i = 0; i < job_.nodes().size(); ++i) {
    parts_.push_back({.index = i});
  }
  return TokenOfJob(token_, plan_.rdzv_id);
}

void HostsLauncher::StartAll() {
  std::vector<std::string> hosts;
  for (const RemoteJob::Node& node : job_.nodes()) {
    hosts.push_back(node.host.daemon.host);
  }
  lookups_.Start(std::move(hosts), [this](size_t i, const HostLookups::Addresses& addresses) {
    OnFound(parts_[i], addresses);
  });
}

void HostsLauncher::OnFound(Part& part, const HostLookups::Addresses& addresses) {
  if (job_.is_decided()) {
    return;
  }
  if (!addresses.ok()) {
    job_.OnGone(part.index, std::string(addresses.status().message()));
    return;
  }
  part.addresses = *addresses;
  StartSession(part);
}

void HostsLauncher::StartSession(Part& part) {
  const HostPort& host = NodeOf(part).host.daemon;
  std::vector<std::string> targets;
  for (const std::string& address : part.addresses) {
    targets.push_back(ToString(HostPort{address, host.port}));
  }
  DaemonCall::Options daemon{
      .target = "", .token = token_, .tls = job_.head().tls(), .tls_name = host.host};
  part.session = std::make_unique<RemoteSession>(
      job_.loop(), std::move(daemon), std::move(targets), RemoteSession::Kind::kRun,
      job_.OrderFor(part.index, arguments_), HooksOf(part));
  part.session->Start();
}

RemoteSession::Hooks HostsLauncher::HooksOf(Part& part) {
  const std::string where = ToString(NodeOf(part).host.daemon);
  Console& console = job_.output().console();
  RemoteSession::Hooks hooks;
  hooks.on_lines = [&console](ConsoleStream stream, absl::string_view lines) {
    console.WriteLines(stream, lines);
  };
  hooks.has_room = [&console](ConsoleStream stream) { return console.HasRoom(stream); };
  hooks.on_refused = [this, &part](const absl::Status& why) { OnRefused(part, why); };
  hooks.on_end = [this, &part](int code) {
    part.is_output_lost = part.is_output_lost || code == kOutputLostCode;
    OnPartOver(part, absl::StrCat("its part of the job has ended with code ", code));
  };
  hooks.on_lost = [this, &part, where](const absl::Status& why) {
    OnPartOver(part,
               absl::StrCat("the daemon at ", where, " knows no more of it: ", why.message()));
  };
  hooks.on_trouble = [this, &part, where](const absl::Status& why) {
    job_.output().Print(absl::StrCat(
        "node ", NodeOf(part).name, ": the daemon at ", where, " cannot be reached (",
        why.message(), "); its workers go on, and their output is shown when it is back"));
  };
  hooks.on_released = [this] { job_.StopIfAllAreOver(); };
  return hooks;
}

// --- While the job runs

void HostsLauncher::OnStep() {
  if (on_started_ && job_.head().machine().phase() == job::Phase::kRunning) {
    std::exchange(on_started_, nullptr)();
  }
}

void HostsLauncher::Resume() {
  for (const Part& part : parts_) {
    if (part.session != nullptr) {
      part.session->Resume();
    }
  }
}

// The first order is refused for good. A later one is of a node that may not be there again yet, or
// still have what was left of its part.
void HostsLauncher::OnRefused(Part& part, const absl::Status& why) {
  const std::string text = absl::StrCat("the daemon at ", ToString(NodeOf(part).host.daemon),
                                        " does not run its part of the job: ", WithAdvice(why));
  const bool may_pass =
      absl::IsUnavailable(why) || absl::IsResourceExhausted(why) || absl::IsFailedPrecondition(why);
  if (job_.is_decided() || part.returns == 0 || !may_pass) {
    job_.OnGone(part.index, text);
    return;
  }
  if (!std::exchange(part.has_told_return, true)) {
    job_.output().Print(absl::StrCat("node ", NodeOf(part).name, ": ", text, "; asking it again"));
  }
  OrderAnew(part);
}

// The job may go on with what is started there now: its agent is a new one to the coordinator.
void HostsLauncher::OnPartOver(Part& part, const std::string& why) {
  const std::string& name = NodeOf(part).name;
  job_.head().host().NoSuccessor(name);
  if (job_.is_decided() || !job_.HasJoined(part.index) || job_.IsDrained(NodeOf(part)) ||
      part.returns >= plan_.max_restarts) {
    job_.OnGone(part.index, why);
    return;
  }
  ++part.returns;
  part.pause = kReturnPause;
  part.has_told_return = false;
  job_.output().Print(absl::StrCat("node ", name, ": ", why, "; starting it again"));
  OrderAnew(part);
}

void HostsLauncher::OrderAnew(Part& part) {
  job_.loop().At(MonoNow() + part.pause, [this, &part] {
    if (!job_.is_decided()) {
      StartSession(part);
    }
  });
  part.pause = std::min(2 * part.pause, kLongestReturnPause);
}

// --- The end

void HostsLauncher::OnOutcome() {
  job_.loop().At(MonoNow() + RemoteJob::kLostPartTimeout, [this] { ReleaseLost(); });
  job_.loop().At(MonoNow() + kHostsStopNoticeDelay, [this] { TellWhoMayStillAnswer(); });
}

// A daemon that is being asked may have started its part, which is then to be ended.
void HostsLauncher::TellWhoMayStillAnswer() {
  std::vector<std::string> silent;
  for (const Part& part : parts_) {
    if (part.has_session() && !part.session->is_running()) {
      silent.push_back(ToString(NodeOf(part).host.daemon));
    }
  }
  if (!silent.empty()) {
    job_.output().Print(absl::StrCat("the job is over; waiting for the answer of the daemon at ",
                                     absl::StrJoin(silent, ", "),
                                     ", which may have started its part of it; Ctrl-C ends the "
                                     "wait"));
  }
}

// The call of a lost node may break later than the job has ended.
void HostsLauncher::ReleaseLost() {
  for (const Part& part : parts_) {
    const RemoteJob::Node& node = NodeOf(part);
    if (node.is_lost && part.has_session() && !part.session->is_reached()) {
      job_.output().Print(absl::StrCat("node ", node.name, ": the daemon at ",
                                       ToString(node.host.daemon),
                                       " cannot be reached; its output ends here"));
      part.session->Release();
    }
  }
  job_.loop().At(MonoNow() + RemoteJob::kLostPartTimeout, [this] { ReleaseLost(); });
}

void HostsLauncher::Release(size_t node) {
  if (parts_[node].session != nullptr) {
    parts_[node].session->Release();
  }
}

void HostsLauncher::ReleaseAll() {
  for (size_t i = 0; i < parts_.size(); ++i) {
    Release(i);
  }
}

// What a daemon that has not answered starts all the same finds no coordinator, and ends, after its
// --launcher-grace at the latest.
void HostsLauncher::LeaveAll() {
  ReleaseAll();
  for (const Part& part : parts_) {
    if (part.session != nullptr) {
      part.session->Leave();
    }
  }
  job_.StopIfAllAreOver();
}

// Only of a job that went well: else the code of a session may be a worker's.
bool HostsLauncher::TellOfLostOutput() {
  bool is_lost = false;
  for (const Part& part : parts_) {
    if (part.is_output_lost) {
      is_lost = true;
      job_.output().Print(
          absl::StrCat("node ", NodeOf(part).name,
                       ": some of its workers' output could not be written to the daemon's "
                       "--runtime-dir there, and is lost; look at that disk"));
    }
  }
  return is_lost;
}

}  // namespace fsdprun
