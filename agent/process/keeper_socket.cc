#include "agent/process/keeper_socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "agent/process/keeper_protocol.h"
#include "base/error_text.h"
#include "base/status_macros.h"

namespace fsdprun {
namespace {

constexpr int kBacklog = 8;
/// While it has an agent.
constexpr std::chrono::milliseconds kAskAgain{20};

/// The folder is reached through a descriptor, because a socket's address has 107 bytes at most.
struct Address {
  UniqueFd folder;
  sockaddr_un name{};
};

absl::StatusOr<Address> AddressOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  Address address{
      .folder = UniqueFd(::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW))};
  if (!address.folder.valid()) {
    const int error = errno;
    const std::string text = absl::StrCat("open ", folder, ": ", ErrorText(error));
    return error == EMFILE || error == ENFILE ? absl::UnavailableError(text)
                                              : absl::NotFoundError(text);
  }
  address.name.sun_family = AF_UNIX;
  const std::string name = absl::StrCat("/proc/self/fd/", address.folder.get(), "/",
                                        path.substr(slash == std::string::npos ? 0 : slash + 1));
  if (name.size() >= sizeof(address.name.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": its last part is too long"));
  }
  std::memcpy(address.name.sun_path, name.c_str(), name.size() + 1);
  return address;
}

absl::StatusOr<UniqueFd> Connect(const std::string& path) {
  ASSIGN_OR_RETURN(const Address address, AddressOf(path));
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid() || ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address.name),
                               sizeof(address.name)) != 0) {
    const int error = errno;
    const std::string text =
        absl::StrCat("connect to the keeper at ", path, ": ", ErrorText(error));
    return error == ENOENT || error == ECONNREFUSED ? absl::NotFoundError(text)
                                                    : absl::UnavailableError(text);
  }
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (::getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 ||
      peer.uid != ::geteuid()) {
    return absl::NotFoundError(absl::StrCat(path, ": who listens there is another user's"));
  }
  return fd;
}

absl::Status SendAll(int fd, const std::string& frames) {
  return ::send(fd, frames.data(), frames.size(), MSG_NOSIGNAL) ==
                 static_cast<ssize_t>(frames.size())
             ? absl::OkStatus()
             : absl::UnavailableError(absl::StrCat("write to the keeper: ", ErrorText(errno)));
}

/// Removes the frame from `incoming` once it is there.
absl::StatusOr<keeper::Report> ReadReport(int fd, MonoTime deadline, std::string& incoming) {
  for (;;) {
    std::string_view frame;
    const auto state = keeper::NextFrame(incoming, keeper::kMaxReportBytes, frame);
    if (state != keeper::FrameState::kIncomplete) {
      const auto report =
          state == keeper::FrameState::kComplete ? keeper::DecodeReport(frame) : std::nullopt;
      incoming.erase(0, keeper::kFrameHeaderBytes + frame.size());
      return report ? absl::StatusOr<keeper::Report>(*report)
                    : absl::FailedPreconditionError("it sent a frame that cannot be decoded");
    }
    pollfd ready{.fd = fd, .events = POLLIN, .revents = 0};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - MonoNow()).count();
    if (::poll(&ready, 1, static_cast<int>(std::max<int64_t>(left, 0))) == 0) {
      return absl::UnavailableError("it does not answer");
    }
    char buffer[4096];
    const ssize_t got = ::recv(fd, buffer, sizeof(buffer), MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {
      return absl::AbortedError("it has an agent, or is ending");
    }
    incoming.append(buffer, got > 0 ? static_cast<size_t>(got) : 0);
  }
}

/// Has it take this process for its agent.
absl::Status Greet(MonoTime deadline, AttachedKeeper* keeper) {
  std::string attach;
  keeper::AppendCommand(keeper::AttachCommand{}, attach);
  RETURN_IF_ERROR(SendAll(keeper->socket.get(), attach));
  ASSIGN_OR_RETURN(const keeper::Report first,
                   ReadReport(keeper->socket.get(), deadline, keeper->incoming));
  const auto* hello = std::get_if<keeper::HelloReport>(&first);
  if (hello == nullptr) {
    return absl::FailedPreconditionError("its first word is no hello");
  }
  keeper->pid = hello->pid;
  keeper->pidfd = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, keeper->pid, 0)));
  if (!keeper->pidfd.valid()) {
    return absl::UnavailableError(absl::StrCat("watch the keeper: ", ErrorText(errno)));
  }
  if (hello->version != keeper::kProtocolVersion) {
    ::syscall(SYS_pidfd_send_signal, keeper->pidfd.get(), SIGKILL, nullptr, 0);
    return absl::FailedPreconditionError(
        absl::StrCat("the keeper of this session speaks version ", hello->version,
                     " of the protocol, and this program version ", keeper::kProtocolVersion,
                     ": it was of another build, and was killed with its workers"));
  }
  ASSIGN_OR_RETURN(keeper::Report second,
                   ReadReport(keeper->socket.get(), deadline, keeper->incoming));
  auto* memo = std::get_if<keeper::MemoReport>(&second);
  if (memo == nullptr) {
    return absl::FailedPreconditionError("no memo follows its hello");
  }
  keeper->memo = std::move(memo->memo);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<UniqueFd> ListenForAgents(const std::string& path) {
  ASSIGN_OR_RETURN(const Address address, AddressOf(path));
  ::unlink(address.name.sun_path);
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  // Before it has a name: nobody may connect meanwhile.
  if (!fd.valid() || ::fchmod(fd.get(), 0600) != 0 ||
      ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address.name), sizeof(address.name)) !=
          0 ||
      ::chmod(address.name.sun_path, 0600) != 0 || ::listen(fd.get(), kBacklog) != 0) {
    return absl::InternalError(
        absl::StrCat("make the keeper's socket ", path, ": ", ErrorText(errno)));
  }
  return fd;
}

absl::StatusOr<AttachedKeeper> AttachToKeeper(const std::string& path, Duration limit) {
  const MonoTime deadline = MonoNow() + limit;
  AttachedKeeper keeper;
  absl::Status status = absl::AbortedError("not asked");
  while (absl::IsAborted(status)) {
    ASSIGN_OR_RETURN(keeper.socket, Connect(path));
    keeper.incoming.clear();
    status = Greet(deadline, &keeper);
    if (absl::IsAborted(status) && MonoNow() + 2 * kAskAgain >= deadline) {
      status = absl::UnavailableError(status.message());
    } else if (absl::IsAborted(status)) {
      ::poll(nullptr, 0, kAskAgain.count());
    }
  }
  if (!status.ok()) {
    // Nobody will ask again: if it has only been slow, its workers must not run on.
    std::string shutdown;
    keeper::AppendCommand(keeper::ShutdownCommand{}, shutdown);
    SendAll(keeper.socket.get(), shutdown).IgnoreError();
    return status;
  }
  return keeper;
}

bool HasKeeper(const std::string& path) { return Connect(path).ok(); }

absl::Status EndKeeper(const std::string& path) {
  const absl::StatusOr<UniqueFd> fd = Connect(path);
  if (!fd.ok()) {
    return absl::IsNotFound(fd.status()) ? absl::OkStatus() : fd.status();
  }
  std::string frames;
  keeper::AppendCommand(keeper::AttachCommand{}, frames);
  keeper::AppendCommand(keeper::ShutdownCommand{}, frames);
  SendAll(fd->get(), frames).IgnoreError();
  return absl::OkStatus();
}

}  // namespace fsdprun
