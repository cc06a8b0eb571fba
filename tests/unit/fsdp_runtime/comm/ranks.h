#pragma once

#include <c10/util/Exception.h>
#include <fsdp/collectives.h>
#include <fsdp/process_group.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "fsdp_runtime/src/comm/local_world.h"
#include "fsdp_runtime/src/comm/sigpipe_block.h"

namespace fsdp::testing {

using Body = std::function<void(Collectives&)>;

/// Runs `body` on one thread per rank; returns each rank's error text ("" if none).
inline std::vector<std::string> run_threads(
    int64_t size, const std::function<std::shared_ptr<Collectives>(int64_t)>& make,
    const Body& body) {
  std::vector<std::string> errors(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const std::shared_ptr<Collectives> group = make(rank);
        body(*group);
      } catch (const c10::Error& error) {
        errors[static_cast<size_t>(rank)] = error.what_without_backtrace();
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return errors;
}

/// A socket at a free port of all IPv4 addresses.
inline int bound_socket(uint16_t* port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  socklen_t length = sizeof(address);
  const bool is_bound = fd >= 0 && ::bind(fd, reinterpret_cast<sockaddr*>(&address), length) == 0 &&
                        ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0;
  TORCH_CHECK(is_bound, "no socket for a store");
  *port = ntohs(address.sin_port);
  return fd;
}

/// A store served in this process on a free port. Clients may hang up before they are answered.
/// TCPStore looks up the name of whoever connects before it answers anybody: /etc/hosts has that of
/// 127.0.0.1, but not that of ::ffff:127.0.0.1, for which a name server that is silent would be
/// waited for.
inline c10::intrusive_ptr<c10d::TCPStore> serve_store() {
  const SigpipeBlock no_sigpipe;  // The server's thread is started here.
  c10d::TCPStoreOptions options;
  options.masterListenFd = bound_socket(&options.port);
  options.isServer = true;
  options.waitWorkers = false;
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

/// As on a device, where an operation that is ended by a failure leaves no result.
class FailingDevice : public RecordingCollectives {
 public:
  using RecordingCollectives::RecordingCollectives;
  void check_results(const std::string& operation) const override {
    TORCH_CHECK(!has_failed, operation, ": the group has failed");
  }
  std::atomic<bool> has_failed{false};
};

/// This process's ends of the connections with a store that it serves, by the clients' ports.
inline std::map<int, int> served_connections(const c10::intrusive_ptr<c10d::TCPStore>& store) {
  std::map<int, int> ends;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename());
    sockaddr_in6 own{};
    sockaddr_in6 peer{};
    socklen_t own_length = sizeof(own);
    socklen_t peer_length = sizeof(peer);
    if (::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_length) == 0 &&
        ::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_length) == 0 &&
        ntohs(own.sin6_port) == store->getPort()) {  // where that of IPv4 is, too
      ends[ntohs(peer.sin6_port)] = fd;
    }
  }
  return ends;
}

/// A prefix for the keys of one store. init_process_group counts the groups of a process by address
/// and port, and the kernel may give a later store the port of an earlier one: ranks that have
/// formed different numbers of groups there would not meet.
inline std::string prefix_of_new_store() {
  static std::atomic<int> stores{0};
  return "store" + std::to_string(stores++);
}

/// The group of `backend` with threads as ranks. "local" is make_local_world.
inline std::vector<std::string> run_backend(
    const std::string& backend, int64_t size, const Body& body,
    std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  if (backend == "local") {
    auto world = make_local_world(size, timeout);
    return run_threads(
        size, [&](int64_t rank) { return std::move(world[static_cast<size_t>(rank)]); }, body);
  }
  const auto store = serve_store();
  const std::string prefix = prefix_of_new_store();
  return run_threads(
      size,
      [&](int64_t rank) {
        ProcessGroupOptions options;
        options.store_prefix = prefix;
        options.backend = backend;
        options.rank = rank;
        options.world_size = size;
        options.master_port = store->getPort();
        options.timeout = timeout;
        return init_process_group(options);
      },
      body);
}

}  // namespace fsdp::testing
