#include "launcher/directory/run_id_host.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "launcher/directory/listener.h"

namespace fsdprun {
namespace {

/// A coordinator that has not answered by then is asked anew.
constexpr Duration kAnswerTimeout = std::chrono::seconds(5);
/// Between two questions to one that does not let this launcher host.
constexpr Duration kMeetPause = std::chrono::seconds(1);
/// Between two questions that nobody answers, the first ones and later. Whoever comes to the
/// endpoint knows of its hosts before it sends a newcomer away to host: see RunIdTable::kSettle.
constexpr Duration kFirstVainPause = std::chrono::milliseconds(100);
constexpr Duration kLongestVainPause = std::chrono::milliseconds(500);
/// For how long the other host of the run id is met before it is clear that it does not give way.
constexpr Duration kMeetingTime = std::chrono::seconds(3);
/// For a connection, and for an answer, that somebody waits for.
constexpr Duration kAwaitedAnswerTimeout = std::chrono::seconds(2);

}  // namespace

HostMove MoveAfter(const absl::StatusOr<RunIdClient::Answer>& answer) {
  if (!answer.ok()) {
    return absl::IsUnavailable(answer.status()) ? HostMove::kTakeOver : HostMove::kStay;
  }
  const bool is_elsewhere =
      answer->kind == RunIdClient::Kind::kHere || answer->kind == RunIdClient::Kind::kThere;
  return is_elsewhere ? HostMove::kMeet : HostMove::kStay;
}

Duration PauseAfter(const absl::StatusOr<RunIdClient::Answer>& answer, Duration before) {
  if (!answer.ok()) {
    return std::clamp(before * 2, kFirstVainPause, kLongestVainPause);
  }
  return MoveAfter(answer) == HostMove::kMeet ? kMeetPause : Duration::zero();
}

Tended RunIdHost::Tend() {
  if (has_taken_over_) {
    return {};
  }
  call_->Beat();
  std::optional<absl::StatusOr<RunIdClient::Answer>> answer = call_->Poll();
  if (!answer.has_value() && outside_.now() < asked_at_ + kAnswerTimeout) {
    return {};
  }
  if (is_settled_ || !answer.has_value()) {
    const bool is_known = call_->is_open() && !meeting_.has_value();
    if (!is_known && outside_.now() >= asked_at_ + pause_) {
      Ask();
    }
    return {};
  }
  const HostMove move = Settle(*answer);
  Tended tended;
  if (move == HostMove::kTakeOver) {
    tended.listeners = TakeOver();
  } else if (move == HostMove::kMeet && HasMetForLong() &&
             !std::exchange(meeting_->is_told, true)) {
    tended.other_host = WhereTheOtherIs(meeting_->last);
  }
  return tended;
}

// A question that nobody answers says nothing of a host that was met.
HostMove RunIdHost::Settle(const absl::StatusOr<RunIdClient::Answer>& answer) {
  is_settled_ = true;
  const HostMove move = MoveAfter(answer);
  pause_ = PauseAfter(answer, pause_);
  if (move == HostMove::kMeet) {
    if (!meeting_.has_value()) {
      meeting_ = Meeting{.since = outside_.now(), .last = {}};
    }
    meeting_->last = *answer;
  } else if (answer.ok()) {
    meeting_.reset();
  }
  return move;
}

bool RunIdHost::HasMetForLong() const {
  return meeting_.has_value() && outside_.now() >= meeting_->since + kMeetingTime;
}

absl::StatusOr<bool> RunIdHost::Confirm() {
  if (has_taken_over_) {
    return true;
  }
  const std::vector<NumericEndpoint>& holder = options_.holder;
  const Reach reach =
      outside_.reach(holder, outside_.now() + kAwaitedAnswerTimeout, options_.is_cancelled);
  switch (reach.kind) {
    case Reach::Kind::kRefused:
      return AfterRefusal();
    case Reach::Kind::kSilent:
      return Unsure("no connection can be made");
    case Reach::Kind::kConnects:
      break;
  }
  absl::StatusOr<RunIdClient::Answer> answer = AskAndWait(holder[reach.index]);
  for (size_t i = 1; !answer.ok() && i < holder.size(); ++i) {
    answer = AskAndWait(holder[(reach.index + i) % holder.size()]);
  }
  return Judge(answer);
}

// An answer that comes too late is for Tend().
absl::StatusOr<RunIdClient::Answer> RunIdHost::AskAndWait(const NumericEndpoint& holder) {
  call_ = outside_.new_call(options_.security);
  asked_at_ = outside_.now();
  absl::StatusOr<RunIdClient::Answer> answer =
      call_->Ask(ToString(holder), options_.token, MakeQuestion(),
                 asked_at_ + kAwaitedAnswerTimeout, options_.is_cancelled);
  const std::optional<absl::StatusOr<RunIdClient::Answer>> end = call_->Poll();
  is_settled_ = end.has_value();
  if (end.has_value()) {
    answer = *end;
    Settle(answer);
  }
  return answer;
}

// A host that was met at the endpoint itself is gone with it, but not one elsewhere.
absl::StatusOr<bool> RunIdHost::AfterRefusal() {
  if (meeting_.has_value() && meeting_->last.kind == RunIdClient::Kind::kThere) {
    return Unsure("nobody listens there any more, and before, another host of it was known there");
  }
  meeting_.reset();
  return true;
}

absl::StatusOr<bool> RunIdHost::Judge(const absl::StatusOr<RunIdClient::Answer>& answer) const {
  if (!answer.ok()) {
    return Unsure(answer.status().message());
  }
  switch (answer->kind) {
    case RunIdClient::Kind::kYours:
      return true;
    case RunIdClient::Kind::kClosed:
      return false;  // Not by this host, whose job is not over.
    case RunIdClient::Kind::kHere:
    case RunIdClient::Kind::kThere:
      if (HasMetForLong()) {
        return false;
      }
      return Unsure(absl::StrCat("another launcher, at ",
                                 absl::StrJoin(WhereTheOtherIs(*answer), ", "),
                                 ", hosts it too, and may be about to give way"));
    case RunIdClient::Kind::kWait:
    case RunIdClient::Kind::kUnknown:
      break;
  }
  return Unsure("the launcher there does not know, or knows too many run ids");
}

absl::Status RunIdHost::Unsure(absl::string_view why) const {
  const auto to_text = [](std::string* text, const NumericEndpoint& endpoint) {
    text->append(ToString(endpoint));
  };
  return absl::UnavailableError(absl::StrCat(
      "cannot find out at the rendezvous endpoint ", absl::StrJoin(options_.holder, ", ", to_text),
      " whether another launcher hosts run id '", options_.run_id, "': ", why));
}

RunIdClient::Question RunIdHost::MakeQuestion() const {
  return {.run_id = options_.run_id,
          .endpoints = options_.endpoints,
          .refused = {},
          .hosts = true,
          .claim_lease = options_.claim_lease};
}

const NumericEndpoint& RunIdHost::NextHolder() {
  return options_.holder[times_asked_++ % options_.holder.size()];
}

void RunIdHost::Ask() {
  call_ = outside_.new_call(options_.security);
  call_->Start(ToString(NextHolder()), options_.token, MakeQuestion());
  asked_at_ = outside_.now();
  is_settled_ = false;
}

// Whoever is still there, or was faster, has the port.
std::vector<UniqueFd> RunIdHost::TakeOver() {
  if (options_.listen_on.empty()) {
    return {};
  }
  absl::StatusOr<std::vector<UniqueFd>> listeners =
      BindListeners(options_.listen_on, options_.holder.front().port);
  has_taken_over_ = listeners.ok();
  return listeners.ok() ? *std::move(listeners) : std::vector<UniqueFd>();
}

std::vector<std::string> RunIdHost::WhereTheOtherIs(const RunIdClient::Answer& answer) const {
  if (answer.kind == RunIdClient::Kind::kThere) {
    return answer.endpoints;
  }
  std::vector<std::string> here;
  for (const NumericEndpoint& endpoint : options_.holder) {
    here.push_back(ToString(endpoint));
  }
  return here;
}

void RunIdHost::Leave(bool closes) {
  if (has_taken_over_ || call_->Leave(closes) || !closes) {
    return;
  }
  // The call broke a moment ago: who comes late shall be refused all the same.
  call_ = outside_.new_call(options_.security);
  const auto answer = call_->Ask(ToString(options_.holder.front()), options_.token, MakeQuestion(),
                                 outside_.now() + kAwaitedAnswerTimeout, nullptr);
  if (answer.ok() && answer->kind == RunIdClient::Kind::kYours) {
    call_->Leave(closes);
  }
}

}  // namespace fsdprun
