#include "launcher/standby/handover.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_text.h"
#include "base/status_macros.h"
#include "fsdprun/v1/standby.pb.h"

namespace fsdprun {
namespace {

/// The kernel passes no more at once (SCM_MAX_FD).
constexpr size_t kDescriptorsMax = 253;
/// A record has some hundred bytes a node.
constexpr uint32_t kBytesMax = 1U << 30;

using Length = uint32_t;

absl::Status SendPiece(int socket, const char* data, size_t size,
                       const std::vector<UniqueFd>& descriptors, size_t* sent) {
  iovec piece{const_cast<char*>(data), size};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  std::vector<char> control;
  if (!descriptors.empty()) {
    std::vector<int> numbers;
    std::transform(descriptors.begin(), descriptors.end(), std::back_inserter(numbers),
                   [](const UniqueFd& fd) { return fd.get(); });
    control.resize(CMSG_SPACE(numbers.size() * sizeof(int)));
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(numbers.size() * sizeof(int));
    std::memcpy(CMSG_DATA(header), numbers.data(), numbers.size() * sizeof(int));
  }
  const ssize_t n = ::sendmsg(socket, &message, MSG_NOSIGNAL);
  if (n < 0 && errno != EINTR) {
    return absl::UnavailableError(errno == EAGAIN ? "it does not read" : ErrorText(errno));
  }
  *sent = n < 0 ? 0 : static_cast<size_t>(n);
  return absl::OkStatus();
}

absl::Status SendFrame(int socket, const v1::ToStandby& what,
                       const std::vector<UniqueFd>& descriptors) {
  std::string body = what.SerializeAsString();
  const auto length = static_cast<Length>(body.size());
  std::string frame(reinterpret_cast<const char*>(&length), sizeof(length));
  frame += body;
  const std::vector<UniqueFd> none;
  for (size_t done = 0; done < frame.size();) {
    size_t sent = 0;
    RETURN_IF_ERROR(SendPiece(socket, frame.data() + done, frame.size() - done,
                              done == 0 ? descriptors : none, &sent));
    done += sent;
  }
  return absl::OkStatus();
}

void TakeDescriptors(msghdr* message, std::vector<UniqueFd>* taken) {
  for (cmsghdr* header = CMSG_FIRSTHDR(message); header != nullptr;
       header = CMSG_NXTHDR(message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) {
      continue;
    }
    std::vector<int> numbers((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    std::memcpy(numbers.data(), CMSG_DATA(header), numbers.size() * sizeof(int));
    for (const int number : numbers) {
      taken->emplace_back(number);
    }
  }
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

absl::Status Take(const std::string& body, Inheritance* inheritance) {
  v1::ToStandby frame;
  if (!frame.ParseFromString(body)) {
    return absl::InvalidArgumentError("what the launcher has said cannot be read");
  }
  if (frame.has_handover()) {
    ASSIGN_OR_RETURN(inheritance->handover, DecodeHandover(frame.handover()));
  } else if (frame.has_record()) {
    ASSIGN_OR_RETURN(inheritance->record, Decode(frame.record()));
  }
  return absl::OkStatus();
}

/// Takes the frames that are whole from the front of `received`. Only the latest record is looked
/// at.
absl::Status TakeFrames(std::string* received, Inheritance* inheritance) {
  size_t at = 0;
  Length length = 0;
  while (received->size() - at >= sizeof(length)) {
    std::memcpy(&length, received->data() + at, sizeof(length));
    if (length > kBytesMax) {
      return absl::InvalidArgumentError(absl::StrCat("a message of ", length, " bytes"));
    }
    if (received->size() - at - sizeof(length) < length) {
      break;
    }
    RETURN_IF_ERROR(Take(received->substr(at + sizeof(length), length), inheritance));
    at += sizeof(length) + length;
  }
  received->erase(0, at);
  return absl::OkStatus();
}

}  // namespace

absl::Status SendHandover(int socket, const Handover& handover,
                          const std::vector<UniqueFd>& listeners) {
  if (listeners.size() > kDescriptorsMax) {
    return absl::UnavailableError(absl::StrCat("it would listen on ", listeners.size(),
                                               " sockets; at most ", kDescriptorsMax));
  }
  v1::ToStandby frame;
  v1::Handover& out = *frame.mutable_handover();
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
  return SendFrame(socket, frame, listeners);
}

absl::Status SendRecord(int socket, const job::Record& record, const JournaledJob& job) {
  v1::ToStandby frame;
  *frame.mutable_record() = Encode(record, job);
  return SendFrame(socket, frame, {});
}

absl::StatusOr<Inheritance> ReadInheritance(int socket) {
  Inheritance inheritance;
  std::string received;
  std::vector<char> piece(1U << 16);
  std::vector<char> control(CMSG_SPACE(kDescriptorsMax * sizeof(int)));
  while (true) {
    iovec space{piece.data(), piece.size()};
    msghdr message{};
    message.msg_iov = &space;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t n = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    if (n < 0 && errno == EINTR) {
      continue;
    }
    // A launcher that dies with something unread from here resets the connection.
    if (n == 0 || (n < 0 && errno == ECONNRESET)) {
      return inheritance;
    }
    if (n < 0) {
      return absl::UnavailableError(absl::StrCat("read from the launcher: ", ErrorText(errno)));
    }
    TakeDescriptors(&message, &inheritance.listeners);
    received.append(piece.data(), static_cast<size_t>(n));
    RETURN_IF_ERROR(TakeFrames(&received, &inheritance));
  }
}

}  // namespace fsdprun
