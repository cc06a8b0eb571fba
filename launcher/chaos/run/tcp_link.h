#pragma once

#include <netinet/in.h>

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/event_loop.h"
#include "base/mono_time.h"
#include "base/unique_fd.h"

namespace fsdprun::chaos {

/// A port of this machine that leads to another one, for a while not, or slowly. Who is cut off
/// sees what a broken network shows: silence. Nothing is lost, as TCP would send it again. Thread:
/// loop thread only.
class TcpLink {
 public:
  /// `port`: of 127.0.0.1, to which it leads.
  TcpLink(EventLoop& loop, uint16_t port);
  ~TcpLink();
  TcpLink(const TcpLink&) = delete;
  TcpLink& operator=(const TcpLink&) = delete;

  /// The port at which it listens. Call once. Errors: UNAVAILABLE.
  absl::StatusOr<uint16_t> Listen();
  /// Nothing passes, in either direction, and new connections find nobody.
  void Cut();
  /// What passes comes so much later, in each direction; zero: at once.
  void Delay(Duration latency);
  /// Everything passes again.
  void Heal();

 private:
  struct Piece {
    MonoTime due{};
    std::string bytes;
  };
  /// What goes to one end.
  struct Direction {
    std::deque<Piece> pieces;
    size_t waiting_bytes = 0;
    /// The other end has said all.
    bool has_ended = false;
    bool is_shut = false;
    EventLoop::TimerId timer = 0;
  };
  struct Connection {
    /// Who has connected, and to whom.
    std::array<UniqueFd, 2> ends;
    /// As they are watched; 0: not.
    std::array<uint32_t, 2> watched{};
    /// What goes to the end of the same index.
    std::array<Direction, 2> to;
    bool is_connecting = true;
  };

  void Accept();
  void Update(uint64_t id);
  void UpdateAll();
  uint32_t Wanted(const Connection& connection, size_t end) const;
  void OnReady(uint64_t id, size_t end, uint32_t events);
  bool FinishConnecting(Connection& connection);
  bool Read(Connection& connection, size_t end);
  bool Write(Connection& connection, size_t end);
  bool IsDue(const Direction& direction) const;
  void SetTimer(uint64_t id, size_t end);
  void Close(uint64_t id, bool is_refused);

  // Constant after construction.
  EventLoop& loop_;
  const uint16_t port_;

  // Owned by the loop thread.
  UniqueFd listener_;
  bool is_cut_ = false;
  Duration latency_{};
  std::map<uint64_t, std::unique_ptr<Connection>> connections_;
  uint64_t next_id_ = 1;
};

}  // namespace fsdprun::chaos
