// A store server's byte stream -> values read by StoreConnection over a TCP connection. Input: one
// line of letters, each a read (b: byte, w: 32 bits, i: 64 bits, s: string), then the stream, after
// which the server closes the connection.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <string>

#include "base/check.h"
#include "fsdp_runtime/store/store_connection.h"
#include "tests/fuzz/fuzz_support.h"

namespace fsdp {
namespace {

/// Must fit into the socket buffers, since the target is single-threaded.
constexpr size_t kInputBytesMax = 16 << 10;
constexpr size_t kTakesMax = 16;

struct Listener {
  int fd = -1;
  int port = 0;
};

Listener Listen() {
  Listener listener{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  FSDPRUN_CHECK(::bind(listener.fd, generic, length) == 0 && ::listen(listener.fd, 8) == 0 &&
                    ::getsockname(listener.fd, generic, &length) == 0,
                "listening on the loopback interface failed");
  listener.port = ntohs(address.sin_port);
  return listener;
}

/// The server's end of the connection. The constructor sends the whole stream.
class Server {
 public:
  Server(int listener, std::string_view stream) : fd_(::accept(listener, nullptr, nullptr)) {
    FSDPRUN_CHECK(::send(fd_, stream.data(), stream.size(), 0) == ssize_t(stream.size()) &&
                      ::shutdown(fd_, SHUT_WR) == 0,
                  "sending the stream failed");
  }
  ~Server() {
    // A reset avoids TIME_WAIT, which would use up the ports at thousands of connections a second.
    const linger at_once{1, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    ::close(fd_);
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

 private:
  const int fd_;
};

/// Reference: the same reads directly from the bytes; nullopt at the end of the stream.
class Expected {
 public:
  explicit Expected(std::string_view left) : left_(left) {}

  std::optional<std::string> Take(char what) {
    switch (what) {
      case 'b':
        return Bytes(1);
      case 'w':
        return Bytes(4);
      case 'i':
        return Bytes(8);
      default: {
        const std::optional<std::string> length = Bytes(8);
        uint64_t size = 0;
        if (!length) {
          return std::nullopt;
        }
        std::memcpy(&size, length->data(), sizeof(size));
        return Bytes(size);
      }
    }
  }

 private:
  std::optional<std::string> Bytes(uint64_t count) {
    if (count > left_.size()) {
      return std::nullopt;
    }
    const std::string taken(left_.substr(0, count));
    left_.remove_prefix(count);
    return taken;
  }

  std::string_view left_;
};

template <class Integer>
std::string Raw(Integer value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}

std::string Take(StoreConnection& connection, char what) {
  switch (what) {
    case 'b':
      return Raw(connection.take_byte());
    case 'w':
      return Raw(connection.take_u32());
    case 'i':
      return Raw(connection.take_i64());
    default:
      return connection.take_string();
  }
}

void Fuzz(std::string_view input) {
  static const Listener listener = Listen();
  const size_t end = std::min(input.find('\n'), input.size());
  const std::string_view takes = input.substr(0, std::min(end, kTakesMax));
  const std::string_view stream = input.substr(std::min(end + 1, input.size()));
  StoreConnection connection("127.0.0.1", listener.port,
                             std::chrono::steady_clock::now() + std::chrono::seconds(20));
  const Server server(listener.fd, stream);
  Expected expected(stream);
  for (const char what : takes) {
    const std::optional<std::string> bytes = expected.Take(what);
    try {
      const fsdprun::fuzz::MemoryBound bound((256 << 10) + 4 * input.size());
      const std::string taken = Take(connection, what);
      FSDPRUN_CHECK(bytes.has_value() && taken == *bytes, "wrong value");
    } catch (const StoreError& error) {
      FSDPRUN_CHECK(!bytes.has_value() && fsdprun::fuzz::IsOneLine(error.what()),
                    "error although the value was sent");
      return;
    }
  }
}

}  // namespace
}  // namespace fsdp

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size <= fsdp::kInputBytesMax) {
    fsdp::Fuzz(fsdprun::fuzz::AsText(data, size));
  }
  return 0;
}
