#include "tests/support/store_client.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

namespace fsdprun::support {
namespace {

using Clock = std::chrono::steady_clock;

// The protocol of torch 2.11 (TCPStoreBackend.hpp): one byte of operation, u64 lengths, host byte
// order.
enum class Op : uint8_t {
  kValidate = 0,
  kSet = 1,
  kCompareSet = 2,
  kGet = 3,
  kAdd = 4,
  kCheck = 5,
  kWait = 6,
  kKeyCount = 7,
  kDelete = 8,
  kCancelWait = 12,
  kPing = 13,
};
constexpr uint32_t kValidationWord = 0x3C85F7CE;
constexpr char kKeyPrefix = '/';
constexpr uint64_t kMaxReplyBytes = uint64_t{1} << 32;
/// Between two attempts to connect to a server that does not listen yet.
constexpr auto kConnectPause = std::chrono::milliseconds(20);

class Request {
 public:
  explicit Request(Op op) { bytes_.push_back(static_cast<char>(op)); }
  template <class Integer>
  Request& Int(Integer value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return *this;
  }
  Request& Key(const std::string& key) {
    Int(static_cast<uint64_t>(key.size() + 1));
    bytes_.push_back(kKeyPrefix);
    bytes_ += key;
    return *this;
  }
  Request& Value(std::string_view value) {
    Int(static_cast<uint64_t>(value.size()));
    bytes_ += value;
    return *this;
  }
  Request& Keys(const std::vector<std::string>& keys) {
    Int(static_cast<uint64_t>(keys.size()));
    for (const std::string& key : keys) {
      Key(key);
    }
    return *this;
  }
  std::string_view bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

std::string_view View(const StoreClient::Bytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Milliseconds for poll(), at least 1 while time is left, 0 afterwards.
int LeftMs(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 1'000'000'000));
}

struct Address {
  sockaddr_storage storage{};
  socklen_t size = 0;
};

bool ParseAddress(const std::string& host, int port, Address& address) {
  auto* v4 = reinterpret_cast<sockaddr_in*>(&address.storage);
  if (::inet_pton(AF_INET, host.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(static_cast<uint16_t>(port));
    address.size = sizeof(sockaddr_in);
    return true;
  }
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&address.storage);
  if (::inet_pton(AF_INET6, host.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(static_cast<uint16_t>(port));
    address.size = sizeof(sockaddr_in6);
    return true;
  }
  return false;
}

/// One attempt; 0 or an errno.
int TryConnect(const Address& address, Clock::time_point deadline, int& fd) {
  fd = ::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) {
    return errno;
  }
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address.storage), address.size) == 0) {
    return 0;
  }
  if (errno != EINPROGRESS) {
    return errno;
  }
  pollfd writable{.fd = fd, .events = POLLOUT, .revents = 0};
  if (::poll(&writable, 1, LeftMs(deadline)) <= 0) {
    return ETIMEDOUT;
  }
  int error = 0;
  socklen_t size = sizeof(error);
  ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

}  // namespace

StoreClient::StoreClient(const std::string& host, int port, Milliseconds timeout)
    : host_(host), port_(port), timeout_(timeout) {
  try {
    Connect(Clock::now() + timeout);
  } catch (...) {
    CloseFd();
    throw;
  }
}

StoreClient::~StoreClient() { CloseFd(); }

StoreClient::StoreClient(StoreClient&& other) noexcept
    : host_(std::move(other.host_)),
      port_(other.port_),
      timeout_(other.timeout_),
      fd_(std::exchange(other.fd_, -1)) {}

StoreClient& StoreClient::operator=(StoreClient&& other) noexcept {
  if (this != &other) {
    CloseFd();
    host_ = std::move(other.host_);
    port_ = other.port_;
    timeout_ = other.timeout_;
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

void StoreClient::Connect(TimePoint deadline) {
  const bool is_localhost = host_ == "localhost";
  std::vector<Address> addresses;
  for (const std::string& host : is_localhost ? std::vector<std::string>{"127.0.0.1", "::1"}
                                              : std::vector<std::string>{host_}) {
    Address address;
    if (!ParseAddress(host, port_, address) || port_ <= 0 || port_ > 65535) {
      throw StoreError(
          "connect to the store at '" + host_ + "' port " + std::to_string(port_) +
          ": expected a numeric address and a port in 1..65535; names are never looked up");
    }
    addresses.push_back(address);
  }
  for (size_t attempt = 0;; ++attempt) {
    const int error = TryConnect(addresses[attempt % addresses.size()], deadline, fd_);
    if (error == 0) {
      break;
    }
    CloseFd();
    if (Clock::now() >= deadline) {
      throw StoreTimeout("connect to the store at " + host_ + ":" + std::to_string(port_) +
                         " within " + std::to_string(timeout_.count()) +
                         " ms: " + std::generic_category().message(error));
    }
    ::poll(nullptr, 0, std::min(LeftMs(deadline), static_cast<int>(kConnectPause.count())));
  }
  const int one = 1;
  ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  Handshake(deadline);
}

void StoreClient::Handshake(TimePoint deadline) {
  const auto nonce = static_cast<uint32_t>(::getpid());
  std::string hello(Request(Op::kValidate).Int(kValidationWord).bytes());
  hello += Request(Op::kPing).Int(nonce).bytes();
  SendAll(hello, deadline, "greet");
  uint32_t echoed = 0;
  ReceiveAll(&echoed, sizeof(echoed), deadline, "greet");
  if (echoed != nonce) {
    Fail("greet", "the peer does not speak the store's protocol");
  }
}

void StoreClient::Set(const std::string& key, const Bytes& value) { Set(key, View(value)); }

void StoreClient::Set(const std::string& key, std::string_view value) {
  SendAll(Request(Op::kSet).Key(key).Value(value).bytes(), Clock::now() + timeout_, "set");
}

StoreClient::Bytes StoreClient::Get(const std::string& key) { return Get(key, timeout_); }

StoreClient::Bytes StoreClient::Get(const std::string& key, Milliseconds timeout) {
  const TimePoint deadline = Clock::now() + timeout;
  WaitUntil({key}, deadline);
  SendAll(Request(Op::kGet).Key(key).bytes(), deadline, "get");
  return ReceiveBytes(deadline, "get");
}

int64_t StoreClient::Add(const std::string& key, int64_t amount) {
  const TimePoint deadline = Clock::now() + timeout_;
  SendAll(Request(Op::kAdd).Key(key).Int(amount).bytes(), deadline, "add");
  int64_t sum = 0;
  ReceiveAll(&sum, sizeof(sum), deadline, "add");
  return sum;
}

void StoreClient::Wait(const std::vector<std::string>& keys) { Wait(keys, timeout_); }

void StoreClient::Wait(const std::vector<std::string>& keys, Milliseconds timeout) {
  WaitUntil(keys, Clock::now() + timeout);
}

void StoreClient::WaitUntil(const std::vector<std::string>& keys, TimePoint deadline) {
  SendAll(Request(Op::kWait).Keys(keys).bytes(), deadline, "wait");
  pollfd readable{.fd = fd_, .events = POLLIN, .revents = 0};
  int ready = 0;
  do {
    ready = ::poll(&readable, 1, LeftMs(deadline));
  } while (ready == 0 ? Clock::now() < deadline : (ready < 0 && errno == EINTR));
  if (ready == 0) {
    CancelWait(keys);
    return;
  }
  uint8_t answer = 1;
  ReceiveAll(&answer, sizeof(answer), Clock::now() + timeout_, "wait");
  if (answer != 0) {
    Fail("wait", "the server cancelled the wait");
  }
}

/// Ends an unanswered wait so that the connection stays usable. The answer may have crossed the
/// cancellation: then the keys are there after all, and the server answers the cancellation as
/// well.
void StoreClient::CancelWait(const std::vector<std::string>& keys) {
  const TimePoint deadline =
      Clock::now() + std::max<Milliseconds>(timeout_, std::chrono::seconds(1));
  SendAll(Request(Op::kCancelWait).bytes(), deadline, "cancel a wait");
  uint8_t answer = 1;
  ReceiveAll(&answer, sizeof(answer), deadline, "cancel a wait");
  if (answer == 0) {
    ReceiveAll(&answer, sizeof(answer), deadline, "cancel a wait");
    return;
  }
  std::string names;
  for (const std::string& key : keys) {
    names += (names.empty() ? "'" : ", '") + key + "'";
  }
  throw StoreTimeout("wait for " + names + " in the store at " + host_ + ":" +
                     std::to_string(port_) + ": not set in time; a peer is missing or late");
}

bool StoreClient::Check(const std::vector<std::string>& keys) {
  const TimePoint deadline = Clock::now() + timeout_;
  SendAll(Request(Op::kCheck).Keys(keys).bytes(), deadline, "check");
  uint8_t answer = 1;
  ReceiveAll(&answer, sizeof(answer), deadline, "check");
  return answer == 0;
}

bool StoreClient::Delete(const std::string& key) {
  const TimePoint deadline = Clock::now() + timeout_;
  SendAll(Request(Op::kDelete).Key(key).bytes(), deadline, "delete");
  int64_t count = 0;
  ReceiveAll(&count, sizeof(count), deadline, "delete");
  return count > 0;
}

StoreClient::Bytes StoreClient::CompareSet(const std::string& key, const Bytes& expected,
                                           const Bytes& desired) {
  const TimePoint deadline = Clock::now() + timeout_;
  SendAll(Request(Op::kCompareSet).Key(key).Value(View(expected)).Value(View(desired)).bytes(),
          deadline, "compare and set");
  return ReceiveBytes(deadline, "compare and set");
}

int64_t StoreClient::KeyCount() {
  const TimePoint deadline = Clock::now() + timeout_;
  SendAll(Request(Op::kKeyCount).bytes(), deadline, "count keys");
  int64_t count = 0;
  ReceiveAll(&count, sizeof(count), deadline, "count keys");
  return count;
}

void StoreClient::SendAll(std::string_view bytes, TimePoint deadline, const char* operation) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n > 0) {
      bytes.remove_prefix(static_cast<size_t>(n));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      pollfd writable{.fd = fd_, .events = POLLOUT, .revents = 0};
      if (::poll(&writable, 1, LeftMs(deadline)) == 0) {
        CloseFd();  // Half a request was sent: nothing can follow it.
        throw StoreTimeout(std::string(operation) + " in the store at " + host_ +
                           ": the server does not read");
      }
    } else if (errno != EINTR) {
      Fail(operation, std::generic_category().message(errno));
    }
  }
}

void StoreClient::ReceiveAll(void* out, size_t size, TimePoint deadline, const char* operation) {
  auto* at = static_cast<char*>(out);
  while (size > 0) {
    const ssize_t n = ::recv(fd_, at, size, 0);
    if (n > 0) {
      at += n;
      size -= static_cast<size_t>(n);
    } else if (n == 0) {
      Fail(operation,
           "the server closed the connection (its generation ended, or it refused the request)");
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      pollfd readable{.fd = fd_, .events = POLLIN, .revents = 0};
      if (::poll(&readable, 1, LeftMs(deadline)) == 0) {
        CloseFd();  // A late answer would be taken for the next one.
        throw StoreTimeout(std::string(operation) + " in the store at " + host_ +
                           ": no answer in time");
      }
    } else if (errno != EINTR) {
      Fail(operation, std::generic_category().message(errno));
    }
  }
}

StoreClient::Bytes StoreClient::ReceiveBytes(TimePoint deadline, const char* operation) {
  uint64_t size = 0;
  ReceiveAll(&size, sizeof(size), deadline, operation);
  if (size > kMaxReplyBytes) {
    Fail(operation, "the answer claims " + std::to_string(size) + " bytes");
  }
  Bytes bytes(size);
  ReceiveAll(bytes.data(), bytes.size(), deadline, operation);
  return bytes;
}

void StoreClient::CloseFd() {
  if (fd_ >= 0) {
    ::close(fd_);
    fd_ = -1;
  }
}

void StoreClient::Fail(const char* operation, const std::string& cause) {
  CloseFd();
  throw StoreError(std::string(operation) + " in the store at " + host_ + ":" +
                   std::to_string(port_) + ": " + cause);
}

}  // namespace fsdprun::support
