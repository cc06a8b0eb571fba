#include <algorithm>
#include <csignal>
#include <utility>

#include "agent/node/node_machine_internal.h"
#include "base/check.h"

namespace fsdprun {
namespace {

/// How often an agent without a coordinator wakes up, to notice that it did not run itself.
constexpr Duration kStallCheckInterval = std::chrono::seconds(1);

}  // namespace

void NodeMachine::Handle(const ToAgent& order, Out& out) {
  if (order.incarnation != spec_.node.incarnation) {
    ++stale_dropped_;
    return;
  }
  contact_.Heard();
  std::visit([&](const auto& o) { Apply(o, order.generation, out); }, order.message);
}

void NodeMachine::Apply(const AdmitAgent& admit, Generation, Out& out) {
  contact_.Admitted(admit.node_lease, out.now);
  out.effects.news.emplace_back(node::CoordinatorFound{contact_.endpoint()});
  if (std::string mismatch = Mismatch({}, admit.build); !mismatch.empty()) {
    Leave(1, std::move(mismatch), spec_.kill_wait, out);
    return;
  }
  contact_.ExpectSuccessor(admit.may_be_taken_over);
  if (!leaving_) {
    ExplainAdmission();
  }
}

void NodeMachine::ExplainAdmission() {
  if (phase_ == node::Phase::kIdle || phase_ == node::Phase::kGone) {
    SetReason("admitted; waiting for a place in the world");
  } else if (reason_before_loss_) {
    SetReason(*std::exchange(reason_before_loss_, std::nullopt));
  }
}

void NodeMachine::Apply(const RejectAgent& reject, Generation, Out& out) {
  if (reject.rejoin) {
    SendJoin(out);
    return;
  }
  Leave(1, "refused by the coordinator at " + contact_.endpoint() + ": " + reject.reason,
        spec_.kill_wait, out);
}

void NodeMachine::Apply(const PrepareGeneration& prepare, Generation g, Out& out) {
  if (g <= highest_seen_ || leaving_ || prepare.assignment.generation != g) {
    stale_dropped_ += g == generation() ? 0 : 1;
    return;
  }
  highest_seen_ = g;
  if (!MayHaveProcesses()) {
    BeginPrepare(prepare.assignment, out);
    return;
  }
  // Only a coordinator that has lost its state orders a new world while an old one is alive; the
  // old one is killed first.
  next_assignment_ = prepare.assignment;
  if (phase_ != node::Phase::kKilling && phase_ != node::Phase::kWedged) {
    KillGeneration(out);
  }
}

void NodeMachine::BeginPrepare(const RankAssignment& assignment, Out& out) {
  FSDPRUN_CHECK(!MayHaveProcesses(), "nothing of g may be left when g + 1 begins");
  FSDPRUN_CHECK(generation() < assignment.generation, "generations rise");
  assignment_ = assignment;
  phase_ = node::Phase::kPreparing;
  is_spawned_ = false;
  workers_.Begin(assignment);
  reports_.Clear();
  ends_by_stop_.clear();
  progress_ = {};
  progress_changed_ = false;
  SetReason("preparing generation " + std::to_string(generation().value()));
  out.effects.news.emplace_back(node::Assigned{assignment_});
  prepare_started_ = keeper_.is_ready();
  if (prepare_started_) {
    out.effects.actions.emplace_back(node::PrepareNode{assignment_, assignment_.group_rank == 0});
  }
}

void NodeMachine::Apply(const CommitGeneration& commit, Generation g, Out& out) {
  if (IsStale(g) || phase_ != node::Phase::kPrepared || leaving_) {
    return;
  }
  assignment_.master_addr = commit.store.address;
  assignment_.master_port = commit.store.port;
  phase_ = node::Phase::kSpawning;
  is_spawned_ = true;
  contact_.JobRuns();
  SetReason("starting the workers of generation " + std::to_string(g.value()));
  out.effects.actions.emplace_back(node::SpawnWorkers{assignment_});
}

void NodeMachine::Apply(const StopWorkers& stop, Generation g, Out& out) {
  if (g > generation()) {
    // Its prepare order was lost, or waits for an older generation to be gone: no process of g
    // exists here.
    highest_seen_ = std::max(highest_seen_, g);
    next_assignment_.reset();
    SendNow(WorkersStopped{}, g, out);
    return;
  }
  if (IsStale(g)) {
    return;
  }
  StopGeneration(stop.signal, stop.grace, stop.reason, out);
}

void NodeMachine::Apply(const PassSignal& pass, Generation g, Out& out) {
  if (!IsStale(g) && phase_ == node::Phase::kRunning) {
    out.effects.actions.emplace_back(node::NotifyWorkers{g, pass.signal});
  }
}

void NodeMachine::Apply(const LeftOut& left_out, Generation, Out&) {
  if (leaving_ || (phase_ != node::Phase::kIdle && phase_ != node::Phase::kGone)) {
    return;
  }
  if (left_out.why.empty()) {
    ExplainAdmission();
  } else {
    SetReason("left out: " + left_out.why);
  }
}

void NodeMachine::Apply(const ReleaseAgent& release, Generation, Out& out) {
  Leave(release.exit_code, release.reason, spec_.kill_wait, out);
  leaving_->was_cut_off = release.cut_off;
  leaving_->leaves_job = release.job_goes_on;
  leaving_->is_released = true;
}

// --- Ending a generation, ending the agent

void NodeMachine::StopGeneration(int signal, Duration grace, std::string reason, Out& out) {
  switch (phase_) {
    case node::Phase::kIdle:
      return;
    case node::Phase::kGone:
      SendNow(WorkersStopped{}, generation(), out);
      return;
    case node::Phase::kPreparing:
    case node::Phase::kPrepared:
      SetReason("stopped before the start: " + reason);
      BecomeGone(out);
      return;
    case node::Phase::kSpawning:
    case node::Phase::kRunning: {
      SetReason("stopping: " + reason);
      const bool only_remains = phase_ == node::Phase::kRunning && workers_.live() == 0;
      if (grace <= Duration{} || only_remains) {
        KillGeneration(out);
        return;
      }
      phase_ = node::Phase::kStopping;
      kill_at_ = out.now + grace;
      workers_.SignalSent(signal, out.now);
      out.effects.news.emplace_back(
          node::WorkersStopping{generation(), signal, grace, std::move(reason)});
      out.effects.actions.emplace_back(node::SignalWorkers{generation(), signal, grace});
      return;
    }
    case node::Phase::kStopping:
      if (out.now + grace >= kill_at_) {
        return;
      }
      kill_at_ = out.now + grace;
      if (grace <= Duration{}) {
        KillGeneration(out);
      } else {
        out.effects.actions.emplace_back(node::SignalWorkers{generation(), 0, grace});
      }
      return;
    case node::Phase::kKilling:
    case node::Phase::kWedged:
      return;
  }
}

void NodeMachine::KillGeneration(Out& out) {
  FSDPRUN_CHECK(MayHaveProcesses(), "there must be something to kill");
  phase_ = node::Phase::kKilling;
  kill_at_ = MonoTime::max();
  wedged_at_ = out.now + spec_.kill_wait;
  workers_.KillSent(out.now);
  out.effects.news.emplace_back(node::WorkersKilled{generation()});
  if (keeper_.is_ready()) {
    out.effects.actions.emplace_back(node::KillWorkers{generation()});
  } else {
    out.effects.actions.emplace_back(node::KillOrphans{generation()});
  }
}

void NodeMachine::DeclareWedged(Out& out) {
  wedged_at_ = MonoTime::max();
  phase_ = node::Phase::kWedged;
  std::string pids;
  for (const int64_t pid : workers_.RunningPids()) {
    pids += " " + std::to_string(pid);
  }
  Fault(CauseKind::kNodeWedged,
        pids.empty() ? "descendants of the workers survived SIGKILL"
                     : "SIGKILL did not end pid" + pids + "; a device or file system hangs",
        out);
  if (leaving_) {
    FinishExit(out);
  }
}

void NodeMachine::BecomeGone(Out& out) {
  ReportEndsByStop(out);
  phase_ = node::Phase::kGone;
  kill_at_ = MonoTime::max();
  wedged_at_ = MonoTime::max();
  workers_.EndAll();
  out.effects.news.emplace_back(node::AllEnded{generation()});
  SendReport(WorkersStopped{}, out.now, out);
  if (leaving_) {
    FinishExit(out);
  } else if (next_assignment_) {
    const RankAssignment next = *next_assignment_;
    next_assignment_.reset();
    BeginPrepare(next, out);
  }
}

void NodeMachine::Fault(CauseKind kind, std::string what, Out& out) {
  SetReason(what);
  SendReport(NodeFaulted{kind, std::move(what)}, out.now, out);
}

void NodeMachine::Leave(int exit_code, std::string message, Duration timeout, Out& out) {
  if (was_released()) {
    return;  // The job's end has been told; what fails while this node cleans up does not change
             // it.
  }
  if (!leaving_) {
    leaving_.emplace();
  }
  next_assignment_.reset();
  leaving_->exit_code = exit_code;
  leaving_->message = std::move(message);
  SetReason("leaving: " + leaving_->message);
  if (!MayHaveProcesses() || phase_ == node::Phase::kWedged) {
    FinishExit(out);
    return;
  }
  exit_at_ = std::min(exit_at_, out.now + timeout);
  if (phase_ != node::Phase::kKilling) {
    KillGeneration(out);
  }
}

void NodeMachine::FinishExit(Out& out) {
  FSDPRUN_CHECK(!exited_, "an agent leaves once");
  SendNow(AgentLeft{leaving_->signal, false}, generation(), out);
  out.effects.actions.emplace_back(node::Exit{leaving_->exit_code, leaving_->message});
  out.effects.news.emplace_back(node::Left{leaving_->exit_code, leaving_->message});
  exited_ = true;
}

// --- Helpers

bool NodeMachine::MayHaveProcesses() const {
  switch (phase_) {
    case node::Phase::kSpawning:
    case node::Phase::kRunning:
    case node::Phase::kStopping:
    case node::Phase::kKilling:
    case node::Phase::kWedged:
      return true;
    case node::Phase::kIdle:
    case node::Phase::kPreparing:
    case node::Phase::kPrepared:
    case node::Phase::kGone:
      return false;
  }
  return false;
}

bool NodeMachine::IsStale(Generation g) {
  if (g == generation() && g != Generation{}) {
    return false;
  }
  ++stale_dropped_;
  return true;
}

void NodeMachine::SendReport(AgentMessage message, MonoTime happened_at, Out& out) {
  SendNow(reports_.Add(std::move(message), happened_at, out.now), generation(), out);
}

std::vector<OwnFailure> NodeMachine::OwnFailures() const {
  return reports_.Failures(spec_.node, assignment_);
}

void NodeMachine::SetReason(std::string reason) {
  reason_ = std::move(reason);
  reason_before_loss_.reset();
}

MonoTime NodeMachine::NextWake(MonoTime now) const {
  if (exited_) {
    return MonoTime::max();
  }
  return std::min({contact_.next_heartbeat(), contact_.silent_at(), kill_at_, wedged_at_,
                   contact_.deadline(), exit_at_,
                   contact_.IsAwaited() ? now + kStallCheckInterval : MonoTime::max()});
}

std::string NodeMachine::CheckInvariants() const {
  if (generation() > highest_seen_) {
    return "the generation held is newer than the highest seen";
  }
  if (std::string broken = workers_.CheckInvariants(); !broken.empty()) {
    return broken;
  }
  if (workers_.live() > 0 && !MayHaveProcesses()) {
    return "workers run in phase " + std::string(node::PhaseName(phase_));
  }
  if (phase_ == node::Phase::kStopping && kill_at_ == MonoTime::max()) {
    return "stopping without a deadline";
  }
  if (phase_ == node::Phase::kKilling && wedged_at_ == MonoTime::max()) {
    return "killing without a deadline";
  }
  if (!exited_ && !contact_.is_up() && !contact_.IsAwaited() && exit_at_ == MonoTime::max() &&
      contact_.was_ever_admitted()) {
    return "without a stream and without a deadline";
  }
  return "";
}

}  // namespace fsdprun
