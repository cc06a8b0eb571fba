#include "launcher/rpc/run_id_table.h"

#include <algorithm>

namespace fsdprun {
namespace {

Duration Bounded(Duration claim_lease) {
  return std::clamp(claim_lease, Clocks{}.claim_lease, ClocksFor(kLongestNodeLease).claim_lease);
}

}  // namespace

RunIdTable::Answer RunIdTable::Ask(const Question& question, uint64_t caller, MonoTime now) {
  const std::string& run_id = question.run_id;
  if (run_id == own_) {
    return {Kind::kHere, {}};
  }
  if (std::find(closed_.begin(), closed_.end(), run_id) != closed_.end()) {
    return {Kind::kClosed, {}};
  }
  DropLostHosts(question, now);
  const auto host = hosts_.find(run_id);
  const bool is_hosts_own =
      host != hosts_.end() && question.hosts && host->second.endpoints == question.endpoints;
  if (host != hosts_.end() && !is_hosts_own) {
    return {Kind::kThere, host->second.endpoints};
  }
  if (question.endpoints.empty() || (host == hosts_.end() && hosts_.size() >= kMaxHosts)) {
    return {Kind::kUnknown, {}};
  }
  if (!question.hosts && now < settled_at_) {
    return {Kind::kWait, {}};
  }
  hosts_[run_id] = {caller, question.endpoints, Bounded(question.claim_lease)};
  return {Kind::kYours, {}};
}

void RunIdTable::DropLostHosts(const Question& question, MonoTime now) {
  std::erase_if(hosts_, [&](const auto& entry) {
    const auto& [run_id, host] = entry;
    const bool is_refused = run_id == question.run_id && host.endpoints == question.refused;
    const bool is_over = host.broken_at.has_value() && now >= *host.broken_at + host.claim_lease;
    return is_over || (host.broken_at.has_value() && is_refused);
  });
}

RunIdTable::Hosts::iterator RunIdTable::HostedBy(uint64_t caller) {
  return std::find_if(hosts_.begin(), hosts_.end(),
                      [caller](const auto& entry) { return entry.second.caller == caller; });
}

void RunIdTable::Leave(uint64_t caller, bool closes) {
  const auto host = HostedBy(caller);
  if (host == hosts_.end()) {
    return;
  }
  if (closes) {
    closed_.push_back(host->first);
  }
  if (closed_.size() > kMaxClosed) {
    closed_.pop_front();
  }
  hosts_.erase(host);
}

void RunIdTable::Break(uint64_t caller, MonoTime now) {
  if (const auto host = HostedBy(caller); host != hosts_.end()) {
    host->second.broken_at = host->second.broken_at.value_or(now);
  }
}

bool RunIdTable::Hear(uint64_t caller, MonoTime now) {
  const auto host = HostedBy(caller);
  if (host == hosts_.end()) {
    return false;
  }
  host->second.heard_at = now;
  host->second.broken_at.reset();
  return true;
}

void RunIdTable::NoteSilence(MonoTime now) {
  for (auto& [run_id, host] : hosts_) {
    if (host.heard_at.has_value() && now - *host.heard_at >= kSilence) {
      host.broken_at = host.broken_at.value_or(now);
    }
  }
}

}  // namespace fsdprun
