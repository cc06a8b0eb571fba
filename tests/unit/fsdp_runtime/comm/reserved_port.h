#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace fsdp::testing {

/// A port of this machine that nobody else is given while the object lives. It is bound and not
/// listened on, so that connections to it are refused; the store's server, which like this one
/// allows addresses to be reused, can still take it.
class ReservedPort {
 public:
  ReservedPort() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int on = 1;
    ::setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    socklen_t length = sizeof address;
    auto* any = reinterpret_cast<sockaddr*>(&address);
    const bool is_bound =
        ::bind(socket_, any, length) == 0 && ::getsockname(socket_, any, &length) == 0;
    EXPECT_TRUE(is_bound) << std::strerror(errno);
    number_ = ntohs(address.sin_port);
  }
  ~ReservedPort() { ::close(socket_); }
  ReservedPort(const ReservedPort&) = delete;
  ReservedPort& operator=(const ReservedPort&) = delete;
  int number() const { return number_; }

 private:
  int socket_;
  int number_ = 0;
};

}  // namespace fsdp::testing
