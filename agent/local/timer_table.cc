#include "agent/local/timer_table.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

namespace fsdprun {
namespace {

constexpr int kMaxSignal = 64;
/// A year. Whatever lies further away is no time-out, and must not overflow.
constexpr double kLongestS = 366.0 * 24 * 3600;

Duration ToDuration(double seconds) {
  return std::chrono::duration_cast<Duration>(
      std::chrono::duration<double>(std::clamp(seconds, -kLongestS, kLongestS)));
}

}  // namespace

std::optional<TimerRequest> ParseTimerRequest(std::string_view line) {
  const nlohmann::json json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return std::nullopt;
  }
  const auto pid = json.find("pid"), scope = json.find("scope_id"),
             expires = json.find("expiration_time"), signal = json.find("signal");
  for (const auto& field : {pid, scope, expires, signal}) {
    if (field == json.end()) {
      return std::nullopt;
    }
  }
  if (!pid->is_number_integer() || !scope->is_string() || !expires->is_number() ||
      !signal->is_number_integer()) {
    return std::nullopt;
  }
  const auto number = pid->get<int64_t>(), signal_number = signal->get<int64_t>();
  const double expires_unix_s = expires->get<double>();
  if (number <= 0 || number > std::numeric_limits<int32_t>::max() || signal_number > kMaxSignal ||
      !std::isfinite(expires_unix_s)) {
    return std::nullopt;
  }
  return TimerRequest{.pid = static_cast<int32_t>(number),
                      .scope = scope->get<std::string>(),
                      .expires_unix_s = expires_unix_s,
                      .signal = static_cast<int>(std::max<int64_t>(signal_number, 0))};
}

bool TimerTable::Acquire(const TimerRequest& request, const ProcessInfo& process, double unix_now_s,
                         MonoTime now) {
  const Key key(request.pid, request.scope);
  if (timers_.size() >= kMaxTimers && timers_.count(key) == 0) {
    return false;
  }
  const Duration left = ToDuration(request.expires_unix_s - unix_now_s);
  timers_[key] = {.process = process,
                  .expires_unix_s = request.expires_unix_s,
                  .signal = request.signal,
                  .deadline = now + left,
                  .length = std::max(left, Duration::zero())};
  return true;
}

void TimerTable::Release(int32_t pid, const std::string& scope) { timers_.erase({pid, scope}); }

void TimerTable::Drop(int32_t pid) {
  std::erase_if(timers_, [pid](const auto& entry) { return entry.first.first == pid; });
}

MonoTime TimerTable::next() const {
  MonoTime first = MonoTime::max();
  for (const auto& [key, timer] : timers_) {
    first = std::min(first, timer.deadline);
  }
  return first;
}

std::vector<ExpiredTimer> TimerTable::TakeExpired(MonoTime now, Duration stall) {
  std::vector<ExpiredTimer> expired;
  for (auto it = timers_.begin(); it != timers_.end();) {
    Timer& timer = it->second;
    const bool is_due = timer.deadline <= now;
    const Duration again = std::min(stall, timer.length);
    if (is_due && again > Duration::zero()) {
      timer.deadline = now + again;
    }
    if (timer.deadline > now) {
      ++it;
      continue;
    }
    expired.push_back({.process = timer.process,
                       .scope = it->first.second,
                       .expires_unix_s = timer.expires_unix_s,
                       .signal = timer.signal,
                       .late = now - timer.deadline});
    it = timers_.erase(it);
  }
  std::stable_sort(expired.begin(), expired.end(), [](const auto& a, const auto& b) {
    return a.expires_unix_s < b.expires_unix_s;
  });
  std::set<pid_t> signalled;
  std::erase_if(expired, [&signalled](const ExpiredTimer& timer) {
    return signalled.count(timer.process.pid) > 0 ||
           (timer.signal > 0 && !signalled.insert(timer.process.pid).second);
  });
  for (const pid_t pid : signalled) {
    Drop(pid);
  }
  return expired;
}

}  // namespace fsdprun
