#include "launcher/directory/run_id_host.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

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
/// How often the other host of the run id is met before it is clear that it does not give way.
constexpr int kTimesMet = 3;
constexpr Duration kLastAskTimeout = std::chrono::seconds(2);

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
  std::optional<absl::StatusOr<RunIdClient::Answer>> answer = call_->Poll();
  if (!answer.has_value() && MonoNow() < asked_at_ + kAnswerTimeout) {
    return {};
  }
  if (is_settled_ || !answer.has_value()) {
    const bool is_known = call_->is_open() && times_met_ == 0;
    if (!is_known && MonoNow() >= asked_at_ + pause_) {
      Ask();
    }
    return {};
  }
  is_settled_ = true;
  const HostMove move = MoveAfter(*answer);
  pause_ = PauseAfter(*answer, pause_);
  times_met_ = move == HostMove::kMeet ? times_met_ + 1 : 0;
  Tended tended;
  if (move == HostMove::kTakeOver) {
    tended.listeners = TakeOver();
  } else if (times_met_ == kTimesMet) {
    tended.other_host = WhereTheOtherIs(**answer);
  }
  return tended;
}

RunIdClient::Question RunIdHost::MakeQuestion() const {
  return {.run_id = options_.run_id,
          .endpoints = options_.endpoints,
          .refused = {},
          .hosts = true,
          .claim_lease = options_.claim_lease};
}

void RunIdHost::Ask() {
  call_ = std::make_unique<RunIdClient>();
  const NumericEndpoint& holder = options_.holder[times_asked_++ % options_.holder.size()];
  call_->Start(ToString(holder), options_.token, MakeQuestion());
  asked_at_ = MonoNow();
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
  call_ = std::make_unique<RunIdClient>();
  const auto answer = call_->Ask(ToString(options_.holder.front()), options_.token, MakeQuestion(),
                                 MonoNow() + kLastAskTimeout, nullptr);
  if (answer.ok() && answer->kind == RunIdClient::Kind::kYours) {
    call_->Leave(closes);
  }
}

}  // namespace fsdprun
