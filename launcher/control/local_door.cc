#include "launcher/control/local_door.h"

#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/server_posix.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/rpc/grpc_lifetime.h"
#include "base/error_text.h"
#include "base/log.h"
#include "base/status_macros.h"

namespace fsdprun {
namespace {

constexpr int kBacklog = 16;

absl::StatusOr<UniqueFd> Listen(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return absl::UnavailableError(absl::StrCat("listen at ", path, ": the path is too long"));
  }
  std::copy(path.begin(), path.end(), address.sun_path);
  ::unlink(path.c_str());
  UniqueFd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener.valid() ||
      ::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      ::listen(listener.get(), kBacklog) != 0) {
    return absl::UnavailableError(absl::StrCat("listen at ", path, ": ", ErrorText(errno)));
  }
  return listener;
}

/// The folder keeps others out already; root gets in.
bool IsOfThisUser(const UniqueFd& connection) {
  ucred caller{};
  socklen_t size = sizeof(caller);
  return ::getsockopt(connection.get(), SOL_SOCKET, SO_PEERCRED, &caller, &size) == 0 &&
         (caller.uid == ::geteuid() || caller.uid == 0);
}

}  // namespace

absl::StatusOr<std::unique_ptr<LocalDoor>> LocalDoor::Open(EventLoop& loop,
                                                           const std::string& folder,
                                                           JobEntry entry, ControlDesk& desk) {
  ListJobs(folder);  // Those that were killed cannot remove what is theirs.
  entry.socket = absl::StrCat(folder, "/", JobFileName(entry.pid, entry.run_id), ".sock");
  ASSIGN_OR_RETURN(UniqueFd listener, Listen(entry.socket));
  ASSIGN_OR_RETURN(JobFile file, JobFile::Create(folder, entry));
  return std::unique_ptr<LocalDoor>(
      new LocalDoor(loop, std::move(listener), std::move(file), desk));
}

LocalDoor::LocalDoor(EventLoop& loop, UniqueFd listener, JobFile file, ControlDesk& desk)
    : loop_(loop), listener_(std::move(listener)), file_(std::move(file)), desk_(desk) {
  loop_.Watch(listener_.get(), EPOLLIN, [this](uint32_t) { Accept(); });
}

LocalDoor::~LocalDoor() {
  loop_.Unwatch(listener_.get());
  if (server_ != nullptr) {
    service_->End(absl::OkStatus());
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
  }
}

void LocalDoor::Accept() {
  UniqueFd connection(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!connection.valid() || !IsOfThisUser(connection) || !StartServer()) {
    return;
  }
  grpc::AddInsecureChannelFromFd(server_.get(), connection.release());
}

bool LocalDoor::StartServer() {
  if (server_ != nullptr) {
    return true;
  }
  BeginGrpc();
  service_ = desk_.MakeService(
      [](const grpc::CallbackServerContext& /*call*/) { return absl::OkStatus(); });
  grpc::ServerBuilder builder;
  builder.RegisterService(service_->service());
  server_ = builder.BuildAndStart();
  if (server_ == nullptr) {
    Log(LogLevel::kWarning, "gRPC could not start the service that answers fsdpctl here");
    service_.reset();
  }
  return server_ != nullptr;
}

}  // namespace fsdprun
