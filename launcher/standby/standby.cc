#include "launcher/standby/standby.h"

#include <signal.h>
#include <sys/epoll.h>
#include <sys/wait.h>

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/spawn.h"
#include "base/status_macros.h"

namespace fsdprun {
namespace {

/// How often in a row one may be started that does not live long.
constexpr int kStartsMax = 5;
constexpr Duration kLongLife = std::chrono::minutes(1);
constexpr Duration kRetryPause = std::chrono::milliseconds(100);

}  // namespace

Standby::Standby(EventLoop& loop, Options options)
    : loop_(loop), options_(std::move(options)), starts_left_(kStartsMax) {}

Standby::~Standby() {
  loop_.Cancel(retry_timer_);
  End();
}

void Standby::AddListener(UniqueFd listener) {
  if (!listener.valid()) {
    Log(LogLevel::kWarning,
        "the standby of this launcher's coordinator has one socket less: out of descriptors");
    return;
  }
  listeners_.push_back(std::move(listener));
  if (pid_ == 0) {
    return;  // The next one gets all.
  }
  std::vector<UniqueFd> added;
  added.push_back(std::move(listeners_.back()));
  const absl::Status sent = SendHandover(socket_.get(), options_.handover, added);
  listeners_.back() = std::move(added.back());
  if (!sent.ok()) {
    OnLost(absl::StrCat("cannot be told of a socket: ", sent.message()));
  }
}

void Standby::Keep(const job::Record& record) {
  latest_ = record;
  if (retry_timer_ == 0) {
    TellOfLatest();
  }
}

void Standby::TellOfLatest() {
  if (pid_ == 0 && starts_left_ == 0) {
    return;  // Which was said.
  }
  const absl::Status status =
      pid_ == 0 ? Start() : SendRecord(socket_.get(), latest_, options_.job);
  if (!status.ok()) {
    OnLost(status.message());
  }
}

/// It finds what it is told as soon as it runs.
absl::Status Standby::Start() {
  --starts_left_;
  ASSIGN_OR_RETURN(HandoverSockets sockets, MakeHandoverSockets());
  RETURN_IF_ERROR(SendHandover(sockets.launcher.get(), options_.handover, listeners_));
  RETURN_IF_ERROR(SendRecord(sockets.launcher.get(), latest_, options_.job));
  std::vector<std::string> command = options_.command;
  command.insert(command.begin() + 1, kStandbyOption);
  ASSIGN_OR_RETURN(pid_, SpawnDetached({.path = options_.path,
                                        .command = std::move(command),
                                        .environment = OwnEnvironment(),
                                        .descriptors = {{sockets.standby.get(), kStandbySocket}}}));
  started_at_ = MonoNow();
  socket_ = std::move(sockets.launcher);
  loop_.Watch(socket_.get(), EPOLLRDHUP,
              [this](uint32_t) { OnLost(absl::StrCat("pid ", pid_, " has ended")); });
  return absl::OkStatus();
}

void Standby::End() {
  if (pid_ != 0) {
    loop_.Unwatch(socket_.get());
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);  // It was killed, and has little to give back.
    pid_ = 0;
  }
  socket_.reset();
}

void Standby::OnLost(absl::string_view why) {
  if (pid_ != 0 && MonoNow() - started_at_ >= kLongLife) {
    starts_left_ = kStartsMax;
  }
  End();
  const bool is_last = starts_left_ == 0;
  Log(LogLevel::kWarning,
      absl::StrCat("the standby of this launcher's coordinator: ", why,
                   is_last ? "; no other is started: should the launcher die, the job ends with it"
                           : "; another one is started"));
  if (!is_last && retry_timer_ == 0) {
    retry_timer_ = loop_.At(MonoNow() + kRetryPause, [this] {
      retry_timer_ = 0;
      TellOfLatest();
    });
  }
}

}  // namespace fsdprun
