#include "launcher/run/daemon_run.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "agent/process/keeper_socket.h"
#include "agent/rpc/call_proof.h"
#include "base/descriptor_limit.h"
#include "base/error_text.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "launcher/daemon/session_plan.h"
#include "launcher/directory/host_lookup.h"
#include "launcher/directory/job_token.h"
#include "launcher/directory/listener.h"
#include "launcher/directory/user_secret.h"
#include "launcher/run/machine.h"
#include "launcher/run/tls_setup.h"

namespace fsdprun {
namespace {

constexpr int kDaemonUsageError = 2;
/// Of a session that is just being started.
constexpr Duration kAdoptPause = std::chrono::milliseconds(100);

void SayOfDaemon(const std::string& text) {
  std::fprintf(stderr, "%s: %s\n", ProgramName(CliProgram::kFsdpAgent), text.c_str());
}

// The jobs of others do not end with the terminal in which their daemon was started. What other
// daemons read again then, certificates, is read as soon as it changes.
void NoteHangUp() { Log(LogLevel::kInfo, "SIGHUP: going on"); }

absl::StatusOr<std::vector<UniqueFd>> BindListenersOrSay(const HostPort& listen) {
  absl::StatusOr<std::vector<UniqueFd>> listeners = BindListeners({listen.host}, listen.port);
  if (listeners.ok()) {
    return listeners;
  }
  const std::string holder =
      absl::IsAlreadyExists(listeners.status()) ? PortHolder(listen.port) : "";
  return absl::Status(
      listeners.status().code(),
      absl::StrCat("--listen: ", listeners.status().message(),
                   holder.empty() ? "" : absl::StrCat(" by ", holder), "; ",
                   absl::IsAlreadyExists(listeners.status())
                       ? "end what listens there, or give another port, which launchers then name "
                         "(HOST:PORT)"
                       : "give an address of this machine, or [::] for all"));
}

std::vector<std::string> DevicesOf(const v1::SessionSpec& spec) {
  const Environment traveled = TraveledEnvironment(spec);
  const auto devices = traveled.find(kVisibleDevices);
  return devices == traveled.end() ? std::vector<std::string>()
                                   : absl::StrSplit(devices->second, ',', absl::SkipEmpty());
}

}  // namespace

DaemonRun::DaemonRun(const LaunchPlan& plan, const Environment& environment)
    : plan_(plan),
      environment_(environment),
      machine_(DetectMachine(environment)),
      signals_(loop_, {{SIGTERM, SIGINT, SIGQUIT}, [this](int s) { OnSignal(s); }},
               {{SIGHUP}, [](int) { NoteHangUp(); }}) {
  RaiseDescriptorLimit();
}

DaemonRun::~DaemonRun() = default;

int DaemonRun::Run() {
  if (const absl::Status status = Start(); !status.ok()) {
    SayOfDaemon(std::string(status.message()));
    return absl::IsInvalidArgument(status) || absl::IsPermissionDenied(status) ? kDaemonUsageError
                                                                               : 1;
  }
  loop_.Run();
  for (const UniqueFd& listener : listeners_) {
    loop_.Unwatch(listener.get());
  }
  service_->Shutdown();
  for (const auto& [id, session] : sessions_) {
    if (!session.life.is_detached()) {  // Whoever attaches asks the next daemon.
      RemoveSessionFolder(folder_->PathOf(id));
    }
  }
  if (const auto rest = refusals_.Rest()) {
    Log(LogLevel::kWarning, *rest);
  }
  return 0;
}

absl::Status DaemonRun::Start() {
  for (const std::string& warning : plan_.warnings) {
    Log(LogLevel::kWarning, warning);
  }
  if (!growth_.is_valid()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "cannot watch jobs' output (inotify_init1): ", ErrorText(errno),
        "; raise fs.inotify.max_user_instances (sysctl), or end other programs of this user"));
  }
  ASSIGN_OR_RETURN(token_, ChooseToken());
  ASSIGN_OR_RETURN(program_, OwnProgram());
  ASSIGN_OR_RETURN(const std::shared_ptr<const Tls> tls, MakeTls(plan_));
  RETURN_IF_ERROR(CheckCanServe(tls.get()));
  CountSlots();
  service_ = std::make_unique<DaemonService>(
      loop_, DaemonService::Options{token_, tls},
      DaemonService::Callbacks{
          [this](auto call, const v1::DaemonOrder& order) { OnOrder(call, order); },
          [this](auto call, const v1::LauncherMessage& message) { OnMessage(call, message); },
          [this](auto call) { OnWritten(call); }, [this](auto call) { OnLost(call); },
          [this](const std::string& what) { LogRefusal(what); }});
  RETURN_IF_ERROR(Listen());
  return absl::OkStatus();
}

// Whoever can connect may run anything as this user, so without a token nobody else may be able to.
absl::StatusOr<std::string> DaemonRun::ChooseToken() {
  const std::string& address = plan_.daemon->listen.host;
  if (!IsNumericAddress(address)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--listen: '", address, "' is not an address in numbers; [::] is all"));
  }
  ASSIGN_OR_RETURN(std::string token, TokenOf(plan_, environment_));
  if (token == kNoToken && !IsLoopback(address)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--no-token: a daemon at ", address,
        " would run what anybody in the network orders; give --listen 127.0.0.1, or a token"));
  }
  if (!token.empty()) {
    return token;
  }
  const absl::StatusOr<UserSecret> secret = LoadUserSecret(environment_);
  if (!secret.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        secret.status().message(),
        "; a daemon needs a token: give it --token-file or FSDPRUN_TOKEN, and launchers the same"));
  }
  return secret->value;
}

void DaemonRun::CountSlots() {
  std::vector<std::string> devices;
  const auto visible = environment_.find(kVisibleDevices);
  if (plan_.daemon->devices.has_value()) {
    devices = *plan_.daemon->devices;
  } else if (visible != environment_.end() && machine_.gpus > 0) {
    devices = absl::StrSplit(visible->second, ',');
    devices.resize(std::min(devices.size(), static_cast<size_t>(machine_.gpus)));
  } else {
    for (int i = 0; i < machine_.gpus; ++i) {
      devices.push_back(absl::StrCat(i));
    }
  }
  int slots = plan_.daemon->slots;
  if (slots == 0) {
    slots = devices.empty() ? machine_.usable_cpus : static_cast<int>(devices.size());
  }
  if (!devices.empty() && static_cast<size_t>(slots) > devices.size()) {
    Log(LogLevel::kWarning,
        absl::StrCat("--slots ", slots, " is more than there are devices; taking ",
                     devices.size()));
    slots = static_cast<int>(devices.size());
  }
  ledger_.emplace(HostName(), slots, devices);
  Log(LogLevel::kInfo, absl::StrCat("slots: ", slots, ", devices: ", absl::StrJoin(devices, ",")));
}

// The folder first: a daemon that is there already shall keep its port and its sessions.
absl::Status DaemonRun::Listen() {
  const HostPort& listen = plan_.daemon->listen;
  ASSIGN_OR_RETURN(DaemonFolder folder, DaemonFolder::Open(DaemonFolder::PathFor(
                                            plan_.daemon->runtime_dir, listen.port, environment_)));
  folder_ = std::move(folder);
  ASSIGN_OR_RETURN(listeners_, BindListenersOrSay(listen));
  RETURN_IF_ERROR(service_->Start());
  Adopt();
  ASSIGN_OR_RETURN(const uint16_t port, PortOf(listeners_.front()));
  const size_t found = sessions_.size() + being_adopted_.size();
  SayOfDaemon(absl::StrCat("daemon at ", ToString(HostPort{listen.host, port}), " with ",
                           ledger_->free_slots(), " free slots",
                           found == 0 ? "" : absl::StrCat("; takes over ", found, " sessions")));
  for (const UniqueFd& listener : listeners_) {
    WatchListener(listener);
  }
  return absl::OkStatus();
}

void DaemonRun::WatchListener(const UniqueFd& listener) {
  loop_.Watch(listener.get(), EPOLLIN, [this, fd = listener.get()](uint32_t) {
    UniqueFd connection(::accept4(fd, nullptr, nullptr, SOCK_CLOEXEC));
    if (connection.valid()) {
      connections_.Add(std::move(connection));
    } else if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
      // It would be ready again at once: most often no descriptor, or no memory, is left.
      Log(LogLevel::kWarning, absl::StrCat("cannot accept a connection: ", ErrorText(errno)));
      loop_.Unwatch(fd);
      loop_.At(MonoNow() + std::chrono::seconds(1), [this, fd] {
        const auto same = std::find_if(listeners_.begin(), listeners_.end(),
                                       [fd](const UniqueFd& l) { return l.get() == fd; });
        WatchListener(*same);
      });
    }
  });
}

void DaemonRun::LogRefusal(const std::string& what) {
  if (const auto line = refusals_.Add(what, MonoNow())) {
    Log(LogLevel::kWarning, *line);
  }
}

void DaemonRun::Adopt() {
  for (const std::string& id : folder_->Sessions()) {
    AdoptOne(id);
  }
}

// One that was started a moment before its daemon was killed has not said its number yet.
void DaemonRun::AdoptOne(const std::string& id) {
  const std::string path = folder_->PathOf(id);
  const absl::StatusOr<v1::SessionSpec> spec = ReadSessionSpec(path);
  absl::StatusOr<SessionProcess> process = FindSession(path);
  if (absl::IsUnavailable(process.status())) {
    AdoptLater(id, spec);
    return;
  }
  being_adopted_.erase(id);
  if (spec.ok()) {
    TakeOver(*spec, *std::move(process));
  } else if (process.ok() && process->pidfd.valid()) {
    Log(LogLevel::kWarning, absl::StrCat(spec.status().message(), "; leaving process ",
                                         process->pid, ", whose order it was, alone"));
  } else {
    ledger_->Free(id);
    RemoveSessionFolder(path);  // It was not started: what is there before that is its spec.
  }
  StopIfDone();
}

// Its slots are taken until it is known what has become of it: nobody else may get its devices.
void DaemonRun::AdoptLater(const std::string& id, const absl::StatusOr<v1::SessionSpec>& spec) {
  if (being_adopted_.insert(id).second && spec.ok() && !spec->has_head()) {
    ledger_->Restore(id, Printable(spec->title()), spec->workers(), DevicesOf(*spec));
  }
  loop_.At(MonoNow() + kAdoptPause, [this, id] {
    if (being_adopted_.contains(id)) {
      AdoptOne(id);
    }
  });
}

// Nothing is read of it that this release, or this machine, might take otherwise than the last
// daemon did.
void DaemonRun::TakeOver(const v1::SessionSpec& spec, SessionProcess process) {
  const std::string& id = spec.id();
  Session& session = Keep(spec, std::move(process));
  session.devices = DevicesOf(spec);
  if (!spec.has_head()) {
    ledger_->Restore(id, session.title, spec.workers(), session.devices);
  }
  if (!session.process->is_running() && !Revive(session)) {
    OnSessionEnd(session);
  }
  if (is_ending_) {
    session.life.Stop(MonoNow());
  }
  Tend(id);
}

}  // namespace fsdprun
