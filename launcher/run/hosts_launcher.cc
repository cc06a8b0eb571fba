#include "launcher/run/hosts_launcher.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/descriptor_limit.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "launcher/cli/host_list.h"
#include "launcher/daemon/call_advice.h"
#include "launcher/daemon/order_seal.h"
#include "launcher/directory/host_lookup.h"
#include "launcher/run/job_end.h"
#include "launcher/run/job_spec.h"
#include "launcher/run/session_order.h"

namespace fsdprun {
namespace {

/// Between two words about what is waited for.
constexpr Duration kHostsNoticeInterval = std::chrono::seconds(5);
constexpr Duration kHostsStopNoticeDelay = std::chrono::seconds(1);
constexpr Duration kLookupTimeout = std::chrono::seconds(10);
/// How long nodes that were released may show what is left of their workers' output.
constexpr Duration kSessionEndTimeout = std::chrono::seconds(60);
/// The same for a node that the job has lost, while its daemon cannot be reached.
constexpr Duration kLostNodeTimeout = std::chrono::seconds(3);
/// Before the part of a node that was lost is ordered anew, and at most while that is refused.
constexpr Duration kReturnPause = std::chrono::seconds(1);
constexpr Duration kLongestReturnPause = std::chrono::seconds(30);
/// How long a stalled reader of our output may delay the exit.
constexpr Duration kHostsDrainTimeout = std::chrono::seconds(60);
constexpr Duration kHostsInterruptedDrainTimeout = std::chrono::seconds(2);

}  // namespace

HostsLauncher::HostsLauncher(const LaunchPlan& plan, const Environment& environment,
                             std::vector<std::string> arguments, std::function<void()> on_started)
    : plan_(plan),
      environment_(environment),
      arguments_(std::move(arguments)),
      on_started_(std::move(on_started)),
      clocks_(plan.node_lease.has_value() ? ClocksFor(*plan.node_lease) : Clocks{}),
      signals_(
          loop_, {plan_.signals, [this](int signal) { OnSignal(signal); }},
          {plan_.forwarded_signals, [this](int signal) { head_.host().ForwardSignal(signal); }}),
      output_(loop_, CliProgram::kFsdprun, plan_, environment_),
      head_(loop_, plan_, environment_, clocks_,
            {[this](const JobOutcome& outcome) { OnFinish(outcome); }, [this] { OnStep(); }}) {
  RaiseDescriptorLimit();
}

HostsLauncher::~HostsLauncher() = default;

int HostsLauncher::Run() {
  output_.OnRoom([this] {
    for (Node& node : nodes_) {
      if (node.session != nullptr) {
        node.session->Resume();
      }
    }
  });
  if (const absl::Status status = Start(); !status.ok()) {
    output_.Print(status.message());
    output_.console().Close(MonoNow() + kHostsDrainTimeout);
    return 1;
  }
  ScheduleWaitNotice();
  loop_.Run();
  return Finish();
}

absl::Status HostsLauncher::Start() {
  for (const std::string& warning : plan_.warnings) {
    Log(LogLevel::kWarning, warning);
  }
  ASSIGN_OR_RETURN(token_, DaemonToken(plan_, environment_));
  const std::vector<std::string> names = NodeNames(plan_.agents);
  for (size_t i = 0; i < names.size(); ++i) {
    nodes_.push_back({.name = names[i], .host = plan_.agents[i]});
  }
  RETURN_IF_ERROR(head_.Start(TokenOfJob(token_, plan_.rdzv_id)));
  has_started_ = true;
  LookUpHosts();
  return absl::OkStatus();
}

void HostsLauncher::LookUpHosts() {
  std::vector<std::string> hosts;
  for (const Node& node : nodes_) {
    hosts.push_back(node.host.daemon.host);
  }
  using Found = std::vector<absl::StatusOr<std::vector<std::string>>>;
  const auto found = std::make_shared<Found>();
  lookups_.Run(
      [hosts, found] {
        for (const std::string& host : hosts) {
          found->push_back(LookUpHost(host, {.deadline = MonoNow() + kLookupTimeout}));
        }
      },
      [this, found] {
        for (size_t i = 0; i < nodes_.size(); ++i) {
          nodes_[i].addresses = (*found)[i];
        }
        StartSessions();
      });
}

void HostsLauncher::StartSessions() {
  for (Node& node : nodes_) {
    if (outcome_.has_value() || !lost_reason_.empty()) {
      return;
    }
    if (node.addresses.ok()) {
      StartSession(node);
    } else {
      OnGone(node, std::string(node.addresses.status().message()));
    }
  }
}

void HostsLauncher::StartSession(Node& node) {
  std::vector<std::string> targets;
  for (const std::string& address : *node.addresses) {
    targets.push_back(ToString(HostPort{address, node.host.daemon.port}));
  }
  const std::string where = ToString(node.host.daemon);
  RemoteSession::Hooks hooks;
  hooks.on_lines = [this](ConsoleStream stream, absl::string_view lines) {
    output_.console().WriteLines(stream, lines);
  };
  hooks.has_room = [this](ConsoleStream stream) { return output_.console().HasRoom(stream); };
  hooks.on_refused = [this, &node](const absl::Status& why) { OnRefused(node, why); };
  hooks.on_end = [this, &node](int code) {
    node.is_output_lost = node.is_output_lost || code == kOutputLostCode;
    OnPartOver(node, absl::StrCat("its part of the job has ended with code ", code));
  };
  hooks.on_lost = [this, &node, where](const absl::Status& why) {
    OnPartOver(node,
               absl::StrCat("the daemon at ", where, " knows no more of it: ", why.message()));
  };
  hooks.on_trouble = [this, &node, where](const absl::Status& why) {
    output_.Print(absl::StrCat("node ", node.name, ": the daemon at ", where,
                               " cannot be reached (", why.message(),
                               "); its workers go on, and their output is shown when it is back"));
  };
  hooks.on_released = [this] { StopIfAllAreOver(); };
  DaemonCall::Options daemon{
      .target = "", .token = token_, .tls = head_.tls(), .tls_name = node.host.daemon.host};
  node.session =
      std::make_unique<RemoteSession>(loop_, std::move(daemon), std::move(targets),
                                      RemoteSession::Kind::kRun, SpecOf(node), std::move(hooks));
  node.session->Start();
}

v1::SessionSpec HostsLauncher::SpecOf(const Node& node) const {
  v1::SessionSpec spec = OrderOf(plan_, environment_, arguments_);
  for (const std::string& target : head_.place().targets()) {
    spec.add_coordinators(target);
  }
  spec.set_node_name(node.name);
  const bool has_order = plan_.min_nodes == plan_.max_nodes;
  spec.set_node_rank(has_order ? static_cast<int>(&node - nodes_.data()) : -1);
  spec.set_workers(node.host.workers);
  return spec;
}

void HostsLauncher::OnSignal(int signal) {
  if (!outcome_.has_value() && lost_reason_.empty()) {
    head_.host().OperatorStop(signal);
  } else {
    ReleaseAll();
    LeaveAll();
  }
}

// Nodes that have not joined have no output that could be lost.
void HostsLauncher::OnFinish(const JobOutcome& outcome) {
  outcome_ = outcome;
  for (const Node& node : nodes_) {
    if (node.session != nullptr && !head_.joined().contains(node.name)) {
      node.session->Release();
    }
  }
  loop_.At(MonoNow() + kLostNodeTimeout, [this] { ReleaseLostNodes(); });
  end_timer_ = loop_.At(MonoNow() + kSessionEndTimeout, [this] {
    output_.Print(absl::StrCat("the job is over, but not all of its nodes have ended within ",
                               ToSeconds(kSessionEndTimeout), " s; leaving them to their daemons"));
    ReleaseAll();
  });
  loop_.At(MonoNow() + kHostsStopNoticeDelay, [this] { TellWhoMayStillAnswer(); });
  StopIfAllAreOver();
}

// A daemon that is being asked may have started its part, which is then to be ended.
void HostsLauncher::TellWhoMayStillAnswer() {
  std::vector<std::string> silent;
  for (const Node& node : nodes_) {
    if (node.session != nullptr && !node.session->is_over() && !node.session->is_running()) {
      silent.push_back(ToString(node.host.daemon));
    }
  }
  if (!silent.empty()) {
    output_.Print(absl::StrCat("the job is over; waiting for the answer of the daemon at ",
                               absl::StrJoin(silent, ", "),
                               ", which may have started its part of it; Ctrl-C ends the wait"));
  }
}

// Who waits for the result of a job does not wait for a machine that is gone. Its call may break
// later than the job has ended.
void HostsLauncher::ReleaseLostNodes() {
  for (Node& node : nodes_) {
    if (node.is_lost && node.session != nullptr && !node.session->is_over() &&
        !node.session->is_reached()) {
      output_.Print(absl::StrCat("node ", node.name, ": the daemon at ", ToString(node.host.daemon),
                                 " cannot be reached; its output ends here"));
      node.session->Release();
    }
  }
  loop_.At(MonoNow() + kLostNodeTimeout, [this] { ReleaseLostNodes(); });
}

void HostsLauncher::OnStep() {
  if (has_started_) {
    output_.ShowProgress(head_.machine().progress());
    if (on_started_ && head_.machine().phase() == job::Phase::kRunning) {
      std::exchange(on_started_, nullptr)();
    }
    NoteWhoIsLost();
    EndIfTooFewAreLeft();
  }
}

// At the moment in which the job is decided: from then on nodes leave, one by one.
void HostsLauncher::NoteWhoIsLost() {
  if (!head_.machine().outcome().has_value() || std::exchange(is_decided_, true)) {
    return;
  }
  const std::set<std::string> connected = head_.connected();
  for (Node& node : nodes_) {
    node.is_lost = !connected.contains(node.name);
  }
}

// The first order is refused for good. A later one is of a node that may not be there again yet, or
// still have what was left of its part.
void HostsLauncher::OnRefused(Node& node, const absl::Status& why) {
  const std::string text = absl::StrCat("the daemon at ", ToString(node.host.daemon),
                                        " does not run its part of the job: ", WithAdvice(why));
  const bool may_pass =
      absl::IsUnavailable(why) || absl::IsResourceExhausted(why) || absl::IsFailedPrecondition(why);
  if (IsOver() || node.returns == 0 || !may_pass) {
    OnGone(node, text);
    return;
  }
  if (!std::exchange(node.has_told_return, true)) {
    output_.Print(absl::StrCat("node ", node.name, ": ", text, "; asking it again"));
  }
  OrderAnew(node);
}

// The job may go on with what is started there now: its agent is a new one to the coordinator.
void HostsLauncher::OnPartOver(Node& node, const std::string& why) {
  head_.host().NoSuccessor(node.name);
  if (IsOver() || !head_.joined().contains(node.name) || node.returns >= plan_.max_restarts) {
    OnGone(node, why);
    return;
  }
  ++node.returns;
  node.pause = kReturnPause;
  node.has_told_return = false;
  output_.Print(absl::StrCat("node ", node.name, ": ", why, "; starting it again"));
  OrderAnew(node);
}

void HostsLauncher::OrderAnew(Node& node) {
  loop_.At(MonoNow() + node.pause, [this, &node] {
    if (!IsOver()) {
      StartSession(node);
    }
  });
  node.pause = std::min(2 * node.pause, kLongestReturnPause);
}

// The coordinator finds out by itself what that means for a job that runs, but waits for nodes that
// cannot come.
void HostsLauncher::OnGone(Node& node, const std::string& why) {
  node.gone = why;
  has_gone_ = true;
  if (outcome_.has_value() || !lost_reason_.empty()) {
    StopIfAllAreOver();
    return;
  }
  EndIfTooFewAreLeft();
  if (lost_reason_.empty() && !head_.joined().contains(node.name)) {
    output_.Print(absl::StrCat("node ", node.name, ": ", why, "; going on without it"));
  }
}

void HostsLauncher::EndIfTooFewAreLeft() {
  if (!has_gone_ || outcome_.has_value() || !lost_reason_.empty() ||
      head_.machine().phase() != job::Phase::kRendezvous) {
    return;
  }
  const std::set<std::string> connected = head_.connected();
  std::vector<std::string> gone;
  for (const Node& node : nodes_) {
    if (!node.gone.empty() && !connected.contains(node.name)) {
      gone.push_back(absl::StrCat("node ", node.name, ": ", node.gone));
    }
  }
  const size_t left = nodes_.size() - gone.size();
  if (gone.empty() || left >= static_cast<size_t>(plan_.min_nodes)) {
    return;
  }
  lost_reason_ = absl::StrCat(
      absl::StrJoin(gone, "; "),
      nodes_.size() == 1 ? ""
                         : absl::StrCat(". The job needs ", plan_.min_nodes, " nodes, and ", left,
                                        left == 1 ? " is left" : " are left"));
  ReleaseAll();
  StopIfAllAreOver();
}

void HostsLauncher::ReleaseAll() {
  for (Node& node : nodes_) {
    if (node.session != nullptr) {
      node.session->Release();
    }
  }
}

// What a daemon that has not answered starts all the same finds no coordinator, and ends, after its
// --launcher-grace at the latest.
void HostsLauncher::LeaveAll() {
  for (Node& node : nodes_) {
    if (node.session != nullptr) {
      node.session->Leave();
    }
  }
  StopIfAllAreOver();
}

void HostsLauncher::StopIfAllAreOver() {
  const bool is_over = outcome_.has_value() || !lost_reason_.empty();
  const bool are_over = std::all_of(nodes_.begin(), nodes_.end(), [](const Node& node) {
    return node.session == nullptr || node.session->is_over();
  });
  if (is_over && are_over) {
    loop_.Stop();
  }
}

void HostsLauncher::ScheduleWaitNotice() {
  loop_.At(MonoNow() + kHostsNoticeInterval, [this] {
    if (const std::string text = head_.WaitText(); !text.empty() && lost_reason_.empty()) {
      output_.Print(text);
    }
    ScheduleWaitNotice();
  });
}

int HostsLauncher::Finish() {
  loop_.Cancel(end_timer_);
  head_.host().Shutdown();
  const EndContext context{CliProgram::kFsdprun, plan_, environment_, output_.console(), loop_};
  if (outcome_.has_value()) {
    ReportOutcome(*outcome_, context);
  } else {
    ReportReason(lost_reason_, context);
  }
  const bool is_interrupted =
      outcome_.has_value() && outcome_->kind == OutcomeKind::kStoppedBySignal;
  const int code = outcome_.has_value() ? outcome_->exit_code : 1;
  return output_.Close(
      MonoNow() + (is_interrupted ? kHostsInterruptedDrainTimeout : kHostsDrainTimeout),
      code == 0 && TellOfLostOutput() ? kOutputLostCode : code);
}

// Only of a job that went well: else the code of a session may be a worker's.
bool HostsLauncher::TellOfLostOutput() {
  bool is_lost = false;
  for (const Node& node : nodes_) {
    if (node.is_output_lost) {
      is_lost = true;
      output_.Print(
          absl::StrCat("node ", node.name,
                       ": some of its workers' output could not be written to the daemon's "
                       "--runtime-dir there, and is lost; look at that disk"));
    }
  }
  return is_lost;
}

}  // namespace fsdprun
