#include "agent/process/keeper_client.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/process/orphans.h"
#include "base/check.h"
#include "base/error_text.h"
#include "base/status_macros.h"

extern char** environ;

namespace fsdprun {
namespace {

constexpr int kKeeperSocketFd = 3;
constexpr int kKeeperListenerFd = 4;
constexpr int kKeeperHeldFd = 5;
/// How often a lease is renewed before it ends.
constexpr int kLeaseRenewals = 7;

/// What a keeper is given.
struct KeeperStart {
  std::string path;
  std::string spool;
  std::string vitals;
  int socket_fd = -1;
  /// -1: none.
  int listener_fd = -1;
  /// With a listener only; -1: none.
  int held_fd = -1;
  Duration grace{};
};

/// Not with a number that the keeper's own descriptors have.
absl::StatusOr<UniqueFd> MoveAway(int fd) {
  UniqueFd moved(::fcntl(fd, F_DUPFD_CLOEXEC, kKeeperHeldFd + 1));
  if (!moved.valid()) {
    return absl::UnavailableError(
        absl::StrCat("prepare the keeper's descriptors: ", ErrorText(errno)));
  }
  return moved;
}

/// Workers must not inherit descriptors that our own parent left open.
void AddDescriptors(const KeeperStart& start, posix_spawn_file_actions_t* actions) {
  int last = kKeeperSocketFd;
  posix_spawn_file_actions_adddup2(actions, start.socket_fd, kKeeperSocketFd);
  if (start.listener_fd >= 0) {
    last = kKeeperListenerFd;
    posix_spawn_file_actions_adddup2(actions, start.listener_fd, kKeeperListenerFd);
  }
  if (start.listener_fd >= 0 && start.held_fd >= 0) {
    last = kKeeperHeldFd;
    posix_spawn_file_actions_adddup2(actions, start.held_fd, kKeeperHeldFd);
  }
  posix_spawn_file_actions_addclosefrom_np(actions, last + 1);
}

/// Starts the keeper in a session of its own with every signal blocked, so that a Ctrl-C during its
/// first instructions cannot reach it. Returns an errno.
int SpawnKeeper(KeeperStart start, pid_t& pid) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  AddDescriptors(start, &actions);
  sigset_t all;
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &all);
  sigset_t child;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  posix_spawnattr_setsigdefault(&attributes, &child);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSID);
  char name[] = "fsdp-keeper";
  std::string grace =
      std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(start.grace).count());
  char* argv[] = {name, start.spool.data(), grace.data(), start.vitals.data(), nullptr};
  const int error = ::posix_spawn(&pid, start.path.c_str(), &actions, &attributes, argv, environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  return error;
}

absl::Status SpawnError(const std::string& path, int error) {
  const std::string text = absl::StrCat("start ", path, ": ", ErrorText(error));
  if (error == ENOENT) {
    return absl::NotFoundError(absl::StrCat(text, "; install fsdp-keeper beside fsdprun"));
  }
  if (error == EACCES) {
    return absl::PermissionDeniedError(
        absl::StrCat(text, "; make it executable (and its file system not noexec)"));
  }
  return absl::InternalError(text);
}

/// Path of the running program; empty, with errno set, if /proc cannot be read.
std::string OwnPath() {
  char self[4096];
  const ssize_t size = ::readlink("/proc/self/exe", self, sizeof(self));
  return size <= 0 ? std::string() : std::string(self, static_cast<size_t>(size));
}

}  // namespace

KeeperClient::KeeperClient(EventLoop& loop, KeeperCallbacks callbacks, Duration hello_limit)
    : loop_(loop), callbacks_(std::move(callbacks)), hello_limit_(hello_limit) {}

KeeperClient::~KeeperClient() {
  *is_live_ = false;
  loop_.Cancel(sweep_timer_);
  loop_.Cancel(hello_timer_);
  loop_.Cancel(lease_timer_);
  if (pidfd_.valid()) {
    loop_.Unwatch(pidfd_.get());
  }
  if (is_named_) {
    Shutdown();
  }
  CloseSocket();  // The keeper reads its order or end of file, and kills everything.
  if (!has_ended()) {
    ::waitpid(pid_, nullptr, WNOHANG);
  }
}

absl::StatusOr<UniqueFd> KeeperClient::OpenSocket(const KeeperSocket& socket) {
  is_named_ = !socket.path.empty();
  if (!is_named_) {
    return UniqueFd();
  }
  ASSIGN_OR_RETURN(const UniqueFd listener, ListenForAgents(socket.path));
  return MoveAway(listener.get());
}

absl::Status KeeperClient::Start(const std::string& keeper_path, const KeeperLeavings& leavings,
                                 const KeeperSocket& socket) {
  FSDPRUN_CHECK(pid_ == 0, "a client starts one keeper");
  BecomeSubreaper();
  foreign_children_ = ListChildren();
  ASSIGN_OR_RETURN(const UniqueFd listener, OpenSocket(socket));
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return absl::InternalError(absl::StrCat("create the keeper's socket: ", ErrorText(errno)));
  }
  socket_.reset(ends[0]);
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  const UniqueFd keeper_end(ends[1]);
  UniqueFd held;
  absl::StatusOr<UniqueFd> moved_end = MoveAway(keeper_end.get());
  if (moved_end.ok() && socket.held_fd >= 0) {
    absl::StatusOr<UniqueFd> moved = MoveAway(socket.held_fd);
    moved_end = moved.ok() ? std::move(moved_end) : moved.status();
    held = moved.ok() ? *std::move(moved) : UniqueFd();
  }
  if (!moved_end.ok()) {
    socket_.reset();
    return moved_end.status();
  }
  if (const int error = SpawnKeeper({.path = keeper_path,
                                     .spool = leavings.spool,
                                     .vitals = leavings.vitals,
                                     .socket_fd = moved_end->get(),
                                     .listener_fd = listener.get(),
                                     .held_fd = held.get(),
                                     .grace = socket.grace},
                                    pid_);
      error != 0) {
    socket_.reset();
    pid_ = 0;
    return SpawnError(keeper_path, error);
  }
  pidfd_.reset(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
  if (!pidfd_.valid()) {
    const int error = errno;
    socket_.reset();
    const pid_t pid = std::exchange(pid_, 0);
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);  // It has just started and has no children: it dies at once.
    return absl::InternalError(
        absl::StrCat("watch the keeper (pid ", pid, "): ", ErrorText(error)));
  }
  path_ = keeper_path;
  loop_.Watch(socket_.get(), EPOLLIN, [this](uint32_t events) { OnSocket(events); });
  hello_timer_ = loop_.At(MonoNow() + hello_limit_, [this] { OnHelloLate(); });
  return absl::OkStatus();
}

void KeeperClient::Adopt(AttachedKeeper keeper) {
  FSDPRUN_CHECK(pid_ == 0, "a client has one keeper");
  BecomeSubreaper();
  foreign_children_ = ListChildren();
  is_named_ = true;
  is_adopted_ = true;
  socket_ = std::move(keeper.socket);
  pidfd_ = std::move(keeper.pidfd);
  pid_ = keeper.pid;
  path_ = absl::StrCat("of process ", keeper.pid);
  incoming_ = std::move(keeper.incoming);
  loop_.Watch(socket_.get(), EPOLLIN, [this](uint32_t events) { OnSocket(events); });
  loop_.Post([this, is_live = is_live_] {
    if (*is_live && is_alive() && !ReadFrames() && *is_live) {
      Lose("the keeper sent a frame that cannot be decoded");
    }
  });
}

/// The hello may have come in time, if this process was stopped meanwhile.
void KeeperClient::OnHelloLate() {
  const std::shared_ptr<bool> is_live = is_live_;
  OnSocket(EPOLLIN);
  if (*is_live && is_alive() && hello_timer_ != 0) {
    hello_timer_ = 0;
    Lose(absl::StrCat("the keeper ", path_, " (pid ", pid_, ") has not answered within ",
                      ToSeconds(hello_limit_), " s; does its file system hang?"));
  }
}

void KeeperClient::HoldLease(Duration lease) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(lease).count();
  std::string frame;
  keeper::AppendCommand(keeper::LeaseCommand{static_cast<uint32_t>(ms)}, frame);
  Send(frame);
  loop_.Cancel(lease_timer_);
  lease_timer_ = loop_.At(MonoNow() + lease / kLeaseRenewals, [this, lease] { HoldLease(lease); });
}

absl::Status KeeperClient::Spawn(const WorkerSpec& spec) {
  if (spec.argv.empty() || spec.argv.front().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("start worker ", spec.local_rank, ": no program is given"));
  }
  if (!is_alive()) {
    return absl::UnavailableError(
        absl::StrCat("start worker ", spec.local_rank, ": the keeper is gone"));
  }
  keeper::SpawnCommand command{.local_rank = spec.local_rank, .argv = spec.argv};
  for (const auto& [name, value] : spec.environment) {
    command.environment.push_back(absl::StrCat(name, "=", value));
  }
  command.stdout_path = spec.stdout_path;
  command.stderr_path = spec.stderr_path;
  command.opens_stdout_late = spec.opens_stdout_late;
  command.opens_stderr_late = spec.opens_stderr_late;
  command.wants_control_fd = spec.wants_control_fd;
  command.descriptor_limit = spec.descriptor_limit;
  command.cpus.assign(spec.cpus.begin(), spec.cpus.end());
  command.reads_stdin = spec.reads_stdin;
  command.life = spec.life;
  std::string frame;
  keeper::AppendCommand(command, frame);
  const std::string_view content = std::string_view(frame).substr(keeper::kFrameHeaderBytes);
  if (content.size() > keeper::kMaxCommandBytes || !keeper::DecodeCommand(content)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "start worker ", spec.local_rank, ": arguments and environment take ", content.size(),
        " bytes (at most ", keeper::kMaxCommandBytes,
        "), hold a zero byte, or the local rank is not in 0..", keeper::kMaxLocalRank));
  }
  Send(frame);
  return absl::OkStatus();
}

void KeeperClient::Signal(int local_rank, int signal, bool group, uint64_t life) {
  std::string frame;
  keeper::AppendCommand(keeper::SignalCommand{local_rank, signal, group, life}, frame);
  Send(frame);
}

void KeeperClient::SignalProcess(const ProcessInfo& process, int signal) {
  std::string frame;
  keeper::AppendCommand(keeper::SignalProcessCommand{process.pid, process.start_time_ticks, signal},
                        frame);
  Send(frame);
}

void KeeperClient::KillAll(uint64_t life) {
  std::string frame;
  keeper::AppendCommand(keeper::KillAllCommand{life}, frame);
  Send(frame);
}

void KeeperClient::SendControl(int local_rank, const std::string& line, uint64_t life) {
  std::string frame;
  keeper::AppendCommand(keeper::ControlLineCommand{local_rank, line, life}, frame);
  Send(frame);
}

bool KeeperClient::LeaveMemo(const std::string& memo) {
  std::string frame;
  keeper::AppendCommand(keeper::MemoCommand{memo}, frame);
  const bool fits = memo.size() <= keeper::kMaxMemoBytes;
  if (fits) {
    Send(frame);
  }
  return fits;
}

void KeeperClient::NoteShown(int local_rank, keeper::Stream stream, uint64_t offset,
                             uint64_t life) {
  std::string frame;
  keeper::AppendCommand(keeper::ShownCommand{local_rank, stream, offset, life}, frame);
  Send(frame);
}

void KeeperClient::Shutdown() {
  if (shutting_down_) {
    return;
  }
  std::string frame;
  keeper::AppendCommand(keeper::ShutdownCommand{}, frame);
  Send(frame);
  shutting_down_ = true;
}

void KeeperClient::Send(const std::string& frame) {
  if (!is_alive() || shutting_down_) {
    return;
  }
  outgoing_ += frame;
  if (Flush()) {
    loop_.Rewatch(socket_.get(), outgoing_.empty() ? EPOLLIN : EPOLLIN | EPOLLOUT);
  }
}

/// False when the stream is broken; the reading side then notices and reports it.
bool KeeperClient::Flush() {
  size_t sent = 0;
  while (sent < outgoing_.size()) {
    const ssize_t n =
        ::send(socket_.get(), outgoing_.data() + sent, outgoing_.size() - sent, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n < 0) {
      const bool is_full = errno == EAGAIN || errno == EWOULDBLOCK;
      outgoing_.erase(0, is_full ? sent : outgoing_.size());
      return is_full;
    }
    sent += static_cast<size_t>(n);
  }
  outgoing_.clear();
  return true;
}

void KeeperClient::OnSocket(uint32_t events) {
  if ((events & EPOLLOUT) != 0 && Flush()) {
    loop_.Rewatch(socket_.get(), outgoing_.empty() ? EPOLLIN : EPOLLIN | EPOLLOUT);
  }
  if ((events & ~static_cast<uint32_t>(EPOLLOUT)) == 0) {
    return;
  }
  char buffer[64 << 10];
  const ssize_t got = ::recv(socket_.get(), buffer, sizeof(buffer), 0);
  if (got > 0) {
    incoming_.append(buffer, static_cast<size_t>(got));
    const std::shared_ptr<bool> is_live = is_live_;
    if (!ReadFrames() && *is_live) {
      Lose("the keeper sent a frame that cannot be decoded");
    }
  } else if (got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
    Lose("");
  }
}

/// False when a frame cannot be decoded. Stops early, and returns true, when a frame ends the
/// connection or its callback destroys this object.
bool KeeperClient::ReadFrames() {
  const std::shared_ptr<bool> is_live = is_live_;
  size_t used = 0;
  for (;;) {
    std::string_view frame;
    const auto state =
        keeper::NextFrame(std::string_view(incoming_).substr(used), keeper::kMaxReportBytes, frame);
    if (state == keeper::FrameState::kIncomplete) {
      break;
    }
    const auto report =
        state == keeper::FrameState::kComplete ? keeper::DecodeReport(frame) : std::nullopt;
    if (!report) {
      return false;
    }
    used += keeper::kFrameHeaderBytes + frame.size();
    const auto* hello = std::get_if<keeper::HelloReport>(&*report);
    if (hello != nullptr && !AcceptHello(*hello)) {
      return true;
    }
    Dispatch(*report);
    if (!*is_live) {
      return true;
    }
  }
  incoming_.erase(0, used);
  return true;
}

/// False, after dropping the keeper, if it speaks another protocol version.
bool KeeperClient::AcceptHello(const keeper::HelloReport& hello) {
  loop_.Cancel(std::exchange(hello_timer_, 0));
  if (hello.version == keeper::kProtocolVersion) {
    return true;
  }
  Lose(absl::StrCat("the keeper ", path_, " speaks version ", hello.version, " of the protocol, ",
                    OwnPath(), " version ", keeper::kProtocolVersion,
                    "; install both from one build"));
  return false;
}

void KeeperClient::Dispatch(const keeper::Report& report) {
  const auto call_if_set = [](const auto& callback, const auto&... arguments) {
    if (callback) {
      callback(arguments...);
    }
  };
  using Call = decltype(call_if_set);
  struct Visitor {
    const KeeperCallbacks& on;
    const Call& call;
    std::set<pid_t>& log_writers;
    void operator()(const keeper::LogWriterReport& r) const { log_writers.insert(r.pid); }
    void operator()(const keeper::HelloReport& r) const { call(on.on_hello, r); }
    void operator()(const keeper::SpawnedReport& r) const { call(on.on_spawned, r); }
    void operator()(const keeper::SpawnFailedReport& r) const { call(on.on_spawn_failed, r); }
    void operator()(const keeper::ExitedReport& r) const { call(on.on_exited, r); }
    void operator()(const keeper::LogGrewReport& r) const { call(on.on_log_grew, r); }
    void operator()(const keeper::LogDataReport& r) const { call(on.on_log_data, r); }
    void operator()(const keeper::LogDegradedReport& r) const { call(on.on_log_degraded, r); }
    void operator()(const keeper::ControlRecordReport& r) const { call(on.on_control_record, r); }
    void operator()(const keeper::NoteReport& r) const { call(on.on_note, r); }
    void operator()(const keeper::ShownReport& r) const { call(on.on_shown_before, r); }
    void operator()(const keeper::MemoReport&) const {}
    void operator()(const keeper::AllGoneReport& r) const { call(on.on_all_gone, r); }
  };
  if (const auto* spawned = std::get_if<keeper::SpawnedReport>(&report)) {
    NoteWorker(*spawned);
  }
  std::visit(Visitor{callbacks_, call_if_set, log_writers_}, report);
}

void KeeperClient::CloseSocket() {
  if (socket_.valid()) {
    loop_.Unwatch(socket_.get());
    socket_.reset();
  }
}

absl::StatusOr<std::string> FindKeeperBinary() {
  const std::string program = OwnPath();
  if (program.empty()) {
    return absl::NotFoundError(
        absl::StrCat("read /proc/self/exe to find fsdp-keeper: ", ErrorText(errno)));
  }
  const std::string path = absl::StrCat(program.substr(0, program.rfind('/') + 1), "fsdp-keeper");
  if (::access(path.c_str(), X_OK) != 0) {
    return absl::NotFoundError(absl::StrCat("find ", path, ": ", ErrorText(errno),
                                            "; install fsdp-keeper in the same folder as fsdprun"));
  }
  return path;
}

}  // namespace fsdprun
