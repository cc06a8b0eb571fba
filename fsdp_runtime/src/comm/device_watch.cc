#include "fsdp_runtime/src/comm/device_watch.h"

#include <pthread.h>

#include <algorithm>
#include <exception>
#include <future>
#include <utility>

#include "fsdp_runtime/src/comm/collective_board.h"

namespace fsdp {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// From one look to the next while the host waits: it is not to lose much by that.
constexpr milliseconds kWaitingLook{1};
// The same while it waits for a call on another thread.
constexpr milliseconds kLookAside{20};

milliseconds since(steady_clock::time_point begin) {
  return std::chrono::duration_cast<milliseconds>(steady_clock::now() - begin);
}

}  // namespace

bool call_within(milliseconds limit, std::function<void()> call,
                 const std::function<bool()>& is_over) {
  const auto ended = std::make_shared<std::promise<void>>();
  std::future<void> end = ended->get_future();
  std::thread([ended, call = std::move(call)]() mutable {
    call();
    call = nullptr;  // Who waits goes on, and what it held is no longer this thread's.
    ended->set_value();
  }).detach();
  const auto begin = steady_clock::now();
  while (since(begin) < limit && !(is_over && is_over())) {
    const milliseconds rest = limit - since(begin);
    if (end.wait_for(is_over ? std::min(rest, kLookAside) : rest) == std::future_status::ready) {
      return true;
    }
  }
  return end.wait_for(milliseconds(0)) == std::future_status::ready;
}

DeviceWatch::DeviceWatch(GroupPlace place, std::shared_ptr<Communicators> communicators, Pace pace)
    : place_(std::move(place)),
      communicators_(std::move(communicators)),
      pace_(pace),
      exceptions_before_(std::uncaught_exceptions()),
      thread_([this] {
        ::pthread_setname_np(::pthread_self(), "fsdp-device");
        loop();
      }) {
  place_.membership->add(*this);
}

DeviceWatch::~DeviceWatch() {
  if (std::uncaught_exceptions() > exceptions_before_) {
    const int64_t rank = place_.world_rank(place_.rank);
    place_.membership->revoke(
        {"rank " + std::to_string(rank) + " left the group because of an error of its own", rank});
  }
  wait();  // a failure is told where operations are waited for
  {
    std::lock_guard lock(mu_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
  leave();
  place_.membership->remove(*this, place_.name);
}

void DeviceWatch::leave() {
  {
    std::lock_guard lock(mu_);
    if (is_abandoned_) {
      return;
    }
  }
  const auto has_failed = [this] { return place_.membership->failure().has_value(); };
  const bool is_orderly = !has_failed();
  // The peers take part in that, so it ends when one of them has died.
  if (is_orderly && call_within(pace_.end, step(&Communicators::shutdown), has_failed)) {
    return;
  }
  if (has_failed()) {
    place_.membership->revoke({});  // returns once all communicators are revoked
  } else {
    communicators_->revoke();
  }
  abandon();
}

void DeviceWatch::add(std::string operation, IsDone is_done) {
  std::lock_guard lock(mu_);
  const bool was_idle = in_flight_.empty();
  in_flight_.push_back({std::move(operation), std::move(is_done), steady_clock::now()});
  if (was_idle) {
    changed_.notify_all();
  }
}

std::optional<GroupFailure> DeviceWatch::wait() {
  const HostWait waiting;
  std::unique_lock lock(mu_);
  while (true) {
    forget_done();
    // Afterwards: what has ended may have been ended.
    if (std::optional<GroupFailure> failure = place_.membership->failure()) {
      return failure;
    }
    if (in_flight_.empty()) {
      return std::nullopt;
    }
    changed_.wait_for(lock, kWaitingLook);
  }
}

void DeviceWatch::interrupt(const GroupFailure&) {
  communicators_->revoke();
  {
    std::lock_guard lock(mu_);
    is_interrupted_ = true;
  }
  changed_.notify_all();
}

void DeviceWatch::forget_done() {
  std::erase_if(in_flight_, [](const InFlight& each) { return each.is_done(); });
}

void DeviceWatch::loop() {
  std::unique_lock lock(mu_);
  while (!is_stopping_) {
    if (is_interrupted_ && !is_abandoned_) {
      is_abandoned_ = true;
      lock.unlock();
      // Returns once all groups are interrupted, and with them all communicators revoked.
      place_.membership->revoke({});
      abandon();
      lock.lock();
    } else if (is_abandoned_ || in_flight_.empty()) {
      changed_.wait(lock);
    } else {
      changed_.wait_for(lock, pace_.look);
      lock.unlock();
      look();
      lock.lock();
    }
  }
}

void DeviceWatch::look() {
  const std::string library_error = communicators_->asynchronous_error();
  const std::optional<GroupFailure> failure = failure_to_see(library_error);
  if (failure && library_error.empty()) {
    place_.membership->revoke(*failure);
  } else if (failure) {
    place_.membership->revoke_unless_told(*failure);  // a peer may have died
  }
}

std::optional<GroupFailure> DeviceWatch::failure_to_see(const std::string& library_error) {
  std::lock_guard lock(mu_);
  forget_done();
  if (!library_error.empty()) {
    return GroupFailure{
        (in_flight_.empty() ? "an operation" : in_flight_.front().operation) + ": " + library_error,
        {}};
  }
  if (in_flight_.empty()) {
    return std::nullopt;
  }
  const InFlight& oldest = in_flight_.front();
  const auto gone = place_.membership->departure(place_.name, place_.world_ranks, pace_.departure);
  if (gone) {
    return GroupFailure{gone->reason + " before " + oldest.operation + " had ended",
                        gone->lost_rank};
  }
  if (since(oldest.launched) < place_.timeout) {
    return std::nullopt;
  }
  return GroupFailure{oldest.operation + " has not ended on the device of rank " +
                          std::to_string(place_.world_rank(place_.rank)) + " within " +
                          std::to_string(place_.timeout.count()) +
                          " ms; look at the logs and stacks of the other ranks, or raise the "
                          "group's timeout",
                      {}};
}

std::function<void()> DeviceWatch::step(void (Communicators::*to_the_end)()) {
  return [group = communicators_, name = place_.name, to_the_end] {
    try {
      (group.get()->*to_the_end)();
    } catch (const std::exception& error) {
      group->warn("ending the communicators of group '" + name + "': " + error.what());
    }
  };
}

void DeviceWatch::abandon() {
  if (!call_within(pace_.end, step(&Communicators::abort))) {
    communicators_->warn("communicators of group '" + place_.name + "' could not be freed within " +
                         std::to_string(pace_.end.count()) + " ms; their memory is left behind");
  }
}

}  // namespace fsdp
