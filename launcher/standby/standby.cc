#include "launcher/standby/standby.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>

#include <cerrno>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_text.h"
#include "base/log.h"
#include "base/spawn.h"
#include "base/status_macros.h"

namespace fsdprun {
namespace {

/// As long as a journal may hold up the coordinator; shorter than a node's lease.
constexpr timeval kPatience{.tv_sec = 1, .tv_usec = 0};
constexpr int kStartsMax = 5;
constexpr Duration kRetryPause = std::chrono::milliseconds(100);

}  // namespace

Standby::Standby(EventLoop& loop, Options options)
    : loop_(loop), options_(std::move(options)), starts_left_(kStartsMax) {}

Standby::~Standby() {
  loop_.Cancel(retry_timer_);
  End();
}

void Standby::AddListener(const UniqueFd& listener) {
  std::vector<UniqueFd> added;
  added.emplace_back(::fcntl(listener.get(), F_DUPFD_CLOEXEC, 0));
  if (!added.back().valid()) {
    OnLost(absl::StrCat("cannot hold a socket: ", ErrorText(errno)));
    return;
  }
  if (pid_ != 0) {  // The next one gets all.
    const absl::Status sent = SendHandover(socket_.get(), options_.handover, added);
    if (!sent.ok()) {
      OnLost(absl::StrCat("cannot be told of a socket: ", sent.message()));
    }
  }
  listeners_.push_back(std::move(added.back()));
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
  absl::Status status = pid_ == 0 ? Start() : absl::OkStatus();
  if (status.ok()) {
    status = SendRecord(socket_.get(), latest_, options_.job);
  }
  if (!status.ok()) {
    OnLost(status.message());
  }
}

absl::Status Standby::Start() {
  --starts_left_;
  int ends[2] = {-1, -1};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return absl::UnavailableError(absl::StrCat("make a socket: ", ErrorText(errno)));
  }
  socket_ = UniqueFd(ends[0]);
  const UniqueFd theirs(ends[1]);
  ::setsockopt(socket_.get(), SOL_SOCKET, SO_SNDTIMEO, &kPatience, sizeof(kPatience));
  std::vector<std::string> command = options_.command;
  command.insert(command.begin() + 1, kStandbyOption);
  ASSIGN_OR_RETURN(pid_, SpawnDetached({.command = std::move(command),
                                        .environment = OwnEnvironment(),
                                        .descriptors = {{theirs.get(), kStandbySocket}}}));
  loop_.Watch(socket_.get(), EPOLLRDHUP,
              [this](uint32_t) { OnLost(absl::StrCat("pid ", pid_, " has ended")); });
  return SendHandover(socket_.get(), options_.handover, listeners_);
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
