#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "fsdp_runtime/store/store_error.h"

namespace fsdp {

using TcpDeadline = std::chrono::steady_clock::time_point;

/// What poll() takes: 0 once the deadline has passed.
int remaining_ms(TcpDeadline deadline);

struct ConnectAttempt {
  int fd = -1;             // a socket that does not block; -1: there is none
  std::string reason;      // why not
  bool is_silent = false;  // nobody has answered; else somebody has refused, or nothing was sent
};
/// Tries each address of `host` once.
ConnectAttempt connect_once(const std::string& host, int port, TcpDeadline deadline);

/// A socket that does not block and listens at the numeric `address`, on a port that the kernel
/// chooses. Throws StoreError.
int listen_at(const std::string& address, int backlog, int& port);

/// The numeric address of this end of a connection. Throws StoreError.
std::string address_of_socket(int fd);

/// The numeric address that this machine would use to reach `host`. Sends nothing. Throws
/// StoreError.
std::string local_address_towards(const std::string& host, int port);

/// The numeric address of a network interface of this machine, IPv4 if it has one. Throws
/// StoreError.
std::string address_of_interface(const std::string& name);

struct NetworkInterface {
  std::string name;
  std::string address;  // numeric
};
/// Those of this machine that are up and reach other machines: those with IPv4 first, each in the
/// kernel's order. Throws StoreError.
std::vector<NetworkInterface> interfaces_to_others();

}  // namespace fsdp
