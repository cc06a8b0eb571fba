#include "launcher/rpc/run_id_table.h"

#include <algorithm>

namespace fsdprun {

RunIdTable::Answer RunIdTable::Ask(const std::string& run_id,
                                   const std::vector<std::string>& endpoints, uint64_t caller) {
  if (run_id == own_) {
    return {Kind::kHere, {}};
  }
  if (std::find(closed_.begin(), closed_.end(), run_id) != closed_.end()) {
    return {Kind::kClosed, {}};
  }
  if (const auto host = hosts_.find(run_id); host != hosts_.end()) {
    return {Kind::kThere, host->second.endpoints};
  }
  if (endpoints.empty() || hosts_.size() >= kMaxHosts) {
    return {Kind::kUnknown, {}};
  }
  hosts_[run_id] = {caller, endpoints};
  return {Kind::kYours, {}};
}

void RunIdTable::Leave(uint64_t caller, bool closes) {
  const auto host = std::find_if(hosts_.begin(), hosts_.end(), [caller](const auto& entry) {
    return entry.second.caller == caller;
  });
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

}  // namespace fsdprun
