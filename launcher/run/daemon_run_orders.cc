// What launchers order, and what becomes of sessions.
#include <algorithm>
#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "agent/process/keeper_socket.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "launcher/cli/forwarded_environment.h"
#include "launcher/daemon/order_seal.h"
#include "launcher/daemon/session_plan.h"
#include "launcher/run/daemon_run.h"

namespace fsdprun {
namespace {

/// For launchers, once a daemon that ends has ended its sessions.
constexpr Duration kFetchTimeout = std::chrono::seconds(10);
/// Before what is left of a session is told again to end.
constexpr Duration kEndPause = std::chrono::seconds(1);

absl::Status UnknownSession(const std::string& id) {
  return absl::NotFoundError(absl::StrCat("this daemon has no session ", id,
                                          ": it ended some time ago, or was started elsewhere"));
}

}  // namespace

void DaemonRun::OnOrder(DaemonService::CallId call, const v1::DaemonOrder& order) {
  const std::string& id = order.has_run() ? order.run().session().id() : order.follow().id();
  if (being_adopted_.contains(id)) {  // Whoever asks for it calls again.
    service_->End(call, absl::UnavailableError(
                            "this daemon is taking the session over from the last one; try again"));
    return;
  }
  if (order.has_run()) {
    RunOrder(call, order.run().session());
    return;
  }
  const auto found = sessions_.find(order.follow().id());
  if (found == sessions_.end()) {
    service_->End(call, UnknownSession(Printable(order.follow().id())));
    return;
  }
  Follow(found->second, call, order.follow().stdout_shown(), order.follow().stderr_shown());
}

void DaemonRun::RunOrder(DaemonService::CallId call, const v1::SessionSpec& spec) {
  if (const auto found = sessions_.find(spec.id()); found != sessions_.end()) {
    Follow(found->second, call, 0, 0);  // The answer to the first order was lost.
    return;
  }
  const absl::StatusOr<Session*> session = Begin(spec);
  if (!session.ok()) {
    Log(LogLevel::kInfo,
        absl::StrCat("refused ", Printable(spec.title()), ": ", session.status().message()));
    service_->End(call, session.status());
    return;
  }
  Follow(**session, call, 0, 0);
}

absl::StatusOr<DaemonRun::Session*> DaemonRun::Begin(v1::SessionSpec spec) {
  if (is_ending_) {
    return absl::FailedPreconditionError("this daemon is being stopped, and takes no more jobs");
  }
  if (!IsSessionId(spec.id())) {
    return absl::InvalidArgumentError("the session's id is none of a launcher's");
  }
  // A job's launcher orders its nodes as its user would.
  spec.set_token(spec.has_head() ? token_ : TokenOfJob(token_, spec.run_id()));
  spec.mutable_tls()->set_certificate(plan_.tls_certificate);
  spec.mutable_tls()->set_key(plan_.tls_key);
  spec.mutable_tls()->set_ca(plan_.tls_ca);
  const Environment environment = EnvironmentAtNode(environment_, TraveledEnvironment(spec));
  ASSIGN_OR_RETURN(const LaunchPlan plan, PlanOf(spec, environment));
  spec.set_stop_grace_ns(Duration(plan.shutdown_timeout).count());
  std::vector<std::string> devices;
  if (!spec.has_head()) {
    spec.set_workers(plan.nproc_per_node);
    ASSIGN_OR_RETURN(devices,
                     ledger_->Take(spec.id(), Printable(spec.title()), plan.nproc_per_node));
  }
  if (!devices.empty()) {
    v1::Variable& variable = *spec.add_environment();
    variable.set_name(kVisibleDevices);
    variable.set_value(absl::StrJoin(devices, ","));
  }
  absl::StatusOr<SessionProcess> process =
      StartSession(folder_->PathOf(spec.id()), spec, program_, EnvironmentAtNode(environment_, {}));
  if (!process.ok()) {
    ledger_->Free(spec.id());
    return absl::Status(
        process.status().code(),
        absl::StrCat(process.status().message(), "; a daemon keeps its jobs in ", folder_->path(),
                     " (--runtime-dir): see whether there is space for them"));
  }
  Session& session = Keep(spec, *std::move(process));
  session.devices = devices;
  Log(LogLevel::kInfo, absl::StrCat("started ", session.title, ": session ", spec.id(),
                                    ", process ", session.process->pid()));
  return &session;
}

// Who comes last is the launcher: an earlier call of it may not know yet that it is broken.
void DaemonRun::Follow(Session& session, DaemonService::CallId call, uint64_t out, uint64_t error) {
  if (session.call != 0) {
    service_->End(session.call, absl::AbortedError("the launcher has made a newer call"));
  }
  session.call = call;
  session.is_sending = true;  // Until this is written.
  session.life.Followed();
  session.process->Follow(out, error);
  v1::DaemonMessage message;
  for (const std::string& device : session.devices) {
    message.mutable_accepted()->add_devices(device);
  }
  message.mutable_accepted();
  service_->Send(call, std::move(message));
  Tend(session.id);
}

void DaemonRun::OnMessage(DaemonService::CallId call, const v1::LauncherMessage& message) {
  Session* session = SessionOf(call);
  if (session == nullptr) {
    return;
  }
  if (message.has_signal()) {
    session->process->Signal(message.signal().signal());
  } else if (message.has_shown()) {
    session->process->Shown(message.shown().stdout_shown(), message.shown().stderr_shown());
  } else if (message.has_done()) {
    session->call = 0;
    session->life.Released(MonoNow());
    service_->End(call, absl::OkStatus());
    Tend(session->id);
  } else {
    service_->End(call, absl::InvalidArgumentError("a message of another release"));
    OnLost(call);
  }
}

void DaemonRun::OnWritten(DaemonService::CallId call) {
  if (Session* session = SessionOf(call)) {
    session->is_sending = false;
    SendNext(*session);
  }
}

void DaemonRun::OnLost(DaemonService::CallId call) {
  if (Session* session = SessionOf(call)) {
    Log(LogLevel::kInfo, absl::StrCat("the launcher of ", session->title, " is lost"));
    session->call = 0;
    session->life.Lost(MonoNow());
    Tend(session->id);
  }
}

absl::StatusOr<LaunchPlan> DaemonRun::PlanOf(const v1::SessionSpec& spec,
                                             const Environment& environment) const {
  MachineFacts machine = machine_;
  machine.gpus = ledger_->most_devices();
  return spec.has_head() ? PlanOfHead(spec, environment, machine)
                         : PlanOfSession(spec, environment, machine);
}

DaemonRun::Session& DaemonRun::Keep(const v1::SessionSpec& spec, SessionProcess process) {
  const SessionLife::Graces graces{plan_.daemon->lost_grace, Duration(spec.stop_grace_ns())};
  Session& session = sessions_
                         .emplace(spec.id(), Session{.id = spec.id(),
                                                     .title = Printable(spec.title()),
                                                     .life = SessionLife(graces, MonoNow())})
                         .first->second;
  // Until its launcher was told its id, nobody else could end it.
  if (spec.has_head() && HasSessionStarted(folder_->PathOf(spec.id()))) {
    session.life.Detach();
  }
  session.process = std::make_unique<DaemonSession>(
      loop_, growth_, folder_->PathOf(spec.id()), std::move(process),
      spec.has_head() ? DaemonSession::Output::kKept : DaemonSession::Output::kDropped,
      DaemonSession::Hooks{[this, &session] { SendNext(session); },
                           [this, &session] {
                             if (!Revive(session)) {
                               OnSessionEnd(session);
                             }
                           }});
  return session;
}

// A node's part whose process was killed, not told to end, and has left its keeper: another process
// goes on in its place. See Note [Adopting workers].
bool DaemonRun::Revive(Session& session) {
  const std::string folder = folder_->PathOf(session.id);
  if (session.life.is_detached() || session.life.is_ending() || session.process->has_told_end() ||
      !HasKeeper(KeeperSocketOf(folder)) || !session.revivals.Take(MonoNow())) {
    return false;
  }
  absl::StatusOr<SessionProcess> process =
      RestartSession(folder, program_, EnvironmentAtNode(environment_, {}));
  if (!process.ok()) {
    Log(LogLevel::kWarning, absl::StrCat(session.title,
                                         ": its process was killed, and another one "
                                         "cannot be started: ",
                                         process.status().message()));
    return false;
  }
  Log(LogLevel::kWarning, absl::StrCat(session.title, ": its process was killed; process ",
                                       process->pid, " goes on in its place"));
  session.process->GoOn(*std::move(process));
  return true;
}

void DaemonRun::OnSessionEnd(Session& session) {
  // Of one that was killed. Nobody else gets the devices of workers that may run.
  if (const absl::Status status = EndKeeper(KeeperSocketOf(folder_->PathOf(session.id)));
      !status.ok()) {
    LogRefusal(absl::StrCat(session.title,
                            " has ended, and what is left of it cannot be: ", status.message()));
    loop_.At(MonoNow() + kEndPause, [this, id = session.id] {
      if (const auto found = sessions_.find(id); found != sessions_.end()) {
        OnSessionEnd(found->second);
      }
    });
    return;
  }
  Log(LogLevel::kInfo, absl::StrCat("ended ", session.title));
  session.life.Ended(MonoNow());
  ledger_->Free(session.id);
  SendNext(session);
  // Which may destroy who calls this.
  loop_.Post([this, id = session.id] { Tend(id); });
}

DaemonRun::Session* DaemonRun::SessionOf(DaemonService::CallId call) {
  const auto found = std::find_if(sessions_.begin(), sessions_.end(),
                                  [call](const auto& entry) { return entry.second.call == call; });
  return found == sessions_.end() ? nullptr : &found->second;
}

void DaemonRun::SendNext(Session& session) {
  if (session.call == 0 || session.is_sending) {
    return;
  }
  if (std::optional<v1::DaemonMessage> message = session.process->Take()) {
    session.is_sending = true;
    if (message->has_started()) {
      session.life.Detach();
    }
    service_->Send(session.call, *std::move(message));
  }
}

// Does what is due, and comes back for what will be. The id may be the session's own.
void DaemonRun::Tend(std::string id) {
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) {
    return;
  }
  Session& session = found->second;
  switch (session.life.Next(MonoNow())) {
    case SessionLife::Order::kNone:
      break;
    case SessionLife::Order::kTerminate:
      session.process->Signal(SIGTERM);
      break;
    case SessionLife::Order::kKill:
      Log(LogLevel::kWarning, absl::StrCat(session.title, " has not ended; killing it"));
      session.process->Signal(SIGKILL);
      break;
    case SessionLife::Order::kForget:
      Forget(id);
      return;
  }
  loop_.Cancel(session.timer);
  if (session.life.due() != MonoTime::max()) {
    session.timer = loop_.At(session.life.due(), [this, id] { Tend(id); });
  }
  StopIfDone();
}

void DaemonRun::Forget(std::string id) {
  loop_.Cancel(sessions_.at(id).timer);
  sessions_.erase(id);
  RemoveSessionFolder(folder_->PathOf(id));
  StopIfDone();
}

// The first signal ends the sessions in order, the next at once. One that is being adopted ends as
// soon as it is; the next signal leaves it alone.
void DaemonRun::OnSignal(int signal) {
  Log(LogLevel::kInfo, absl::StrCat("signal ", signal, ": ending ",
                                    sessions_.size() + being_adopted_.size(), " sessions"));
  std::vector<std::string> ids;
  for (auto& [id, session] : sessions_) {
    is_ending_ ? session.life.Kill(MonoNow()) : session.life.Stop(MonoNow());
    ids.push_back(id);
  }
  if (std::exchange(is_ending_, true)) {
    LeaveWhoIsBeingAdopted();
  } else if (!being_adopted_.empty()) {
    loop_.At(MonoNow() + kFetchTimeout, [this] { LeaveWhoIsBeingAdopted(); });
  }
  for (const std::string& id : ids) {
    Tend(id);
  }
  StopIfDone();
}

// What cannot be found out about them, such as on a file system that hangs, is waited for no
// longer. They run on without a daemon, and the next one finds them.
void DaemonRun::LeaveWhoIsBeingAdopted() {
  for (const std::string& id : std::exchange(being_adopted_, {})) {
    Log(LogLevel::kWarning, absl::StrCat("session ", id,
                                         " of an earlier daemon could not be taken "
                                         "over to be ended; leaving it alone"));
  }
  StopIfDone();
}

// Launchers have a moment to fetch what is left.
void DaemonRun::StopIfDone() {
  if (!is_ending_ || !being_adopted_.empty()) {
    return;
  }
  const auto all = [this](bool (*is)(const Session&)) {
    return std::all_of(sessions_.begin(), sessions_.end(),
                       [is](const auto& entry) { return is(entry.second); });
  };
  if (all([](const Session& session) { return session.life.has_ended() && session.call == 0; })) {
    loop_.Stop();
  } else if (stop_timer_ == 0 &&
             all([](const Session& session) { return session.life.has_ended(); })) {
    stop_timer_ = loop_.At(MonoNow() + kFetchTimeout, [this] { loop_.Stop(); });
  }
}

}  // namespace fsdprun
