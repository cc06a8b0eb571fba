#include "launcher/run/attach_run.h"

#include <csignal>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "launcher/directory/host_lookup.h"
#include "launcher/run/session_order.h"
#include "launcher/run/tls_setup.h"

namespace fsdprun {
namespace {

constexpr Duration kAttachLookupTimeout = std::chrono::seconds(10);
/// How long a stalled reader of our output may delay the exit.
constexpr Duration kAttachDrainTimeout = std::chrono::seconds(60);

}  // namespace

// Any other signal ends this process, and not the job.
AttachRun::AttachRun(const LaunchPlan& plan, const Environment& environment,
                     std::vector<std::string> arguments)
    : plan_(plan),
      environment_(environment),
      arguments_(std::move(arguments)),
      daemon_(plan_.detaches ? plan_.agents.front().daemon : plan_.attached_daemon),
      signals_(loop_, {{SIGINT, SIGTERM}, [this](int signal) { OnSignal(signal); }},
               {{}, [](int) {}}),
      output_(loop_, CliProgram::kFsdprun, plan_, environment_) {}

AttachRun::~AttachRun() = default;

int AttachRun::Run() {
  output_.OnRoom([this] {
    if (session_ != nullptr) {
      session_->Resume();
    }
  });
  if (const absl::Status status = Start(); !status.ok()) {
    output_.Print(status.message());
  } else {
    loop_.Run();
  }
  output_.console().Close(MonoNow() + kAttachDrainTimeout);
  return code_;
}

absl::Status AttachRun::Start() {
  for (const std::string& warning : plan_.warnings) {
    Log(LogLevel::kWarning, warning);
  }
  ASSIGN_OR_RETURN(const std::string token, DaemonToken(plan_, environment_));
  ASSIGN_OR_RETURN(const std::shared_ptr<const Tls> tls, MakeTls(plan_));
  RETURN_IF_ERROR(Find());
  std::vector<std::string> targets;
  for (const std::string& address : *addresses_) {
    targets.push_back(ToString(HostPort{address, daemon_.port}));
  }
  spec_ = Spec();
  session_ = std::make_unique<RemoteSession>(
      loop_,
      DaemonCall::Options{.target = "", .token = token, .tls = tls, .tls_name = daemon_.host},
      std::move(targets), plan_.detaches ? RemoteSession::Kind::kRun : RemoteSession::Kind::kFollow,
      spec_, MakeHooks());
  session_->Start();
  return absl::OkStatus();
}

// A signal ends the wait.
absl::Status AttachRun::Find() {
  const auto found = std::make_shared<absl::StatusOr<std::vector<std::string>>>(addresses_);
  lookup_.Run(
      [found, host = daemon_.host] {
        *found = LookUpHost(host, {.deadline = MonoNow() + kAttachLookupTimeout});
      },
      [this, found] {
        addresses_ = *found;
        loop_.Stop();
      });
  loop_.Run();
  return addresses_.status();
}

v1::SessionSpec AttachRun::Spec() const {
  v1::SessionSpec spec;
  if (!plan_.detaches) {
    spec.set_id(plan_.attached_session);
    return spec;
  }
  spec = OrderOf(plan_, environment_, arguments_);
  for (const AgentHost& host : plan_.agents) {
    v1::AgentAddress& agent = *spec.mutable_head()->add_agents();
    agent.set_daemon(ToString(host.daemon));
    agent.set_workers(host.workers);
  }
  return spec;
}

RemoteSession::Hooks AttachRun::MakeHooks() {
  const std::string where = ToString(daemon_);
  RemoteSession::Hooks hooks;
  // Until a job is detached, what it prints is no result.
  hooks.on_lines = [this](ConsoleStream stream, absl::string_view lines) {
    output_.console().WriteLines(plan_.detaches ? ConsoleStream::kError : stream, lines);
  };
  hooks.has_room = [this](ConsoleStream stream) {
    return output_.console().HasRoom(plan_.detaches ? ConsoleStream::kError : stream);
  };
  hooks.on_refused = [this, where](const absl::Status& why) {
    Fail(absl::StrCat("the daemon at ", where, ": ", why.message()));
  };
  hooks.on_lost = [this, where](const absl::Status& why) {
    Fail(absl::StrCat("the daemon at ", where, " knows no more of the job: ", why.message()));
  };
  hooks.on_trouble = [this, where](const absl::Status& why) {
    output_.Print(absl::StrCat("the daemon at ", where, " cannot be reached (", why.message(),
                               "); the job goes on, and is followed when it is back"));
  };
  hooks.on_started = [this] { OnStarted(); };
  hooks.on_end = [this](int code) { End(code); };
  hooks.on_released = [this] { End(1); };
  return hooks;
}

void AttachRun::OnStarted() {
  if (!plan_.detaches) {
    return;
  }
  output_.console().WriteLines(ConsoleStream::kOut,
                               absl::StrCat(ToString(daemon_), "/", spec_.id(), "\n"));
  // It must not be left inside of its hook.
  loop_.Post([this] {
    session_->Leave();
    End(0);
  });
}

void AttachRun::OnSignal(int signal) {
  if (session_ == nullptr) {
    loop_.Stop();
  } else if (session_->is_running()) {
    session_->Signal(signal);
  } else {
    session_->Release();
  }
}

void AttachRun::End(int code) {
  code_ = code;
  loop_.Stop();
}

void AttachRun::Fail(const std::string& why) {
  output_.Print(why);
  End(1);
}

}  // namespace fsdprun
