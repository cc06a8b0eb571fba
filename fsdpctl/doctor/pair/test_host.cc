#include "fsdpctl/doctor/pair/test_host.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdpctl/doctor/pair/test_driver.h"
#include "fsdpctl/doctor/pair/test_orders.h"
#include "launcher/directory/job_token.h"

namespace fsdprun::doctor {
namespace {

constexpr size_t kMostGuests = 64;
constexpr size_t kMostComers = 1024;
constexpr size_t kMostRefused = 16;
constexpr size_t kNonceLength = 32;
/// A look at guests whose time is over.
constexpr Duration kLook = std::chrono::milliseconds(500);
constexpr Duration kForever = std::chrono::hours(24 * 365);

}  // namespace

std::vector<TestHost::Tested> TestHost::Run() {
  std::vector<Tested> tested;
  meeting_.expected = options_.nodes;
  const Duration patience = options_.patience.value_or(kForever);
  MonoTime since = MonoNow();
  std::optional<MonoTime> first_turn;
  while (options_.nodes == 0 || static_cast<int>(tested.size()) + 1 < options_.nodes) {
    if (!Serve([this] { return !comers_.empty(); }, since + patience)) {
      break;
    }
    Comer comer = std::move(comers_.front());
    comers_.pop_front();
    first_turn = first_turn.value_or(MonoNow());
    TellToWait(tested.size(), *first_turn);
    tested.push_back(TestOne(std::move(comer)));
    since = MonoNow();
  }
  meeting_.came = static_cast<int>(tested.size());
  meeting_.waited_s = ToSeconds(patience);
  pollfd stop{.fd = options_.stop_fd, .events = POLLIN, .revents = 0};
  meeting_.was_interrupted = ::poll(&stop, 1, 0) > 0;
  return tested;
}

/// While a node is tested nobody answers guests, so that time is not held against them.
bool TestHost::Serve(const std::function<bool()>& is_enough, MonoTime deadline) {
  for (Guest& guest : guests_) {
    guest.deadline += MonoNow() - left_at_;
  }
  const bool is_done = ServeUntil(is_enough, deadline);
  left_at_ = MonoNow();
  return is_done;
}

bool TestHost::ServeUntil(const std::function<bool()>& is_enough, MonoTime deadline) {
  while (!is_enough()) {
    if (MonoNow() >= deadline) {
      return false;
    }
    std::vector<pollfd> polled{{.fd = options_.stop_fd, .events = POLLIN, .revents = 0}};
    for (const UniqueFd& listener : options_.listeners) {
      polled.push_back({.fd = listener.get(), .events = POLLIN, .revents = 0});
    }
    for (const Guest& guest : guests_) {
      polled.push_back({.fd = guest.socket.get(), .events = POLLIN, .revents = 0});
    }
    const Duration left = std::min(kLook, deadline - MonoNow());
    const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
    ::poll(polled.data(), polled.size(), static_cast<int>(std::max<int64_t>(ms, 0)));
    if (polled.front().revents != 0) {
      return false;
    }
    // Guests first: what they have said counts, however late somebody looks.
    guests_.remove_if([this](Guest& guest) { return Greet(&guest); });
    for (const UniqueFd& listener : options_.listeners) {
      Accept(listener);
    }
  }
  return true;
}

void TestHost::Accept(const UniqueFd& listener) {
  while (guests_.size() < kMostGuests) {
    UniqueFd socket(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.valid()) {
      return;
    }
    SendAtOnce(socket);
    guests_.push_back({.socket = std::move(socket),
                       .handshake = Handshake(options_.token, RandomHex(kNonceLength)),
                       .deadline = MonoNow() + options_.guest_patience});
  }
}

bool TestHost::Greet(Guest* guest) {
  for (;;) {
    char piece[kMostOfStranger];
    const ssize_t n = ::recv(guest->socket.get(), piece,
                             std::min(sizeof(piece), guest->buffer.Missing()), MSG_DONTWAIT);
    if (n > 0) {
      guest->buffer.Append({piece, static_cast<size_t>(n)});
    }
    if (n == 0 || guest->buffer.IsTooLong() || (n < 0 && errno != EAGAIN && errno != EINTR)) {
      Refuse(*guest, Handshake::Outcome::kStranger);
      return true;
    }
    if (const std::optional<std::string> text = guest->buffer.Take()) {
      if (OnText(guest, *text)) {
        return true;
      }
    } else if (n < 0) {
      break;
    }
  }
  if (MonoNow() < guest->deadline) {
    return false;
  }
  Refuse(*guest, Handshake::Outcome::kStranger);
  return true;
}

bool TestHost::OnText(Guest* guest, const std::string& text) {
  const std::optional<Message> message = ParseMessage(text);
  Message answer;
  const Handshake::Outcome outcome =
      message.has_value() ? guest->handshake.On(*message, &answer) : Handshake::Outcome::kStranger;
  if (!answer.kind.empty()) {
    // It is short: a connection that does not take it is none to wait for.
    const std::string frame = Framed(answer);
    ::send(guest->socket.get(), frame.data(), frame.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  if (outcome == Handshake::Outcome::kMore) {
    return false;
  }
  if (outcome == Handshake::Outcome::kProven) {
    Welcome(guest);
  } else {
    Refuse(*guest, outcome);
  }
  return true;
}

void TestHost::Welcome(Guest* guest) {
  const std::string& test = guest->handshake.test();
  if (!test.empty()) {
    if (test == test_) {
      streams_.push_back(std::move(guest->socket));
    }
  } else if (comers_.size() < kMostComers) {
    options_.notify(absl::StrCat("a node has come from ", PeerAddress(guest->socket)));
    comers_.push_back({std::move(guest->socket), guest->handshake.nonces()});
  }
}

void TestHost::Refuse(const Guest& guest, Handshake::Outcome outcome) {
  if (outcome == Handshake::Outcome::kStranger) {
    ++meeting_.strangers;
    return;
  }
  const std::string address = PeerAddress(guest.socket);
  const bool is_known = std::find(meeting_.refused.begin(), meeting_.refused.end(), address) !=
                        meeting_.refused.end();
  if (outcome == Handshake::Outcome::kOtherToken && !is_known &&
      meeting_.refused.size() < kMostRefused) {
    options_.notify(absl::StrCat("a node with another token was refused: ", address));
    meeting_.refused.push_back(address);
  }
}

void TestHost::TellToWait(size_t tested, MonoTime since) {
  const MonoTime now = MonoNow();
  if (tested == 0 || now < told_to_wait_at_ + options_.wait_pause) {
    return;
  }
  told_to_wait_at_ = now;
  const std::string frame = Framed({kWait, {}});
  for (const Comer& comer : comers_) {
    ::send(comer.socket.get(), frame.data(), frame.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  const size_t known = tested + 1 + comers_.size();
  const size_t all =
      options_.nodes == 0 ? known : std::max(known, static_cast<size_t>(options_.nodes) - 1);
  const double each_s = ToSeconds(now - since) / static_cast<double>(tested);
  options_.notify(absl::StrCat("tested ", tested, " of ", all, " nodes, about ",
                               std::ceil(each_s * static_cast<double>(all - tested) / 60),
                               " minutes left"));
}

std::vector<UniqueFd> TestHost::TakeStreams(size_t count, MonoTime deadline) {
  Serve([&] { return streams_.size() >= count; }, deadline);
  return std::exchange(streams_, {});
}

TestHost::Tested TestHost::TestOne(Comer comer) {
  PairFacts facts = options_.own;
  facts.address = PeerAddress(comer.socket);
  facts.node = facts.address;
  facts.own_mtu = options_.mtu_of(OwnAddressOf(comer.socket));
  test_ = comer.nonces.listener;
  TestDriver driver(Link(std::move(comer.socket), options_.stop_fd),
                    {.token = options_.token,
                     .nonces = comer.nonces,
                     .facts = facts,
                     .stop_fd = options_.stop_fd,
                     .take_streams = [this](int count, MonoTime deadline) {
                       return TakeStreams(static_cast<size_t>(count), deadline);
                     }});
  Tested tested;
  driver.Run(&tested.facts, &tested.other);
  test_.clear();
  streams_.clear();
  options_.notify(absl::StrCat("tested: ", tested.facts.node));
  return tested;
}

}  // namespace fsdprun::doctor
