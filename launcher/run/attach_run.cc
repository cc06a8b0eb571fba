#include "launcher/run/attach_run.h"

#include <csignal>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "launcher/daemon/call_advice.h"
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
  return output_.Close(MonoNow() + kAttachDrainTimeout, code_);
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
  if (signal_ != 0 && !addresses_.ok()) {
    code_ = 128 + signal_;
    return absl::CancelledError(
        absl::StrCat("interrupted while looking up ", daemon_.host, ", the host of the daemon; ",
                     plan_.detaches ? "no job was started" : "the job was told nothing"));
  }
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
    Fail(absl::StrCat("the daemon at ", where, plan_.detaches ? " does not run the job: " : ": ",
                      WithAdvice(why)));
  };
  hooks.on_lost = [this, where](const absl::Status& why) {
    Fail(absl::StrCat("the daemon at ", where, " knows no more of the job: ", why.message()));
  };
  hooks.on_trouble = [this, where](const absl::Status& why) {
    output_.Print(absl::StrCat("the daemon at ", where, " cannot be reached (", why.message(),
                               "); the job goes on, and is followed when it is back; Ctrl-C ends "
                               "this program, and not the job"));
  };
  hooks.on_started = [this] { OnStarted(); };
  hooks.on_end = [this](int code) { End(code); };
  hooks.on_released = [this, where] {
    EndInterrupted(absl::StrCat("interrupted before the daemon at ", where,
                                " said that the job runs; if it runs all the same, fsdprun "
                                "--attach ",
                                JobId(), " finds it"));
  };
  return hooks;
}

void AttachRun::OnStarted() {
  if (!plan_.detaches) {
    return;
  }
  output_.console().WriteLines(ConsoleStream::kOut, absl::StrCat(JobId(), "\n"));
  // It must not be left inside of its hook.
  loop_.Post([this] {
    session_->Leave();
    End(0);
  });
}

// A signal is the job's, if anybody is there who passes it on.
void AttachRun::OnSignal(int signal) {
  const bool is_second = std::exchange(signal_, signal) != 0;
  if (session_ == nullptr) {
    loop_.Stop();
    return;
  }
  if (session_->Signal(signal) || session_->is_over()) {
    return;
  }
  const std::string where = ToString(daemon_);
  if (plan_.detaches && !session_->is_running() && !is_second) {
    session_->Release();
    if (!session_->is_over()) {
      output_.Print(
          absl::StrCat("interrupted; waiting for the answer of the daemon at ", where,
                       ", which may have started the job; a second Ctrl-C ends the wait"));
    }
    return;
  }
  const bool was_running = session_->is_running();
  session_->Leave();
  EndInterrupted(absl::StrCat("interrupted while the daemon at ", where,
                              was_running ? " could not be reached" : " had not answered",
                              ": the job was told nothing, and goes on if it runs; fsdprun "
                              "--attach ",
                              JobId(), " follows it"));
}

void AttachRun::EndInterrupted(const std::string& text) {
  output_.Print(text);
  End(128 + signal_);
}

std::string AttachRun::JobId() const { return absl::StrCat(ToString(daemon_), "/", spec_.id()); }

void AttachRun::End(int code) {
  code_ = code;
  loop_.Stop();
}

void AttachRun::Fail(const std::string& why) {
  output_.Print(why);
  End(1);
}

}  // namespace fsdprun
