#include "agent/local/local_agent.h"

#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/process/orphans.h"
#include "base/error_text.h"
#include "base/log.h"
#include "proto/worker_contract.h"

namespace fsdprun {
namespace {

constexpr Duration kOrphanSweepPause = std::chrono::milliseconds(10);
/// No process of a job may outlive its launcher by more than 1 s.
constexpr Duration kKeeperEndTimeout = std::chrono::milliseconds(200);

bool IsPermanent(const absl::Status& status) {
  return absl::IsUnauthenticated(status) || absl::IsNotFound(status) ||
         absl::IsInvalidArgument(status) || absl::IsUnimplemented(status) ||
         absl::IsPermissionDenied(status);
}

/// The link's error, with what to do next.
std::string Explain(const absl::Status& status, const std::string& token_advice) {
  std::string text(status.message());
  if (absl::IsUnauthenticated(status)) {
    absl::StrAppend(&text, "; ", token_advice);
  } else if (absl::IsNotFound(status)) {
    absl::StrAppend(&text, "; give all nodes the same --rdzv-id and --rdzv-endpoint");
  } else if (absl::IsUnimplemented(status)) {
    absl::StrAppend(&text, "; is another program listening at this --rdzv-endpoint?");
  } else if (!absl::IsPermissionDenied(status)) {  // Which says itself what to do.
    absl::StrAppend(&text, "; install the same version of fsdprun on all nodes");
  }
  return text;
}

bool IsLogWriter(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/comm"));
  std::string name;
  return std::getline(file, name) && name == keeper::kLogWriterName;
}

std::string PathOf(const std::map<std::string, std::string>& environment) {
  const auto it = environment.find("PATH");
  return it == environment.end() ? "" : it->second;
}

}  // namespace

LocalAgent::LocalAgent(EventLoop& loop, Options options, Hooks hooks, CoordinatorLink& link,
                       WorkerStore& store)
    : loop_(loop),
      options_(std::move(options)),
      hooks_(std::move(hooks)),
      link_(link),
      store_(store),
      machine_(options_.spec),
      attempt_files_(loop),
      vitals_(loop),
      files_(loop),
      output_(loop_, files_, hooks_.sink),
      desk_(
          loop_,
          [keeper = options_.keeper_path, path = PathOf(options_.base_environment)] {
            return FindStackPrograms(keeper, path);
          },
          DeskHooks()) {
  const OutputOptions& output = options_.output;
  if (!options_.dirs.logs.empty() &&
      !(output.stdout_filters.empty() && output.stderr_filters.empty())) {
    filtered_ = std::make_unique<FilteredOutput>(loop_);
  }
  if (!options_.keeper_socket.path.empty()) {
    output_.TellShown([this](int local_rank, keeper::Stream stream, uint64_t offset) {
      OnShown(local_rank, stream, offset);
    });
  }
  if (options_.file_timer != nullptr) {
    options_.file_timer->SetCallbacks(
        {.on_expired = [this](const ExpiredTimer& timer) { OnTimerExpired(timer); },
         .on_request = hooks_.on_timer_request});
  }
}

LocalAgent::~LocalAgent() {
  *is_live_ = false;
  if (options_.file_timer != nullptr) {
    options_.file_timer->SetCallbacks({});
  }
  loop_.Cancel(wake_timer_);
  loop_.Cancel(shown_timer_);
  for (const auto& [pid, ended] : log_writers_) {
    loop_.Unwatch(ended.get());
  }
}

void LocalAgent::Start() {
  Listen();
  Feed(node::Boot{});
}

/// For the coordinator.
void LocalAgent::Listen() {
  foreign_children_ = ListChildren();
  for (const pid_t pid : foreign_children_) {
    if (IsLogWriter(pid)) {
      AdoptLogWriter(pid);  // Of an earlier agent of this process.
    }
  }
  CoordinatorLink::Callbacks callbacks;
  callbacks.on_up = [this] {
    desk_.StreamLost();  // The one before: it may have been replaced without having been lost.
    Feed(node::StreamUp{});
  };
  callbacks.on_message = [this](const ToAgent& message) {
    last_link_error_ = absl::OkStatus();
    if (const auto* admit = std::get_if<AdmitAgent>(&message.message)) {
      FollowLease(admit->node_lease);
      was_admitted_ = true;
      has_warned_of_silence_ = false;
    }
    const auto* reject = std::get_if<RejectAgent>(&message.message);
    const bool is_release = std::holds_alternative<ReleaseAgent>(message.message) ||
                            (reject != nullptr && !reject->rejoin);
    was_released_ |= is_release;
    if (is_release) {
      desk_.TellTheRest();
    }
    Feed(message);
  };
  callbacks.on_lost = [this](const LinkLoss& loss) { OnLinkLost(loss); };
  callbacks.on_aside = [this](const v1::ToNodeAside& aside) { desk_.Hear(aside); };
  link_.SetCallbacks(std::move(callbacks));
}

void LocalAgent::OperatorSignal(int signal) {
  was_released_ = true;
  Feed(node::OperatorSignal{signal});
}

void LocalAgent::CoordinatorMoved(const std::string& endpoint) {
  Feed(node::CoordinatorMoved{endpoint});
}

bool LocalAgent::ForwardSignal(int signal) {
  const bool is_running =
      machine_.phase() == node::Phase::kRunning || machine_.phase() == node::Phase::kStopping;
  if (!is_running || keeper_ == nullptr || !keeper_->is_alive()) {
    return false;
  }
  const std::string notice = absl::StrCat("{\"v\":", contract::kControlVersion,
                                          ",\"type\":\"notice\",\"signal\":", signal, "}");
  for (const auto& [local_rank, pid] : spawned_pids_) {
    keeper_->SendControl(local_rank, notice, life());
  }
  keeper_->Signal(keeper::kAllRanks, signal, /*group=*/false, life());
  return true;
}

void LocalAgent::OnEvent(const node::Event& event) {
  if (hooks_.on_event) {
    hooks_.on_event(event);
  }
}

void LocalAgent::Hear(const node::News& news) {
  if (hooks_.on_news) {
    hooks_.on_news(news);
  }
}

void LocalAgent::WakeAt(MonoTime at) {
  loop_.Cancel(wake_timer_);
  if (at != MonoTime::max()) {
    wake_timer_ = loop_.At(at, [this] { Feed(node::TimerDue{}); });
  }
}

void LocalAgent::Execute(node::Action& action) {
  if (hooks_.on_action) {
    hooks_.on_action(action);
  }
  std::visit([this](const auto& what) { Execute(what); }, action);
}

void LocalAgent::RunAfter(Duration delay, std::function<void()> action) {
  if (delay <= Duration::zero()) {
    action();
    return;
  }
  loop_.At(MonoNow() + delay, [live = is_live_, this, action = std::move(action)] {
    if (*live && !has_ended_) {
      action();
    }
  });
}

void LocalAgent::FeedInTurn(std::function<node::Event()> event) {
  turns_.emplace(next_turn_++, std::move(event));
  FeedTurns();
}

void LocalAgent::FeedTurns() {
  while (!turns_.empty() && turns_.begin()->second != nullptr) {
    const std::function<node::Event()> event = std::move(turns_.begin()->second);
    turns_.erase(turns_.begin());
    Feed(event());
  }
}

// --- Link

void LocalAgent::Execute(const node::ReconnectStream& reconnect) {
  RunAfter(reconnect.delay, [this, patience = reconnect.patience] { link_.Open(patience); });
}

void LocalAgent::OnLinkLost(const LinkLoss& loss) {
  const absl::Status& status = loss.status;
  last_link_error_ = status;
  desk_.StreamLost();
  if (!loss.nothing_listens) {
    WarnOfSilence();
  }
  // While a coordinator is away, somebody else may have its port.
  if (IsPermanent(status) && !machine_.awaits_successor()) {
    was_released_ = true;
    Feed(ToAgent{options_.spec.node.incarnation, Generation(),
                 RejectAgent{Explain(status, options_.token_advice)}});
    return;
  }
  Feed(node::StreamLost{std::string(status.message()), loss.nothing_listens});
}

/// Not about the break itself, which most often is made good at once, but about the first attempt
/// that fails.
void LocalAgent::WarnOfSilence() {
  const std::optional<MonoTime> deadline = machine_.coordinator_deadline();
  if (!deadline.has_value() || std::exchange(has_warned_of_silence_, true)) {
    return;
  }
  const auto left = std::chrono::round<std::chrono::seconds>(*deadline - MonoNow());
  Log(LogLevel::kWarning,
      absl::StrCat("no answer from the coordinator at ", machine_.coordinator_endpoint(), " (",
                   last_link_error_.message(),
                   "); the workers of this node go on, and are ended if it does not answer within ",
                   left.count(), " s"));
}

// --- Keeper

void LocalAgent::Execute(const node::StartKeeper& start) {
  RunAfter(start.delay, [this] { OpenKeeper(); });
}

void LocalAgent::OpenKeeper() {
  keeper_ = std::make_unique<KeeperClient>(loop_, MakeKeeperCallbacks());
  if (const absl::Status status = keeper_->Start(
          options_.keeper_path, {.spool = options_.dirs.spool, .vitals = options_.dirs.vitals},
          options_.keeper_socket);
      !status.ok()) {
    Feed(node::KeeperLost{std::string(status.message())});
  } else if (keeper_lease_ > Duration::zero()) {
    keeper_->HoldLease(keeper_lease_);
  }
}

/// The keeper's lease has to outlast this agent's patience with the coordinator.
void LocalAgent::FollowLease(Duration node_lease) {
  const bool has_lease = options_.keeper_lease > Duration::zero() && node_lease > Duration::zero();
  const Duration lease =
      !has_lease || node_lease == options_.spec.node_lease
          ? options_.keeper_lease
          : ClocksFor(std::chrono::duration_cast<std::chrono::milliseconds>(node_lease))
                .keeper_lease;
  if (std::exchange(keeper_lease_, lease) != lease && keeper_ != nullptr && keeper_->is_alive()) {
    keeper_->HoldLease(lease);
  }
}

KeeperCallbacks LocalAgent::MakeKeeperCallbacks() {
  KeeperCallbacks callbacks;
  callbacks.on_hello = [this](const keeper::HelloReport&) {
    LeaveMemo();
    FeedInTurn([] { return node::KeeperReady{}; });
  };
  callbacks.on_spawned = [this](const keeper::SpawnedReport& report) { OnSpawned(report); };
  callbacks.on_spawn_failed = [this](const keeper::SpawnFailedReport& report) {
    if (report.life != life()) {
      return;
    }
    OnSpawnFailed(report.local_rank, absl::StrCat("cannot ", report.attempted, " ", report.path,
                                                  ": ", ErrorText(report.error)));
  };
  callbacks.on_exited = [this](const keeper::ExitedReport& report) { OnExited(report); };
  callbacks.on_shown_before = [this](const keeper::ShownReport& report) {
    if (report.life == life()) {
      output_.Skip(report.local_rank, report.stream, report.offset);
    }
  };
  callbacks.on_log_grew = [this](const keeper::LogGrewReport& report) { OnLogGrew(report); };
  callbacks.on_log_data = [this](const keeper::LogDataReport& report) { OnLogData(report); };
  callbacks.on_log_degraded = [this](const keeper::LogDegradedReport& report) {
    OnLogDegraded(report);
  };
  callbacks.on_control_record = [this](const keeper::ControlRecordReport& report) {
    OnControlRecord(report);
  };
  callbacks.on_note = [](const keeper::NoteReport& report) {
    Log(LogLevel::kWarning,
        report.local_rank == keeper::kAllRanks
            ? report.text
            : absl::StrCat("worker with local rank ", report.local_rank, ": ", report.text));
  };
  callbacks.on_all_gone = [this](const keeper::AllGoneReport& report) {
    FeedInTurn([generation = Generation(report.life)] { return node::AllWorkersGone{generation}; });
  };
  callbacks.on_lost = [this](const std::string& reason) {
    strangers_.merge(keeper_->TakeWorkers());
    const std::set<pid_t> children = ListChildren();
    for (const pid_t pid : keeper_->log_writers()) {
      if (children.count(pid) > 0) {
        AdoptLogWriter(pid);
      }
    }
    FeedInTurn([reason] { return node::KeeperLost{reason}; });
  };
  callbacks.on_ended = [this] { FinishExit(); };
  return callbacks;
}

/// It may hang in the kernel: it is spared like a child of somebody else's, and reaped when it
/// ends.
void LocalAgent::AdoptLogWriter(pid_t pid) {
  foreign_children_.insert(pid);
  UniqueFd ended(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!ended.valid() || log_writers_.count(pid) > 0) {
    return;
  }
  loop_.Watch(ended.get(), EPOLLIN, [this, pid](uint32_t) {
    const auto it = log_writers_.find(pid);
    loop_.Unwatch(it->second.get());
    ::waitpid(pid, nullptr, WNOHANG | __WALL);
    foreign_children_.erase(pid);
    log_writers_.erase(it);
  });
  log_writers_.emplace(pid, std::move(ended));
}

// --- Stopping

void LocalAgent::Execute(const node::SignalWorkers& signal) {
  if (keeper_ == nullptr || !keeper_->is_alive()) {
    return;
  }
  const auto grace_ms = std::chrono::duration_cast<std::chrono::milliseconds>(signal.grace).count();
  const std::string stop = absl::StrCat("{\"v\":", contract::kControlVersion,
                                        ",\"type\":\"stop\",\"grace_ms\":", grace_ms, "}");
  for (const auto& [local_rank, pid] : spawned_pids_) {
    keeper_->SendControl(local_rank, stop, life());
  }
  if (signal.signal != 0) {
    keeper_->Signal(keeper::kAllRanks, signal.signal, options_.stops_groups, life());
    keeper_->Signal(keeper::kAllRanks, SIGCONT, /*group=*/true, life());
  }
}

void LocalAgent::Execute(const node::KillWorkers& kill) {
  if (keeper_ != nullptr && keeper_->is_alive()) {
    keeper_->KillAll(kill.generation.value());
  } else {
    SweepOrphans(kill.generation);
  }
}

void LocalAgent::Execute(const node::KillOrphans& kill) { SweepOrphans(kill.generation); }

void LocalAgent::SweepOrphans(Generation generation) {
  const bool is_sweeping = swept_generation_.has_value();
  swept_generation_ = generation;
  if (!is_sweeping) {
    SweepOnce();
  }
}

void LocalAgent::SweepOnce() {
  std::set<pid_t> spared = foreign_children_;
  if (keeper_ != nullptr && keeper_->is_alive()) {
    spared.insert(keeper_->pid());  // A new keeper may start before all orphans are gone.
  }
  if (store_.process() != nullptr) {
    spared.insert(store_.process()->id().pid);  // It ends with its keeper, by itself.
  }
  if (fsdprun::KillOrphans(spared) + KillStrangers(strangers_) == 0) {
    strangers_.clear();
    const Generation generation = *std::exchange(swept_generation_, std::nullopt);
    FeedInTurn([generation] { return node::AllWorkersGone{generation}; });
    return;
  }
  RunAfter(kOrphanSweepPause, [this] { SweepOnce(); });
}

// Waits for the keeper to exit: a process that goes on (fsdp-agent) would otherwise collect one
// zombie per incarnation, and would later treat the old keeper's processes as foreign ones.
void LocalAgent::Execute(const node::Exit& exit) {
  has_ended_ = true;
  driver_.Stop();
  loop_.Cancel(wake_timer_);
  exit_ = exit;
  if (keeper_ == nullptr || keeper_->has_ended()) {
    FinishExit();
    return;
  }
  keeper_->Shutdown();
  wake_timer_ = loop_.At(MonoNow() + kKeeperEndTimeout, [this] { FinishExit(); });
}

void LocalAgent::FinishExit() {
  if (const std::optional<node::Exit> exit = std::exchange(exit_, std::nullopt)) {
    loop_.Cancel(wake_timer_);
    hooks_.on_exit(exit->code, exit->message);
  }
}

}  // namespace fsdprun
