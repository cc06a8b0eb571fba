#include "launcher/run/remote_job.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/descriptor_limit.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "launcher/cli/host_list.h"
#include "launcher/run/job_end.h"
#include "launcher/run/session_order.h"

namespace fsdprun {
namespace {

/// Between two words about what is waited for.
constexpr Duration kNoticeInterval = std::chrono::seconds(5);
/// How long nodes may show what is left of their workers' output once the job is over.
constexpr Duration kPartsEndTimeout = std::chrono::seconds(60);
/// How long a stalled reader of our output may delay the exit.
constexpr Duration kReaderTimeout = std::chrono::seconds(60);
constexpr Duration kInterruptedReaderTimeout = std::chrono::seconds(2);

}  // namespace

RemoteJob::RemoteJob(const LaunchPlan& plan, const Environment& environment, Parts& parts)
    : plan_(plan),
      environment_(environment),
      parts_(parts),
      clocks_(plan.node_lease.has_value() ? ClocksFor(*plan.node_lease) : Clocks{}),
      signals_(
          loop_, {plan_.signals, [this](int signal) { OnSignal(signal); }},
          {plan_.forwarded_signals, [this](int signal) { head_.host().ForwardSignal(signal); }}),
      output_(loop_, CliProgram::kFsdprun, plan_, environment_),
      head_(loop_, plan_, environment_, clocks_,
            {[this](const JobOutcome& outcome) { OnFinish(outcome); }, [this] { OnStep(); }}) {
  RaiseDescriptorLimit();
  const std::vector<std::string> names = NodeNames(plan_.agents);
  for (size_t i = 0; i < names.size(); ++i) {
    nodes_.push_back({.name = names[i], .host = plan_.agents[i]});
  }
}

RemoteJob::~RemoteJob() = default;

int RemoteJob::Run() {
  output_.OnRoom([this] { parts_.Resume(); });
  if (const absl::Status status = Start(); !status.ok()) {
    output_.Print(status.message());
    output_.console().Close(MonoNow() + kReaderTimeout);
    return 1;
  }
  ScheduleWaitNotice();
  loop_.Run();
  return Finish();
}

absl::Status RemoteJob::Start() {
  for (const std::string& warning : plan_.warnings) {
    Log(LogLevel::kWarning, warning);
  }
  ASSIGN_OR_RETURN(const std::string token, parts_.Prepare());
  RETURN_IF_ERROR(head_.Start(token));
  has_started_ = true;
  parts_.StartAll();
  return absl::OkStatus();
}

v1::SessionSpec RemoteJob::OrderFor(size_t node, const std::vector<std::string>& arguments) const {
  v1::SessionSpec spec = OrderOf(plan_, environment_, arguments);
  for (const std::string& target : head_.place().targets()) {
    spec.add_coordinators(target);
  }
  spec.set_node_name(nodes_[node].name);
  const bool has_order = plan_.min_nodes == plan_.max_nodes;
  spec.set_node_rank(has_order ? static_cast<int>(node) : -1);
  spec.set_workers(nodes_[node].host.workers);
  return spec;
}

// --- The job

void RemoteJob::OnSignal(int signal) {
  if (!is_over()) {
    head_.host().OperatorStop(signal);
  } else {
    parts_.LeaveAll();
  }
}

void RemoteJob::OnFinish(const JobOutcome& outcome) {
  outcome_ = outcome;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (!HasJoined(i)) {
      parts_.Release(i);
    }
  }
  parts_.OnOutcome();
  end_timer_ = loop_.At(MonoNow() + kPartsEndTimeout, [this] { OnEndTimeout(); });
  StopIfAllAreOver();
}

void RemoteJob::OnEndTimeout() {
  output_.Print(absl::StrCat("the job is over, but not all of its nodes have ended within ",
                             ToSeconds(kPartsEndTimeout), " s; ", parts_.HowLeft()));
  parts_.ReleaseAll();
}

void RemoteJob::OnStep() {
  if (has_started_) {
    output_.ShowProgress(head_.machine().progress());
    parts_.OnStep();
    NoteWhoIsLost();
    EndIfTooFewAreLeft();
  }
}

// At the moment in which the job is decided: from then on nodes leave, one by one.
void RemoteJob::NoteWhoIsLost() {
  if (!head_.machine().outcome().has_value() || std::exchange(is_decided_, true)) {
    return;
  }
  const std::set<std::string>& connected = head_.connected();
  for (size_t i = 0; i < nodes_.size(); ++i) {
    nodes_[i].is_lost = HasJoined(i) && !connected.contains(nodes_[i].name);
  }
}

// --- Who is gone

void RemoteJob::OnGone(size_t node, const std::string& why) {
  nodes_[node].gone = why;
  has_gone_ = true;
  judged_at_.reset();
  if (is_over()) {
    StopIfAllAreOver();
    return;
  }
  EndIfTooFewAreLeft();
  if (lost_reason_.empty() && !HasJoined(node)) {
    output_.Print(absl::StrCat("node ", nodes_[node].name, ": ", why, "; going on without it"));
  }
}

void RemoteJob::EndIfTooFewAreLeft() {
  const bool may_be_too_few =
      has_gone_ && !is_over() && head_.machine().phase() == job::Phase::kRendezvous;
  const uint64_t revision = head_.machine().revision();
  if (!may_be_too_few || std::exchange(judged_at_, revision) == revision) {
    return;
  }
  const std::set<std::string>& connected = head_.connected();
  std::vector<std::string> gone;
  size_t left = nodes_.size();
  for (const Node& node : nodes_) {
    if (node.gone.empty() || connected.contains(node.name)) {
      continue;
    }
    --left;
    if (!IsDrained(node)) {  // By an operator, who knows what the job waits for.
      gone.push_back(absl::StrCat("node ", node.name, ": ", node.gone));
    }
  }
  const int needed = head_.machine().min_nodes();
  if (gone.empty() || left >= static_cast<size_t>(needed)) {
    return;
  }
  lost_reason_ =
      absl::StrCat(absl::StrJoin(gone, "; "),
                   nodes_.size() == 1 ? ""
                                      : absl::StrCat(". The job needs ", needed, " nodes, and ",
                                                     left, left == 1 ? " is left" : " are left"));
  parts_.ReleaseAll();
  StopIfAllAreOver();
}

// --- The end

void RemoteJob::StopIfAllAreOver() {
  if (!is_over()) {
    return;
  }
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (!parts_.IsOver(i)) {
      return;
    }
  }
  loop_.Stop();
}

void RemoteJob::ScheduleWaitNotice() {
  loop_.At(MonoNow() + kNoticeInterval, [this] {
    if (const std::string text = head_.WaitText(); !text.empty() && !is_over()) {
      output_.Print(absl::StrCat(text, parts_.WaitDetails()));
    }
    ScheduleWaitNotice();
  });
}

int RemoteJob::Finish() {
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
  return output_.Close(MonoNow() + (is_interrupted ? kInterruptedReaderTimeout : kReaderTimeout),
                       code == 0 && parts_.TellOfLostOutput() ? kOutputLostCode : code);
}

}  // namespace fsdprun
