#include "launcher/run/ssh_launcher.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/descriptor_limit.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "launcher/cli/host_list.h"
#include "launcher/run/job_end.h"
#include "launcher/run/job_spec.h"
#include "launcher/run/session_order.h"
#include "launcher/ssh/node_hello.h"
#include "launcher/ssh/ssh_advice.h"
#include "launcher/ssh/ssh_command.h"

namespace fsdprun {
namespace {

/// How many hosts are being logged in to at a time.
constexpr size_t kLogins = 64;
constexpr size_t kHostsNamed = 8;
/// How often a login is tried that sshd has turned away, and before the first, second, ... repeat.
constexpr int kMostLogins = 6;
constexpr Duration kLoginPause = std::chrono::milliseconds(500);
/// Parts of the pause by which the hosts differ, so that they do not come at once again.
constexpr int kLoginSpread = 8;
/// Between two words about what is waited for.
constexpr Duration kSshNoticeInterval = std::chrono::seconds(5);
/// How long nodes that were released may show what is left of their workers' output.
constexpr Duration kSshEndTimeout = std::chrono::seconds(60);
/// The same for a node that the job has lost.
constexpr Duration kSshLostNodeTimeout = std::chrono::seconds(3);
/// How long an ssh that was hung up on may take beyond --abort-timeout.
constexpr Duration kSshHangUpMargin = std::chrono::seconds(5);
/// How long a stalled reader of our output may delay the exit.
constexpr Duration kSshDrainTimeout = std::chrono::seconds(60);
constexpr Duration kSshInterruptedDrainTimeout = std::chrono::seconds(2);

}  // namespace

SshLauncher::SshLauncher(const LaunchPlan& plan, const Environment& environment,
                         std::vector<std::string> arguments)
    : plan_(plan),
      environment_(environment),
      arguments_(std::move(arguments)),
      clocks_(plan.node_lease.has_value() ? ClocksFor(*plan.node_lease) : Clocks{}),
      signals_(
          loop_, {plan_.signals, [this](int signal) { OnSignal(signal); }},
          {plan_.forwarded_signals, [this](int signal) { head_.host().ForwardSignal(signal); }}),
      output_(loop_, CliProgram::kFsdprun, plan_, environment_),
      head_(loop_, plan_, environment_, clocks_,
            {[this](const JobOutcome& outcome) { OnFinish(outcome); }, [this] { OnStep(); }}) {
  RaiseDescriptorLimit();
}

SshLauncher::~SshLauncher() = default;

int SshLauncher::Run() {
  output_.OnRoom([this] {
    for (Node& node : nodes_) {
      if (node.connection != nullptr) {
        node.connection->Resume();
      }
    }
  });
  if (const absl::Status status = Start(); !status.ok()) {
    output_.Print(status.message());
    output_.console().Close(MonoNow() + kSshDrainTimeout);
    return 1;
  }
  ScheduleWaitNotice();
  loop_.Run();
  return Finish();
}

absl::Status SshLauncher::Start() {
  for (const std::string& warning : plan_.warnings) {
    Log(LogLevel::kWarning, warning);
  }
  program_ = plan_.ssh->program;
  if (program_.empty()) {
    std::error_code error;
    program_ = std::filesystem::read_symlink("/proc/self/exe", error).string();
    if (error) {
      return absl::InternalError(absl::StrCat("cannot find the path of this program (",
                                              error.message(), "); give it with --ssh-program"));
    }
  }
  const std::vector<std::string> names = NodeNames(plan_.agents);
  for (size_t i = 0; i < names.size(); ++i) {
    nodes_.push_back({.name = names[i], .host = plan_.agents[i]});
  }
  RETURN_IF_ERROR(head_.Start(/*token=*/""));
  has_started_ = true;
  loop_.Post([this] { StartNext(); });
  return absl::OkStatus();
}

void SshLauncher::StartNext() {
  const auto is_logging_in = [](const Node& node) {
    return node.is_pausing || (node.connection != nullptr && node.connection->is_open() &&
                               !node.connection->has_said_hello());
  };
  while (next_ < nodes_.size() && !is_over() &&
         std::count_if(nodes_.begin(), nodes_.end(), is_logging_in) < std::ptrdiff_t{kLogins}) {
    StartNode(nodes_[next_++]);
  }
}

void SshLauncher::StartNode(Node& node) {
  ++node.logins;
  SshConnection::Hooks hooks;
  hooks.on_hello = [this, &node](const BuildInfo& build) { OnHello(node, build); };
  hooks.on_lines = [this](ConsoleStream stream, absl::string_view lines) {
    output_.console().WriteLines(stream, lines);
  };
  hooks.has_room = [this](ConsoleStream stream) { return output_.console().HasRoom(stream); };
  hooks.on_end = [this, &node](int code) { OnEnd(node, code); };
  hooks.on_failure = [this, &node](const absl::Status& why) {
    OnGone(node, std::string(why.message()));
    StartNext();
  };
  node.connection = std::make_unique<SshConnection>(loop_, std::move(hooks));
  node.connection->Start(SshCommand(*plan_.ssh, node.host.daemon, program_),
                         SshEnvironment(environment_));
}

v1::SessionSpec SshLauncher::SpecOf(const Node& node) const {
  v1::SessionSpec spec = OrderOf(plan_, environment_, arguments_);
  for (const std::string& target : head_.place().targets()) {
    spec.add_coordinators(target);
  }
  spec.set_token(head_.place().token.value);
  spec.set_node_name(node.name);
  const bool has_order = plan_.min_nodes == plan_.max_nodes;
  spec.set_node_rank(has_order ? static_cast<int>(&node - nodes_.data()) : -1);
  spec.set_workers(node.host.workers);
  return spec;
}

void SshLauncher::OnSignal(int signal) {
  if (!is_over()) {
    head_.host().OperatorStop(signal);
  } else {
    KillAll();
  }
}

// Nodes that have not joined have no output that could be lost.
void SshLauncher::OnFinish(const JobOutcome& outcome) {
  outcome_ = outcome;
  for (Node& node : nodes_) {
    if (!head_.joined().contains(node.name)) {
      Release(node);
    }
  }
  loop_.At(MonoNow() + kSshLostNodeTimeout, [this] { HangUpOnLostNodes(); });
  end_timer_ = loop_.At(MonoNow() + kSshEndTimeout, [this] {
    output_.Print(absl::StrCat("the job is over, but not all of its nodes have ended within ",
                               ToSeconds(kSshEndTimeout), " s; closing the connections to them"));
    ReleaseAll();
  });
  StopIfAllAreOver();
}

// Who waits for the result of a job does not wait for a machine that is gone, which ssh notices
// later. If it is not gone, its part ends when it is hung up on, and says its last.
void SshLauncher::HangUpOnLostNodes() {
  for (const Node& node : nodes_) {
    if (node.is_lost) {
      node.connection->HangUp();
    }
  }
  loop_.At(MonoNow() + plan_.abort_timeout + kSshHangUpMargin, [this] { CloseLostNodes(); });
}

void SshLauncher::CloseLostNodes() {
  for (const Node& node : nodes_) {
    if (node.is_lost && node.connection->is_open()) {
      output_.Print(absl::StrCat("node ", node.name, ": ssh to ", ToString(node.host.daemon),
                                 " has not ended; its output ends here"));
      node.connection->Kill();
    }
  }
  StopIfAllAreOver();
}

void SshLauncher::OnStep() {
  if (has_started_) {
    output_.ShowProgress(head_.machine().progress());
    NoteWhoIsLost();
    EndIfTooFewAreLeft();
  }
}

// At the moment in which the job is decided: from then on nodes leave, one by one.
void SshLauncher::NoteWhoIsLost() {
  if (!head_.machine().outcome().has_value() || std::exchange(is_decided_, true)) {
    return;
  }
  const std::set<std::string> connected = head_.connected();
  for (Node& node : nodes_) {
    node.is_lost = head_.joined().contains(node.name) && !connected.contains(node.name);
  }
}

void SshLauncher::OnHello(Node& node, const BuildInfo& build) {
  if (const std::string mismatch = Mismatch(build, BuildInfo()); !mismatch.empty()) {
    node.connection->Kill();
    OnGone(node, absl::StrCat(mismatch, ", or give the path of this one with --ssh-program"));
  } else if (is_over()) {
    Release(node);
  } else {
    node.connection->Send(FramedOrder(SpecOf(node).SerializeAsString()));
  }
  StartNext();
}

void SshLauncher::OnEnd(Node& node, int code) {
  const SshConnection& connection = *node.connection;
  const SshEnd end{node.host.daemon, code, connection.last_words(), program_};
  if (!connection.has_said_hello() && IsTurnedAway(end) && node.logins < kMostLogins &&
      !is_over() && !is_decided_) {
    LogInAgain(node);
  } else if (!connection.has_said_hello()) {
    OnGone(node, DescribeSshEnd(end));
  } else {
    const std::string last = code == 0 ? "" : LastLines(connection.last_words());
    OnGone(node, absl::StrCat("its part of the job has ended with code ", code,
                              last.empty() ? "" : absl::StrCat(": ", last)));
  }
  StartNext();
}

// sshd, or one on the way, has more logins at a time than it takes (MaxStartups).
void SshLauncher::LogInAgain(Node& node) {
  const auto place = static_cast<int>(&node - nodes_.data()) % kLoginSpread;
  const Duration pause = kLoginPause * (1 << (node.logins - 1));
  node.is_pausing = true;  // It keeps its place among those that log in.
  loop_.At(MonoNow() + pause + pause * place / kLoginSpread, [this, &node] {
    node.is_pausing = false;
    if (!is_over() && !is_decided_) {
      StartNode(node);
    }
  });
}

// The coordinator finds out by itself what that means for a job that runs, but waits for nodes that
// cannot come.
void SshLauncher::OnGone(Node& node, const std::string& why) {
  node.gone = why;
  has_gone_ = true;
  if (is_over()) {
    StopIfAllAreOver();
    return;
  }
  EndIfTooFewAreLeft();
  if (lost_reason_.empty() && !head_.joined().contains(node.name)) {
    output_.Print(absl::StrCat("node ", node.name, ": ", why, "; going on without it"));
  }
}

void SshLauncher::EndIfTooFewAreLeft() {
  if (!has_gone_ || is_over() || head_.machine().phase() != job::Phase::kRendezvous) {
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

// A login has told the host nothing yet.
void SshLauncher::Release(Node& node) {
  if (node.connection == nullptr || !node.connection->is_open()) {
    return;
  }
  node.connection->has_said_hello() ? node.connection->HangUp() : node.connection->Kill();
}

void SshLauncher::ReleaseAll() {
  for (Node& node : nodes_) {
    Release(node);
  }
  loop_.Cancel(kill_timer_);
  kill_timer_ = loop_.At(MonoNow() + plan_.abort_timeout + kSshHangUpMargin, [this] { KillAll(); });
  StopIfAllAreOver();
}

// The nodes' parts end all the same, as soon as sshd tells them, or the coordinator is gone.
void SshLauncher::KillAll() {
  for (Node& node : nodes_) {
    if (node.connection != nullptr) {
      node.connection->Kill();
    }
  }
  StopIfAllAreOver();
}

void SshLauncher::StopIfAllAreOver() {
  const bool are_over = std::all_of(nodes_.begin(), nodes_.end(), [](const Node& node) {
    return node.connection == nullptr || !node.connection->is_open();
  });
  if (is_over() && are_over) {
    loop_.Stop();
  }
}

void SshLauncher::ScheduleWaitNotice() {
  loop_.At(MonoNow() + kSshNoticeInterval, [this] {
    const std::string text = head_.WaitText();
    if (!text.empty() && !is_over()) {
      const std::string silent = SilentHosts();
      output_.Print(
          absl::StrCat(text, silent.empty() ? "" : absl::StrCat("; ssh has not got to ", silent)));
    }
    ScheduleWaitNotice();
  });
}

std::string SshLauncher::SilentHosts() const {
  std::vector<std::string> silent;
  size_t others = 0;
  for (const Node& node : nodes_) {
    if (node.gone.empty() && (node.connection == nullptr || !node.connection->has_said_hello())) {
      silent.size() < kHostsNamed ? silent.push_back(node.name) : void(++others);
    }
  }
  return absl::StrCat(absl::StrJoin(silent, ", "),
                      others > 0 ? absl::StrCat(" and ", others, " more") : "");
}

int SshLauncher::Finish() {
  loop_.Cancel(end_timer_);
  loop_.Cancel(kill_timer_);
  head_.host().Shutdown();
  const EndContext context{CliProgram::kFsdprun, plan_, environment_, output_.console(), loop_};
  if (outcome_.has_value()) {
    ReportOutcome(*outcome_, context);
  } else {
    ReportReason(lost_reason_, context);
  }
  const bool is_interrupted =
      outcome_.has_value() && outcome_->kind == OutcomeKind::kStoppedBySignal;
  return output_.Close(
      MonoNow() + (is_interrupted ? kSshInterruptedDrainTimeout : kSshDrainTimeout),
      outcome_.has_value() ? outcome_->exit_code : 1);
}

}  // namespace fsdprun
