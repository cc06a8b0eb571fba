#include "launcher/standby/handover.h"

#include <sys/mman.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/error_text.h"
#include "base/status_macros.h"
#include "base/write_all.h"
#include "fsdprun/v1/standby.pb.h"

namespace fsdprun {
namespace {

/// The kernel passes no more at once (SCM_MAX_FD).
constexpr size_t kDescriptorsMax = 253;
/// A handover has a run id, a token and some addresses.
constexpr size_t kMessageBytesMax = size_t{1} << 16;

absl::Status Failed(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", ErrorText(errno)));
}

absl::Status Send(int socket, const v1::ToStandby& what, const std::vector<int>& descriptors) {
  std::string text = what.SerializeAsString();
  if (text.size() > kMessageBytesMax || descriptors.size() > kDescriptorsMax) {
    return absl::UnavailableError(absl::StrCat("too much to tell: ", text.size(), " bytes, ",
                                               descriptors.size(), " sockets"));
  }
  iovec piece{text.data(), text.size()};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  const size_t bytes = descriptors.size() * sizeof(int);
  std::vector<char> control(CMSG_SPACE(bytes));
  if (!descriptors.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(bytes);
    std::memcpy(CMSG_DATA(header), descriptors.data(), bytes);
  }
  ssize_t sent = 0;
  do {
    sent = ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  if (sent >= 0) {
    return absl::OkStatus();
  }
  return errno == EAGAIN ? absl::UnavailableError("it does not read") : Failed("send");
}

/// Some machines allow no other than one that nobody can run; older kernels do not know those.
UniqueFd FileInMemory(const char* name) {
  constexpr unsigned int kNotToBeRun = 8;  // MFD_NOEXEC_SEAL, which older headers do not have.
  const int file = ::memfd_create(name, MFD_CLOEXEC | kNotToBeRun);
  return UniqueFd(file >= 0 || errno != EINVAL ? file : ::memfd_create(name, MFD_CLOEXEC));
}

absl::StatusOr<UniqueFd> FileWith(absl::string_view text) {
  UniqueFd file = FileInMemory("fsdprun-record");
  if (!file.valid()) {
    return Failed("make a file in memory");
  }
  errno = WriteAll(file.get(), text);
  if (errno != 0) {
    return Failed("write to a file in memory");
  }
  return file;
}

absl::StatusOr<job::Record> ReadRecord(const UniqueFd& file, uint64_t bytes) {
  std::string text(bytes, '\0');
  for (size_t done = 0; done < text.size();) {
    const ssize_t n =
        ::pread(file.get(), text.data() + done, text.size() - done, static_cast<off_t>(done));
    if (n == 0 || (n < 0 && errno != EINTR)) {
      return Failed("read the job's record");
    }
    done += n > 0 ? static_cast<size_t>(n) : 0;
  }
  v1::JobRecord record;
  if (!record.ParseFromString(text)) {
    return absl::InvalidArgumentError("the job's record cannot be read");
  }
  return Decode(record);
}

absl::StatusOr<Handover> DecodeHandover(const v1::Handover& in) {
  Handover handover{.run_id = in.run_id(),
                    .token = in.token(),
                    .pid = static_cast<pid_t>(in.pid()),
                    .agent = Incarnation(in.agent()),
                    .claim = in.claim()};
  for (const v1::Handover::Endpoint& endpoint : in.endpoints()) {
    if (endpoint.port() > std::numeric_limits<uint16_t>::max()) {
      return absl::InvalidArgumentError(absl::StrCat("port ", endpoint.port()));
    }
    handover.endpoints.push_back({endpoint.address(), static_cast<uint16_t>(endpoint.port())});
  }
  return handover;
}

struct Message {
  v1::ToStandby what;
  std::vector<UniqueFd> descriptors;
};

std::vector<UniqueFd> DescriptorsOf(msghdr* message) {
  std::vector<UniqueFd> taken;
  for (cmsghdr* header = CMSG_FIRSTHDR(message); header != nullptr;
       header = CMSG_NXTHDR(message, header)) {
    if (header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
      std::vector<int> numbers((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
      std::memcpy(numbers.data(), CMSG_DATA(header), numbers.size() * sizeof(int));
      for (const int number : numbers) {
        taken.emplace_back(number);
      }
    }
  }
  return taken;
}

/// Nothing at the end.
absl::StatusOr<std::optional<Message>> Receive(int socket) {
  std::vector<char> piece(kMessageBytesMax);
  std::vector<char> control(CMSG_SPACE(kDescriptorsMax * sizeof(int)));
  iovec space{piece.data(), piece.size()};
  msghdr header{};
  header.msg_iov = &space;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  ssize_t n = 0;
  do {
    n = ::recvmsg(socket, &header, MSG_CMSG_CLOEXEC);
  } while (n < 0 && errno == EINTR);
  if (n <= 0) {
    return n == 0 ? absl::StatusOr<std::optional<Message>>(std::optional<Message>())
                  : Failed("read from the launcher");
  }
  Message message{{}, DescriptorsOf(&header)};
  if ((header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
    return absl::UnavailableError("read from the launcher: no room for its sockets");
  }
  if (!message.what.ParseFromArray(piece.data(), static_cast<int>(n))) {
    return absl::InvalidArgumentError("what the launcher has said cannot be read");
  }
  return std::optional<Message>(std::move(message));
}

}  // namespace

absl::StatusOr<HandoverSockets> MakeHandoverSockets() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    return Failed("make a socket");
  }
  return HandoverSockets{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

absl::Status SendHandover(int socket, const Handover& handover,
                          const std::vector<UniqueFd>& listeners) {
  v1::ToStandby message;
  v1::Handover& out = *message.mutable_handover();
  out.set_run_id(handover.run_id);
  out.set_token(handover.token);
  for (const NumericEndpoint& endpoint : handover.endpoints) {
    v1::Handover::Endpoint& each = *out.add_endpoints();
    each.set_address(endpoint.address);
    each.set_port(endpoint.port);
  }
  out.set_pid(handover.pid);
  out.set_agent(handover.agent.value());
  out.set_claim(handover.claim);
  std::vector<int> descriptors;
  std::transform(listeners.begin(), listeners.end(), std::back_inserter(descriptors),
                 [](const UniqueFd& fd) { return fd.get(); });
  return Send(socket, message, descriptors);
}

absl::Status SendRecord(int socket, const job::Record& record, const JournaledJob& job) {
  const std::string text = Encode(record, job).SerializeAsString();
  ASSIGN_OR_RETURN(const UniqueFd file, FileWith(text));
  v1::ToStandby message;
  message.set_record_bytes(text.size());
  return Send(socket, message, {file.get()});
}

absl::StatusOr<Inheritance> ReadInheritance(int socket) {
  Inheritance inheritance;
  UniqueFd latest;
  uint64_t bytes = 0;
  while (true) {
    ASSIGN_OR_RETURN(std::optional<Message> message, Receive(socket));
    if (!message.has_value()) {
      break;
    }
    if (message->what.has_handover()) {
      ASSIGN_OR_RETURN(inheritance.handover, DecodeHandover(message->what.handover()));
      std::move(message->descriptors.begin(), message->descriptors.end(),
                std::back_inserter(inheritance.listeners));
    } else if (message->descriptors.size() == 1) {
      latest = std::move(message->descriptors.front());
      bytes = message->what.record_bytes();
    }
  }
  if (latest.valid()) {
    ASSIGN_OR_RETURN(inheritance.record, ReadRecord(latest, bytes));
  }
  return inheritance;
}

}  // namespace fsdprun
