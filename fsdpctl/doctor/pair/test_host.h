#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "base/mono_time.h"
#include "base/unique_fd.h"
#include "fsdpctl/doctor/checks/pair_facts.h"
#include "fsdpctl/doctor/pair/handshake.h"
#include "fsdpctl/doctor/pair/link.h"
#include "fsdpctl/doctor/report.h"

namespace fsdprun::doctor {

/// The node that others come to: takes connections, has each prove the token, and tests the nodes
/// one after the other, so that no test disturbs another. Strangers cost a connection of a kilobyte
/// for seconds, 64 at a time. Thread: one.
class TestHost {
 public:
  struct Options {
    std::string token;
    std::vector<UniqueFd> listeners;
    /// With this one; 0: as many as come.
    int nodes = 0;
    /// Until the next node comes; unset: for ever.
    std::optional<Duration> patience;
    /// Name, release and protocol of this node.
    PairFacts own;
    /// The MTU of the interface that has an address.
    std::function<int(const std::string& address)> mtu_of;
    int stop_fd = -1;
    /// Told, for people, what happens.
    std::function<void(const std::string&)> notify;
    /// For the proof of who has come, while this looks at it.
    Duration guest_patience = std::chrono::seconds(5);
    /// How often those who wait for their turn hear that they are to wait on.
    Duration wait_pause = std::chrono::seconds(30);
  };

  struct Tested {
    PairFacts facts;
    NodeReport other;
  };

  explicit TestHost(Options options) : options_(std::move(options)) {}

  /// Until all nodes were tested, or none has come in time, or a signal has.
  std::vector<Tested> Run();
  /// Afterwards.
  const MeetingFacts& meeting() const { return meeting_; }

 private:
  struct Guest {
    UniqueFd socket;
    FrameBuffer buffer{kMostOfStranger};
    Handshake handshake;
    MonoTime deadline;
  };
  /// Has proved the token.
  struct Comer {
    UniqueFd socket;
    PairNonces nonces;
  };

  /// Takes and greets who comes until `is_enough`; false at the deadline, or after a signal.
  bool Serve(const std::function<bool()>& is_enough, MonoTime deadline);
  bool ServeUntil(const std::function<bool()>& is_enough, MonoTime deadline);
  void Accept(const UniqueFd& listener);
  /// True if the connection is not a guest's any more.
  bool Greet(Guest* guest);
  bool OnText(Guest* guest, const std::string& text);
  void Welcome(Guest* guest);
  void Refuse(const Guest& guest, Handshake::Outcome outcome);
  std::vector<UniqueFd> TakeStreams(size_t count, MonoTime deadline);
  Tested TestOne(Comer comer);
  /// `tested` nodes were, since the first one's turn came.
  void TellToWait(size_t tested, MonoTime since);

  Options options_;
  MeetingFacts meeting_;
  std::list<Guest> guests_;
  std::deque<Comer> comers_;
  /// Since then nobody looks at guests.
  MonoTime left_at_ = MonoNow();
  MonoTime told_to_wait_at_ = MonoNow();
  /// The test that runs, and its further connections; empty: none does.
  std::string test_;
  std::vector<UniqueFd> streams_;
};

}  // namespace fsdprun::doctor
