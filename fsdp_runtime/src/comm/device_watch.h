#pragma once

#include <fsdp/export.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "fsdp_runtime/src/comm/membership.h"

namespace fsdp {

/// A group's communicators, as far as their end goes. Thread: any.
class FSDP_API Communicators {
 public:
  virtual ~Communicators() = default;
  /// What the library has noticed by itself; "" if nothing.
  virtual std::string asynchronous_error() = 0;
  /// Ends what is in flight on the device, of these and of the other groups' that fail with them.
  /// Blocks for some seconds at most.
  virtual void revoke() = 0;
  /// Frees them without the peers. May block, for ever at worst.
  virtual void abort() = 0;
  /// Frees them together with the peers, when what is in flight has ended. May block likewise.
  virtual void shutdown() = 0;
  /// Tells the user what went wrong with these; nobody waits for it any more.
  virtual void warn(const std::string& what) = 0;
};

/// Runs `call`, which does not throw, on a thread of its own. Returns whether it ended before the
/// limit and before `is_over` (null: never) said so; else the thread is left behind, with what
/// `call` holds.
FSDP_API bool call_within(std::chrono::milliseconds limit, std::function<void()> call,
                          const std::function<bool()>& is_over = nullptr);

/// Sees to it that what a group has launched on a device ends. A helper thread looks whether it
/// has, within the group's timeout, and whether the library has noticed an error; what is wrong
/// fails all groups of the world.
///
/// When they have failed, all communicators of the process are revoked first and only then freed,
/// each by a thread that has a deadline: freeing one may wait for a kernel of another. Only if
/// nothing has failed, the destructor waits for what is in flight. A rank that leaves because of an
/// exception fails the groups, because its peers may wait for it on their devices.
///
/// Thread: add() and wait() from one at a time.
class FSDP_API DeviceWatch : private Interruptible {
 public:
  struct Pace {
    std::chrono::milliseconds look{50};    // from one look to the next while something is in flight
    std::chrono::milliseconds end{30000};  // for freeing the communicators
    // What a rank that leaves has taken part in ends within this time.
    std::chrono::milliseconds departure = Membership::kWordMax;
  };
  using IsDone = std::function<bool()>;

  DeviceWatch(GroupPlace place, std::shared_ptr<Communicators> communicators, Pace pace);
  ~DeviceWatch() override;
  DeviceWatch(const DeviceWatch&) = delete;
  DeviceWatch& operator=(const DeviceWatch&) = delete;

  /// `operation` has been launched. `is_done` must not throw; any thread.
  void add(std::string operation, IsDone is_done);
  /// Blocks the host until what has been added is done, or the groups fail, of which it returns the
  /// failure.
  std::optional<GroupFailure> wait();

 private:
  struct InFlight {
    std::string operation;
    IsDone is_done;
    std::chrono::steady_clock::time_point launched;
  };

  void interrupt(const GroupFailure& failure) override;
  void loop();
  void look();
  std::optional<GroupFailure> failure_to_see(const std::string& library_error);
  void forget_done();  // with mu_ held
  void abandon();
  void leave();
  /// A step to the end of the communicators, which warns instead of throwing.
  std::function<void()> step(void (Communicators::*to_the_end)());

  const GroupPlace place_;
  const std::shared_ptr<Communicators> communicators_;
  const Pace pace_;
  const int exceptions_before_;  // in flight when this was made
  std::mutex mu_;
  std::condition_variable changed_;
  std::deque<InFlight> in_flight_;  // guarded by mu_, as are the flags
  bool is_interrupted_ = false;
  bool is_abandoned_ = false;
  bool is_stopping_ = false;
  std::thread thread_;
};

}  // namespace fsdp
