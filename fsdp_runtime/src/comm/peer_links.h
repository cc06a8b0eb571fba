#pragma once

#include <fsdp/export.h>

#include <chrono>
#include <cstdint>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "fsdp_runtime/shm/mapping.h"
#include "fsdp_runtime/shm/world.h"

namespace fsdp {

/// Links could not be made; names the rank that is the reason, or the limit of this process.
class LinkError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// One TCP connection with each other rank of a world, beside those that carry data: for what ranks
/// have to tell each other about themselves, at any time. The kernel closes it when the process at
/// the other end has ended, however that came about, and only behind what was sent before. A host
/// that does not answer any more counts as closed after kSilenceMax.
class FSDP_API PeerLinks {
 public:
  static constexpr std::chrono::seconds kSilenceMax{20};

  /// Calls come from the thread of the links, in the order of what arrives from one peer.
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual void on_message(int64_t peer, const std::string& message) = 0;
    /// Nothing more will come from this peer.
    virtual void on_closed(int64_t peer) = 0;
  };

  /// Connects with all other ranks, which all call this: each listens at its own numeric `address`.
  /// Raises the process's soft limit of descriptors if that does not do. Throws LinkError naming a
  /// rank that has not come by the deadline, or the limit.
  PeerLinks(shm::Exchange& exchange, int64_t rank, int64_t size, const std::string& address,
            std::chrono::steady_clock::time_point deadline);
  /// Ends the thread and the connections. What has been sent arrives.
  ~PeerLinks();
  PeerLinks(const PeerLinks&) = delete;
  PeerLinks& operator=(const PeerLinks&) = delete;

  /// Once; `listener` must outlive this.
  void start(Listener& listener);
  /// Passed to the kernel before it returns, unless a peer does not read. Any thread.
  void send_to_all(std::string_view message);

 private:
  struct Link {
    shm::Fd fd;  // none: of this rank itself, or closed
    std::string received;
    std::string unsent;  // guarded by mu_
  };

  void loop(Listener& listener);
  /// Returns whether the connection still lives.
  bool receive(Link& link, int64_t peer, Listener& listener);
  void flush(Link& link);  // with mu_ held
  void send_rest(Link& link, std::chrono::steady_clock::time_point deadline);
  void close(Link& link);
  void wake();

  std::vector<Link> links_;  // by rank
  shm::Fd woken_;
  std::mutex mu_;
  bool is_stopping_ = false;  // guarded by mu_, as are the descriptors of the links
  std::thread thread_;
};

}  // namespace fsdp
