#pragma once

#include <fsdp/export.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "proto/worker_vitals.h"

namespace fsdp {

/// Writes into this process's vitals which collectives are under way: how many have begun and
/// ended, and what the oldest is that has not ended. No allocation, no system call, and nothing at
/// all if nobody reads. Thread: any.
class FSDP_API CollectiveBoard {
 public:
  /// So many at a time can become the oldest; of more than that, those that begin last are only
  /// counted.
  static constexpr size_t kKept = 256;

  struct What {
    const char* kind = "";          // "all_gather"
    std::string_view group = {};    // "ranks 0-3"; empty: all of the world
    std::string_view purpose = {};  // Issue::purpose
    uint64_t bytes = 0;             // of the larger tensor
  };

  /// `page`: null: nobody reads. It outlives this.
  explicit CollectiveBoard(fsdprun::contract::VitalsPage* page) : page_(page) {}
  CollectiveBoard(const CollectiveBoard&) = delete;
  CollectiveBoard& operator=(const CollectiveBoard&) = delete;

  /// Returns what end() is to be given, once; 0: nothing.
  uint64_t begin(const What& what);
  void end(uint64_t ticket);

  /// That of own_vitals().
  static CollectiveBoard& of_process();

 private:
  using Page = fsdprun::contract::VitalsPage;
  using Text = std::array<char, Page::kTextBytes>;
  struct Entry {
    uint64_t ticket = 0;  // 0: it has ended
    uint64_t began_ns = 0;
    uint64_t bytes = 0;
    Text collective{};
    Text unit{};
  };

  Entry& entry_of(uint64_t ticket) { return entries_[ticket % kKept]; }
  void show(const Entry& entry);  // with mu_ held
  void show_next();               // with mu_ held

  Page* const page_;
  std::mutex mu_;
  std::array<Entry, kKept> entries_;  // guarded by mu_, as are all below
  uint64_t next_ticket_ = 1;
  uint64_t shown_ = 0;  // 0: none is under way
};

/// One collective, from its construction until end() or the destructor, for vitals and trace.
/// Thread: any.
class FSDP_API OpenCollective {
 public:
  explicit OpenCollective(const CollectiveBoard::What& what);
  ~OpenCollective() { end(); }
  OpenCollective(const OpenCollective&) = delete;
  OpenCollective& operator=(const OpenCollective&) = delete;

  /// Its result is there, or it has failed. Idempotent.
  void end();

 private:
  std::atomic<uint64_t> ticket_;
  std::atomic<uint64_t> trace_id_;  // 0: it is not in the trace
};

/// While it lives, the calling thread waits for a collective: see collective_wait_time(). Within
/// another one nothing is counted.
class FSDP_API HostWait {
 public:
  HostWait();
  ~HostWait();
  HostWait(const HostWait&) = delete;
  HostWait& operator=(const HostWait&) = delete;

 private:
  uint64_t began_ns_ = 0;
};

/// While it lives, the calling thread waits for nobody's sake but a lane's: nothing is counted.
class FSDP_API UncountedWaits {
 public:
  UncountedWaits();
  ~UncountedWaits();
  UncountedWaits(const UncountedWaits&) = delete;
  UncountedWaits& operator=(const UncountedWaits&) = delete;
};

/// "ranks 0-3, 8" for ranks of the world in ascending order, with "..." for what is too long to be
/// told; "" for none.
FSDP_API std::string group_text(const std::vector<int64_t>& world_ranks);

}  // namespace fsdp
