#include "fsdp_runtime/src/comm/membership.h"

#include <algorithm>
#include <charconv>
#include <utility>

namespace fsdp {
namespace {

// The first letter of a message says what it is.
constexpr char kRevoked = 'R';  // the lost rank or -1, a space, the reason
constexpr char kLeft = 'L';     // the group
constexpr char kGoodbye = 'B';

std::string encode_failure(const GroupFailure& failure) {
  return kRevoked + std::to_string(failure.lost_rank.value_or(-1)) + " " + failure.reason;
}

GroupFailure decode_failure(const std::string& message) {
  int64_t lost = -1;
  const char* end = message.data() + message.size();
  const char* stop = std::from_chars(message.data() + 1, end, lost).ptr;
  GroupFailure failure{stop == end ? std::string() : std::string(stop + 1, end), {}};
  if (lost >= 0) {
    failure.lost_rank = lost;
  }
  return failure;
}

std::string called_rank(int64_t rank) { return "rank " + std::to_string(rank); }

GroupFailure departure_of(int64_t rank) { return {called_rank(rank) + " left the group", rank}; }

}  // namespace

Membership::~Membership() {
  if (links_) {
    links_->send_to_all({&kGoodbye, 1});
  }
}

void Membership::connect(std::unique_ptr<PeerLinks> links) {
  links_ = std::move(links);
  links_->start(*this);
}

void Membership::add(Interruptible& group) {
  std::lock_guard whole(revoke_mu_);
  groups_.push_back(&group);
  if (const std::optional<GroupFailure> known = failure()) {
    group.interrupt(*known);
  }
}

void Membership::remove(Interruptible& group, const std::string& name) {
  {
    std::lock_guard whole(revoke_mu_);
    std::erase(groups_, &group);
  }
  if (links_) {
    links_->send_to_all(kLeft + name);
  }
}

GroupFailure Membership::revoke(const GroupFailure& failure) {
  std::lock_guard whole(revoke_mu_);
  {
    std::lock_guard lock(mu_);
    if (failure_) {
      return *failure_;
    }
    failure_ = failure;
  }
  has_word_.notify_all();
  if (links_) {
    links_->send_to_all(encode_failure(failure));
  }
  for (Interruptible* group : groups_) {
    group->interrupt(failure);
  }
  return failure;
}

GroupFailure Membership::revoke_unless_told(const GroupFailure& failure) {
  {
    std::unique_lock lock(mu_);
    has_word_.wait_for(lock, links_ ? kWordMax : std::chrono::seconds(0),
                       [this] { return failure_.has_value(); });
  }
  return revoke(failure);
}

std::optional<GroupFailure> Membership::failure() const {
  std::lock_guard lock(mu_);
  return failure_;
}

std::set<int64_t> Membership::gone() const {
  std::lock_guard lock(mu_);
  std::set<int64_t> gone = closed_;
  for (const auto& [rank, when] : goodbyes_) {
    gone.insert(rank);
  }
  return gone;
}

GroupFailure Membership::explain_loss(std::optional<int64_t> peer, const std::string& name) {
  std::unique_lock lock(mu_);
  std::optional<int64_t> leaver;
  const auto is_known = [&] {
    for (const auto& [left, when] : left_) {
      if (left.first == name && left.second == peer.value_or(left.second)) {
        leaver = left.second;
      }
    }
    if (peer && goodbyes_.contains(*peer)) {
      leaver = peer;
    }
    return failure_ || leaver;
  };
  has_word_.wait_for(lock, links_ ? kWordMax : std::chrono::seconds(0), is_known);
  if (failure_) {
    return *failure_;
  }
  if (leaver) {
    return departure_of(*leaver);
  }
  if (!peer) {
    return {"a rank closed its connection", {}};
  }
  // Whose link stands is alive: left out as lost, while it leaves this rank out, both would be.
  if (links_ && !closed_.contains(*peer)) {
    return {called_rank(*peer) + " closed its connection without a word, but is not gone", {}};
  }
  return {called_rank(*peer) + " closed its connection", peer};
}

std::optional<GroupFailure> Membership::departure(const std::string& name,
                                                  const std::vector<int64_t>& ranks,
                                                  std::chrono::milliseconds ago) const {
  const TimePoint latest = std::chrono::steady_clock::now() - ago;
  std::lock_guard lock(mu_);
  for (const auto& [left, when] : left_) {
    if (left.first == name && when <= latest) {
      return departure_of(left.second);
    }
  }
  for (const auto& [rank, when] : goodbyes_) {
    const bool is_member =
        ranks.empty() || std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
    if (is_member && when <= latest) {
      return departure_of(rank);
    }
  }
  return std::nullopt;
}

void Membership::on_message(int64_t peer, const std::string& message) {
  const char kind = message.empty() ? '\0' : message.front();
  if (kind == kRevoked) {
    revoke(decode_failure(message));
    return;
  }
  {
    std::lock_guard lock(mu_);
    if (kind == kLeft) {
      left_.try_emplace({message.substr(1), peer}, std::chrono::steady_clock::now());
    } else if (kind == kGoodbye) {
      goodbyes_.try_emplace(peer, std::chrono::steady_clock::now());
    }
  }
  has_word_.notify_all();
}

void Membership::on_closed(int64_t peer) {
  {
    std::lock_guard lock(mu_);
    closed_.insert(peer);
    if (goodbyes_.contains(peer)) {
      return;
    }
  }
  revoke({called_rank(peer) + " died, noticed by " + called_rank(rank_) +
              ": its connection ended without a word",
          peer});
}

}  // namespace fsdp
