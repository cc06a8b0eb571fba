#include "launcher/coordinator/root_cause.h"

#include <algorithm>
#include <csignal>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "base/check.h"
#include "proto/worker_contract.h"

namespace fsdprun {

// Note [Root cause]
// The first failure that the coordinator receives is the root cause, with exceptions. The
// notice of a hard death is slow (the kernel frees the memory first, about 70 ms per GiB; a broken
// stream has a grace; a silent node has a lease), while its victims exit quickly because of a lost
// connection:
// 1. a worker that died of a culprit signal, if its exit is received before its node has reported
// WorkersStopped;
// 2. a node that was lost, or whose keeper died, if its silence began before the first failure was
// received;
// 3. a worker that reported an error other than the loss of a peer: an interpreter closes its
// sockets before it exits, so that its peers may be heard first. It outranks what is known to be a
// victim, by its words or by its signal: an exit without a word that was heard first is as likely
// the cause.
// Each of 1 and 2 outranks a plain exit, unless that exit came with an error other than the loss of
// a peer. An exit that says that no restart can help outranks everything: it is why the job ends.
// Workers that exit after a stop order are collateral: counted, never listed. The exception is a
// SIGKILL or SIGBUS that we did not send, typical of exhausted memory, whose notice may arrive
// after the order; any other crash is as likely caused by the shutdown.

namespace {

/// The last heartbeat of a lost node may precede the loss by one heartbeat interval.
constexpr Duration kSilenceSlack = std::chrono::milliseconds(500);
constexpr size_t kEntriesMax = 4096;

bool IsPlainExit(const Failure& failure) {
  return failure.kind == CauseKind::kWorkerFailed && !IsCulpritSignal(failure.worker->signal);
}

bool IsCollateral(const Failure& failure) {
  if (failure.kind != CauseKind::kWorkerFailed) {
    return false;
  }
  const WorkerExit& exit = *failure.worker;
  const bool may_be_memory = exit.signal == SIGKILL || exit.signal == SIGBUS;
  return exit.killed_by_us || (exit.after_stop && !may_be_memory);
}

/// The worker has said that no restart can help.
bool IsPermanent(const Failure& failure) {
  return failure.worker && failure.worker->signal == 0 &&
         contract::IsPermanentExit(failure.worker->exit_code);
}

/// The message says that a peer was lost. fsdp-train's types say it for certain; other programs'
/// messages are searched for what the collective libraries and the sockets say.
bool NamesLostPeer(const std::string& message) {
  for (const char* victim : {"PeerError:", "StoreError:", "RuntimeError: store at "}) {
    if (absl::StartsWith(message, victim)) {
      return true;
    }
  }
  for (const char* own :
       {"UsageError:", "ConfigError:", "EnvironmentError:", "CheckpointError:", "DivergedError:"}) {
    if (absl::StartsWith(message, own)) {
      return false;
    }
  }
  const std::string text = absl::AsciiStrToLower(message);
  for (const char* phrase : {"connection ",
                             "connectionerror",
                             "connectionreset",
                             "connectionrefused",
                             "the connection",
                             "failed to connect",
                             "by peer",
                             "lost peer",
                             "remote peer",
                             "client socket",
                             "socket closed",
                             "broken pipe",
                             "brokenpipe",
                             "nccl",
                             "gloo",
                             "timed out",
                             "timeout",
                             "tcpstore",

                             "in barrier",
                             "barrier("}) {
    if (absl::StrContains(text, phrase)) {
      return true;
    }
  }
  return false;
}

/// The worker reported an error other than the loss of a peer.
bool ReportsOwnError(const Failure& failure) {
  return failure.kind == CauseKind::kWorkerFailed && !failure.worker->error_message.empty() &&
         !NamesLostPeer(failure.worker->error_message);
}

/// The worker ended as only the loss of a peer makes workers end. SIGABRT and SIGPIPE are of this
/// kind, see IsCulpritSignal.
bool IsKnownVictim(const Failure& failure) {
  return IsPlainExit(failure) &&
         (failure.worker->signal != 0 || NamesLostPeer(failure.worker->error_message));
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

void FailureLog::Add(Failure failure, MonoTime received, MonoTime since) {
  FSDPRUN_CHECK(failure.kind != CauseKind::kWorkerFailed || failure.worker.has_value(),
                "a worker's failure says how the worker ended");
  if (IsCollateral(failure)) {
    ++collateral_;
    return;
  }
  if (entries_.size() < kEntriesMax) {
    entries_.push_back({std::move(failure), received, since});
  } else {
    ++not_kept_;
  }
}

void FailureLog::Clear() {
  entries_.clear();
  not_kept_ = 0;
  collateral_ = 0;
}

bool FailureLog::HasPermanent() const {
  return std::any_of(entries_.begin(), entries_.end(),
                     [](const Entry& e) { return IsPermanent(e.failure); });
}

size_t FailureLog::RootIndex() const {
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (IsPermanent(entries_[i].failure)) {
      return i;
    }
  }
  if (!IsPlainExit(entries_[0].failure) || ReportsOwnError(entries_[0].failure)) {
    return 0;
  }
  const bool is_known_victim = IsKnownVictim(entries_[0].failure);
  for (size_t i = 1; i < entries_.size(); ++i) {
    const Entry& e = entries_[i];
    const bool is_worker = e.failure.kind == CauseKind::kWorkerFailed;
    const bool came_first = is_worker || e.since <= entries_[0].received + kSilenceSlack;
    const bool outranks_victim = is_known_victim && ReportsOwnError(e.failure);
    if ((!IsPlainExit(e.failure) && came_first) || outranks_victim) {
      return i;
    }
  }
  return 0;
}

FailureReport FailureLog::Report() const {
  FSDPRUN_CHECK(!entries_.empty(), "no failure, no report");
  const size_t root = RootIndex();
  FailureReport report;
  report.root = entries_[root].failure;
  report.other_failures = static_cast<int>(entries_.size()) - 1 + not_kept_;
  report.collateral = collateral_;
  for (size_t i = 0; i < entries_.size() && report.others.size() < kMaxOtherFailures; ++i) {
    if (i != root) {
      report.others.push_back(entries_[i].failure);
    }
  }
  return report;
}

}  // namespace fsdprun
