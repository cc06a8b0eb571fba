#include "launcher/coordinator/root_cause.h"

#include <algorithm>
#include <csignal>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "proto/worker_contract.h"

namespace fsdprun {

// Note [Root cause]
// The failure that happened first is the root cause: reports carry their age, see Note [Age of an
// event]. With exceptions, because some deaths are noticed late (the kernel frees the memory first,
// about 70 ms per GiB; a broken stream has a grace; a silent node has a lease), while their victims
// exit quickly because of a lost connection:
// 1. a worker that died of a culprit signal, if its exit is received before its node has reported
// WorkersStopped;
// 2. a node that was lost, or whose keeper died, if its silence began before the first failure;
// 3. a worker that reported an error of its own. It outranks what is known to be a victim, by its
// exit code, by its signal or by the type of its error; an exit without an error that came first is
// as likely the cause.
// Each of 1 and 2 outranks a plain exit, unless that exit came with an error that a lost peer does
// not cause. An exit that says that no restart can help outranks everything: it is why the job
// ends, also when it comes after the stop order. Other workers that end after the stop order has
// reached their node are collateral: counted, never listed. Two exceptions. A SIGKILL or SIGBUS
// that we did not send is typical of exhausted memory, and its notice may arrive after the order;
// any other crash is as likely caused by the shutdown. A worker that had written its error file
// before the order came was failing already; it is the root cause if that was the first failure,
// and collateral otherwise.

namespace {

/// The last heartbeat of a lost node may precede the loss by one heartbeat interval.
constexpr Duration kSilenceSlack = std::chrono::milliseconds(500);
constexpr size_t kEntriesMax = 4096;
/// How many keep what their workers have said: of victims, and of any.
constexpr size_t kVictimTextsMax = 256;
constexpr size_t kTextsMax = 1024;

bool IsPlainExit(const Failure& failure) {
  return failure.kind == CauseKind::kWorkerFailed && !IsCulpritSignal(failure.worker->signal);
}

/// The worker has said that no restart can help.
bool IsPermanent(const Failure& failure) {
  return failure.worker && failure.worker->signal == 0 &&
         contract::IsPermanentExit(failure.worker->exit_code);
}

bool IsCollateral(const Failure& failure) {
  if (failure.kind != CauseKind::kWorkerFailed || IsPermanent(failure)) {
    return false;
  }
  const WorkerExit& exit = *failure.worker;
  const bool may_be_memory = exit.signal == SIGKILL || exit.signal == SIGBUS;
  return exit.killed_by_us || (exit.after_stop && !may_be_memory);
}

/// What an error file says about who is at fault.
enum class Blame {
  kNone,    // there is none
  kPeer,    // another worker was lost
  kEither,  // types that the loss of a peer and a worker's own fault have in common
  kThisOne,
};

/// Programs that do not know contract::kExitPeerLost can only be told by the type of their error,
/// which has to be exactly one of these: texts quote file names and other errors. Gloo and c10d
/// throw plain RuntimeErrors, too.
Blame BlameOf(const std::string& message) {
  std::string_view type = std::string_view(message).substr(0, message.find(':'));
  type.remove_prefix(type.rfind('.') + 1);  // npos + 1 is 0
  if (message.empty()) {
    return Blame::kNone;
  }
  for (const char* peer : {"PeerError", "DistError", "DistBackendError", "DistNetworkError",
                           "DistStoreError", "ConnectionError", "ConnectionResetError",
                           "ConnectionAbortedError", "ConnectionRefusedError", "BrokenPipeError"}) {
    if (type == peer) {
      return Blame::kPeer;
    }
  }
  return type == "RuntimeError" || type == "TimeoutError" ? Blame::kEither : Blame::kThisOne;
}

Blame BlameOf(const Failure& failure) {
  if (failure.kind != CauseKind::kWorkerFailed) {
    return Blame::kNone;
  }
  const WorkerExit& exit = *failure.worker;
  return exit.signal == 0 && exit.exit_code == contract::kExitPeerLost
             ? Blame::kPeer
             : BlameOf(exit.error_message);
}

/// The worker reported an error other than the loss of a peer.
bool ReportsOwnError(const Failure& failure) {
  const Blame blame = BlameOf(failure);
  return blame == Blame::kThisOne || blame == Blame::kEither;
}

/// The worker ended as only the loss of a peer makes workers end. SIGABRT and SIGPIPE are of this
/// kind, see IsCulpritSignal.
bool IsKnownVictim(const Failure& failure) {
  return IsPlainExit(failure) && (failure.worker->signal != 0 || BlameOf(failure) == Blame::kPeer);
}

/// It is told when such a failure happened. Of the others only the time of the decision is known.
bool IsReported(CauseKind kind) {
  switch (kind) {
    case CauseKind::kWorkerFailed:
    case CauseKind::kKeeperDied:
    case CauseKind::kPrepareFailed:
    case CauseKind::kSpawnFailed:
    case CauseKind::kWorkerHung:
      return true;
    case CauseKind::kNodeLost:
    case CauseKind::kNodeWedged:
    case CauseKind::kNodeStuck:
    case CauseKind::kJoinTimeout:
    case CauseKind::kCannotStart:
      return false;
  }
  return false;
}

/// What makes a failure large.
void DropTexts(Failure* failure) {
  if (failure->worker) {
    failure->worker->stderr_tail.clear();
    failure->worker->traceback.clear();
    failure->worker->error_json.clear();
  }
}

}  // namespace

bool IsCulpritSignal(int signal) {
  switch (signal) {
    case SIGKILL:
    case SIGSEGV:
    case SIGBUS:
    case SIGILL:
    case SIGFPE:
    case SIGSYS:
    case SIGTRAP:
    case SIGXCPU:
    case SIGXFSZ:
      return true;
    default:
      return false;
  }
}

int ExitCodeOfCause(const JobOutcome& outcome) {
  if (outcome.kind == OutcomeKind::kStoppedBySignal) {
    return contract::kSignalExitBase + outcome.signal;
  }
  if (!outcome.failure || !outcome.failure->root.worker) {
    return outcome.exit_code;
  }
  const WorkerExit& worker = *outcome.failure->root.worker;
  return worker.signal != 0 ? contract::kSignalExitBase + worker.signal : worker.exit_code;
}

bool IsEndOfWorkers(const JobOutcome& outcome) {
  return outcome.kind == OutcomeKind::kSucceeded ||
         (outcome.kind == OutcomeKind::kFailed && outcome.failure.has_value() &&
          outcome.failure->root.worker.has_value());
}

bool FailureLog::Add(Failure failure, MonoTime received, MonoTime since) {
  FSDPRUN_CHECK(failure.kind != CauseKind::kWorkerFailed || failure.worker.has_value(),
                "a worker's failure says how the worker ended");
  const MonoTime at = IsReported(failure.kind) ? since : received;
  if (IsCollateral(failure)) {
    ++collateral_;
    const bool was_failing = failure.worker->failed_before_stop && ReportsOwnError(failure);
    if (was_failing && (!failed_before_stop_ || at < failed_before_stop_->at)) {
      failed_before_stop_ = Entry{std::move(failure), at, since};
    }
    return false;
  }
  if (entries_.size() == kEntriesMax) {
    ++not_kept_;
    if (!IsPermanent(failure)) {
      return true;
    }
    entries_.pop_back();
  }
  const auto later = std::upper_bound(entries_.begin(), entries_.end(), at,
                                      [](MonoTime t, const Entry& e) { return t < e.at; });
  const size_t place = static_cast<size_t>(later - entries_.begin());
  entries_.insert(later, {std::move(failure), at, since});
  DropTextsBehind(place);
  return true;
}

/// An entry has come to `place`, and moved those behind it.
void FailureLog::DropTextsBehind(size_t place) {
  const size_t victim = std::max(place, kVictimTextsMax);
  if (victim < entries_.size() && IsKnownVictim(entries_[victim].failure)) {
    DropTexts(&entries_[victim].failure);
  }
  const size_t any = std::max(place, kTextsMax);
  if (any < entries_.size()) {
    DropTexts(&entries_[any].failure);
  }
}

void FailureLog::Clear() {
  entries_.clear();
  failed_before_stop_.reset();
  not_kept_ = 0;
  collateral_ = 0;
}

bool FailureLog::HasPermanent() const {
  return std::any_of(entries_.begin(), entries_.end(),
                     [](const Entry& e) { return IsPermanent(e.failure); });
}

bool FailureLog::HasHang() const {
  return std::any_of(entries_.begin(), entries_.end(),
                     [](const Entry& e) { return e.failure.kind == CauseKind::kWorkerHung; });
}

size_t FailureLog::RootIndex() const {
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (IsPermanent(entries_[i].failure)) {
      return i;
    }
  }
  const bool may_be_victim =
      IsPlainExit(entries_[0].failure) && BlameOf(entries_[0].failure) != Blame::kThisOne;
  if (!may_be_victim) {
    return 0;
  }
  const bool is_known_victim = IsKnownVictim(entries_[0].failure);
  for (size_t i = 1; i < entries_.size(); ++i) {
    const Entry& e = entries_[i];
    const bool is_worker = e.failure.kind == CauseKind::kWorkerFailed;
    const bool came_first = is_worker || e.since <= entries_[0].at + kSilenceSlack;
    const bool outranks_victim = is_known_victim && ReportsOwnError(e.failure);
    if ((!IsPlainExit(e.failure) && came_first) || outranks_victim) {
      return i;
    }
  }
  return 0;
}

bool FailureLog::StoppedWorkerOutranks(const Entry& root) const {
  return failed_before_stop_ && failed_before_stop_->at < root.at && IsPlainExit(root.failure) &&
         !IsPermanent(root.failure);
}

std::optional<CauseKind> FailureLog::RootKind() const {
  if (entries_.empty()) {
    return std::nullopt;
  }
  const Entry& root = entries_[RootIndex()];
  return StoppedWorkerOutranks(root) ? failed_before_stop_->failure.kind : root.failure.kind;
}

FailureReport FailureLog::Report() const {
  FSDPRUN_CHECK(!entries_.empty(), "no failure, no report");
  const size_t root = RootIndex();
  const bool is_stopped = StoppedWorkerOutranks(entries_[root]);
  FailureReport report;
  report.root = is_stopped ? failed_before_stop_->failure : entries_[root].failure;
  report.other_failures = static_cast<int>(entries_.size()) - (is_stopped ? 0 : 1) + not_kept_;
  report.collateral = collateral_ - (is_stopped ? 1 : 0);
  for (size_t i = 0; i < entries_.size() && report.others.size() < kMaxOtherFailures; ++i) {
    if (is_stopped || i != root) {
      report.others.push_back(entries_[i].failure);
    }
  }
  return report;
}

}  // namespace fsdprun
