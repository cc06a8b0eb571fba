// The agent, and who would be its successor: see Note [A keeper that waits for its agent].
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>
#include <variant>

#include "agent/process/keeper.h"

namespace fsdprun::keeper {
namespace {

/// Capacity of the queue towards the agent. Output is not read from a worker while less than
/// kBulkRoom is free; only the rare reports (one per command or death), which are always queued,
/// and what a lost log writer leaves (at most LogQueue::kMaxBytes) can exceed it.
constexpr size_t kOutgoingBytes = 512u << 10;
constexpr size_t kBulkRoom = 64u << 10;
/// Of those who have connected and not said who they are.
constexpr size_t kMostVisitors = 4;
constexpr int64_t kVisitorLimitNs = 1'000'000'000;
/// Before another attempt to take one, after one that failed.
constexpr int64_t kAcceptPauseNs = 100'000'000;
/// Of the first frame of a visitor.
constexpr uint32_t kMaxAttachBytes = 64;

bool IsOfThisUser(int fd) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  return ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == ::geteuid();
}

bool SaysShutdown(std::string_view said) {
  std::string_view frame;
  const auto command = NextFrame(said, kMaxAttachBytes, frame) == FrameState::kComplete
                           ? DecodeCommand(frame)
                           : std::nullopt;
  return command && std::holds_alternative<ShutdownCommand>(*command);
}

bool HasInput(int fd) {
  pollfd ready{.fd = fd, .events = POLLIN, .revents = 0};
  return ::poll(&ready, 1, 0) == 1;
}

}  // namespace

void Keeper::ReceiveCommands() {
  const ssize_t got = ::recv(agent_fd_, buffer_.get(), kReadBytes, MSG_DONTWAIT);
  if (got <= 0) {
    const bool is_transient = got < 0 && (errno == EAGAIN || errno == EINTR);
    return is_transient ? void() : LoseAgent();
  }
  lease_.Renew(NowNs(CLOCK_MONOTONIC));
  incoming_.append(buffer_.get(), static_cast<size_t>(got));
  ApplyCommands();
}

void Keeper::ApplyCommands() {
  std::string_view rest = incoming_;
  std::string_view frame;
  while (agent_fd_ >= 0) {
    const FrameState state = NextFrame(rest, kMaxCommandBytes, frame);
    if (state == FrameState::kIncomplete) {
      break;
    }
    const auto command = state == FrameState::kComplete ? DecodeCommand(frame) : std::nullopt;
    if (!command) {
      // Acting on a partly understood command is worse than stopping.
      Say("fsdp-keeper: cannot decode a command of the agent; killing the workers. Install "
          "fsdprun, "
          "fsdp-agent and fsdp-keeper from one build\n");
      exit_status_ = 1;
      return End();
    }
    rest.remove_prefix(kFrameHeaderBytes + frame.size());
    std::visit([this](const auto& c) { Apply(c); }, *command);
  }
  incoming_.erase(0, incoming_.size() - rest.size());
}

/// Its end of the socket is closed.
void Keeper::LoseAgent() {
  if (is_ending_ || named_.listener < 0) {
    return End();
  }
  CloseFd(agent_fd_);
  incoming_.clear();
  sent_ = 0;
  await_until_ns_ = NowNs(CLOCK_MONOTONIC) + named_.grace_ns;
}

/// There is no agent any more, nor will there be one.
void Keeper::End() {
  was_abandoned_ = was_abandoned_ || !is_ending_;
  CloseFd(agent_fd_);
  CloseFd(named_.listener);
  await_until_ns_ = LogQueue::kNever;
  outgoing_.clear();
  sent_ = 0;
  Apply(ShutdownCommand{});
}

/// What has come is read first: it may have come in time, if this process was stopped.
void Keeper::CheckAgent() {
  const int64_t now = NowNs(CLOCK_MONOTONIC);
  if (agent_fd_ >= 0 && lease_.Observe(now)) {
    EndLease();
  } else if (agent_fd_ < 0 && now >= await_until_ns_) {
    AcceptVisitors();
    for (const Visitor& visitor : std::vector<Visitor>(visitors_)) {
      HearVisitor(visitor.fd);
    }
    if (agent_fd_ < 0) {
      Say("fsdp-keeper: no other agent has come in the place of the one that is gone; killing the "
          "workers of this node\n");
      End();
    }
  }
  while (!visitors_.empty() && now >= visitors_.front().deadline_ns) {
    Dismiss(visitors_.front().fd);
  }
}

/// The agent is stopped: its coordinator may have replaced this node, so the workers must go.
void Keeper::EndLease() {
  Say("fsdp-keeper: the launcher or agent has been stopped for too long; killing the workers of "
      "this node\n");
  exit_status_ = kExitLeaseOver;
  End();
}

/// Unless standard error is full: the workers must be killed whether or not anybody reads.
void Keeper::Say(std::string_view line) {
  pollfd ready{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
  if (::poll(&ready, 1, 0) == 1 && (ready.revents & POLLOUT) != 0) {
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
  }
}

void Keeper::Tell(const Report& report) {
  if (named_.listener >= 0) {
    record_.Note(report);
  }
  AppendReport(report, outgoing_);
}

/// Frames stay until all of them is sent: what the next agent is told begins with a whole one.
void Keeper::Flush() {
  if (agent_fd_ < 0) {
    if (is_ending_) {
      outgoing_.clear();
    }
    return;
  }
  while (sent_ < outgoing_.size()) {
    const ssize_t n = ::send(agent_fd_, outgoing_.data() + sent_, outgoing_.size() - sent_,
                             MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0) {
      break;  // If it is gone, what it has said last is read before its end.
    }
    sent_ += static_cast<size_t>(n);
  }
  size_t whole = 0;
  std::string_view frame;
  while (NextFrame(std::string_view(outgoing_).substr(whole), kMaxReportBytes, frame) ==
             FrameState::kComplete &&
         whole + kFrameHeaderBytes + frame.size() <= sent_) {
    whole += kFrameHeaderBytes + frame.size();
  }
  outgoing_.erase(0, whole);
  sent_ -= whole;
}

bool Keeper::HasBulkRoom() const {
  return (is_ending_ && agent_fd_ < 0) || outgoing_.size() + kBulkRoom <= kOutgoingBytes;
}

// --- The named socket

void Keeper::AcceptVisitors() {
  while (named_.listener >= 0) {
    int fd = ::accept4(named_.listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {  // Out of descriptors: the socket stays readable.
      const bool is_empty = errno == EAGAIN || errno == EINTR || errno == ECONNABORTED;
      accept_again_ns_ = is_empty ? 0 : NowNs(CLOCK_MONOTONIC) + kAcceptPauseNs;
      return;
    }
    if (!IsOfThisUser(fd)) {
      CloseFd(fd);
      continue;
    }
    if (visitors_.size() == kMostVisitors) {
      Dismiss(visitors_.front().fd);
    }
    visitors_.push_back({.fd = fd, .deadline_ns = NowNs(CLOCK_MONOTONIC) + kVisitorLimitNs});
  }
}

void Keeper::HearVisitor(int fd) {
  const auto visitor = std::find_if(visitors_.begin(), visitors_.end(),
                                    [fd](const Visitor& v) { return v.fd == fd; });
  if (visitor == visitors_.end()) {
    return;
  }
  const ssize_t got = ::recv(fd, buffer_.get(), kReadBytes, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
    return;
  }
  visitor->said.append(buffer_.get(), got > 0 ? static_cast<size_t>(got) : 0);
  std::string_view frame;
  const FrameState state = NextFrame(visitor->said, kMaxAttachBytes, frame);
  if (got > 0 && state == FrameState::kIncomplete) {
    return;
  }
  const auto command = state == FrameState::kComplete ? DecodeCommand(frame) : std::nullopt;
  const auto* attach = command ? std::get_if<AttachCommand>(&*command) : nullptr;
  // An agent that has just died may have left orders, and its end has to be seen.
  while (attach != nullptr && agent_fd_ >= 0 && HasInput(agent_fd_)) {
    ReceiveCommands();
  }
  if (attach == nullptr || agent_fd_ >= 0 || is_ending_) {
    return Dismiss(fd);
  }
  const std::string rest = visitor->said.substr(kFrameHeaderBytes + frame.size());
  if (SaysShutdown(rest)) {  // It is no agent, and nobody takes over what the last one has left.
    Dismiss(fd);
    return End();
  }
  visitors_.erase(visitor);
  Attach(fd, rest);
}

/// An agent of another build learns from the hello that it cannot speak to this keeper.
void Keeper::Attach(int fd, const std::string& said) {
  agent_fd_ = fd;
  is_owner_known_ = false;
  await_until_ns_ = LogQueue::kNever;
  lease_.Renew(NowNs(CLOCK_MONOTONIC));
  outgoing_ = record_.Tell(self_, outgoing_);
  sent_ = 0;
  incoming_ = said;
  ApplyCommands();
}

void Keeper::Dismiss(int fd) {
  std::erase_if(visitors_, [fd](const Visitor& visitor) { return visitor.fd == fd; });
  CloseFd(fd);
}

int64_t Keeper::VisitorDeadlineNs() const {
  return visitors_.empty() ? LogQueue::kNever : visitors_.front().deadline_ns;
}

void Keeper::Apply(const AttachCommand&) {}

/// Who leaves one owns the spool, too.
void Keeper::Apply(const MemoCommand& command) {
  record_.Memo(command.memo);
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (!std::exchange(is_owner_known_, true) &&
      ::getsockopt(agent_fd_, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0) {
    CloseFd(owner_);
    owner_ = static_cast<int>(::syscall(SYS_pidfd_open, peer.pid, 0));
  }
}

void Keeper::Apply(const ShownCommand& command) { record_.Shown(command); }

}  // namespace fsdprun::keeper
