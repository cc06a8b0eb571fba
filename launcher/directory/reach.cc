#include "launcher/directory/reach.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>

#include "base/unique_fd.h"

namespace fsdprun {
namespace {

constexpr Duration kHeadStart = std::chrono::milliseconds(200);
constexpr Duration kCancelPoll = std::chrono::milliseconds(50);

struct Attempt {
  size_t index;
  UniqueFd socket;
};

// A socket whose connection is on its way or made; invalid if it failed at once.
UniqueFd BeginToConnect(const NumericEndpoint& endpoint, int* error) {
  const absl::StatusOr<SocketAddress> address = ToSocketAddress(endpoint);
  if (!address.ok()) {
    *error = EINVAL;
    return UniqueFd();
  }
  UniqueFd socket(::socket(address->family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (socket.valid() &&
      (::connect(socket.get(), address->get(), address->length) == 0 || errno == EINPROGRESS)) {
    return socket;
  }
  *error = errno;
  return UniqueFd();
}

class Race {
 public:
  explicit Race(const std::vector<NumericEndpoint>& endpoints) : endpoints_(endpoints) {}

  bool IsOver() const { return running_.empty() && next_ == endpoints_.size(); }
  bool all_refused() const { return all_refused_ && any_refused_; }

  // Begins what is due at `now`: the next one, if there is no other or the last has had its start.
  void Begin(MonoTime now) {
    while (next_ < endpoints_.size() && (running_.empty() || now >= next_start_)) {
      int error = 0;
      UniqueFd socket = BeginToConnect(endpoints_[next_], &error);
      if (socket.valid()) {
        running_.push_back({next_, std::move(socket)});
        next_start_ = now + kHeadStart;
      } else {
        NoteFailure(error);
      }
      ++next_;
    }
  }

  // Waits until `until`, at most, for one to end; the index of one that is connected.
  std::optional<size_t> Wait(MonoTime until) {
    std::vector<pollfd> polled;
    for (const Attempt& attempt : running_) {
      polled.push_back({.fd = attempt.socket.get(), .events = POLLOUT, .revents = 0});
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - MonoNow()).count();
    if (::poll(polled.data(), polled.size(), static_cast<int>(std::max<int64_t>(left, 0))) <= 0) {
      return std::nullopt;
    }
    for (size_t i = polled.size(); i-- > 0;) {
      if (polled[i].revents == 0) {
        continue;
      }
      int error = 0;
      socklen_t length = sizeof(error);
      ::getsockopt(polled[i].fd, SOL_SOCKET, SO_ERROR, &error, &length);
      if (error == 0) {
        return running_[i].index;
      }
      NoteFailure(error);
      running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    return std::nullopt;
  }

  MonoTime next_start() const { return next_ < endpoints_.size() ? next_start_ : MonoTime::max(); }

 private:
  // An address that this machine has no way to says nothing about the others.
  void NoteFailure(int error) {
    all_refused_ &= error == ECONNREFUSED || error == ENETUNREACH || error == EAFNOSUPPORT ||
                    error == EADDRNOTAVAIL;
    any_refused_ |= error == ECONNREFUSED;
  }

  const std::vector<NumericEndpoint>& endpoints_;
  std::vector<Attempt> running_;
  size_t next_ = 0;
  MonoTime next_start_{};
  bool all_refused_ = true;
  bool any_refused_ = false;
};

}  // namespace

Reach ReachAny(const std::vector<NumericEndpoint>& endpoints, MonoTime deadline,
               const std::function<bool()>& is_cancelled) {
  Race race(endpoints);
  for (MonoTime now = MonoNow(); now < deadline && !(is_cancelled && is_cancelled());
       now = MonoNow()) {
    race.Begin(now);
    if (race.IsOver()) {
      return {race.all_refused() ? Reach::Kind::kRefused : Reach::Kind::kSilent, 0};
    }
    const MonoTime until = std::min({deadline, race.next_start(), now + kCancelPoll});
    if (const std::optional<size_t> winner = race.Wait(until)) {
      return {Reach::Kind::kConnects, *winner};
    }
  }
  return {Reach::Kind::kSilent, 0};
}

void MoveReachableToFront(std::vector<NumericEndpoint>* endpoints, MonoTime deadline,
                          const std::function<bool()>& is_cancelled) {
  if (endpoints->size() < 2) {
    return;
  }
  const Reach reach = ReachAny(*endpoints, deadline, is_cancelled);
  if (reach.kind == Reach::Kind::kConnects) {
    std::rotate(endpoints->begin(), endpoints->begin() + static_cast<std::ptrdiff_t>(reach.index),
                endpoints->begin() + static_cast<std::ptrdiff_t>(reach.index) + 1);
  }
}

absl::StatusOr<std::string> AddressTowardsAny(const std::vector<NumericEndpoint>& targets) {
  absl::StatusOr<std::string> found = absl::InvalidArgumentError("no address to go to");
  for (const NumericEndpoint& target : targets) {
    if (found = AddressTowards(target); found.ok()) {
      break;
    }
  }
  return found;
}

}  // namespace fsdprun
