#include "launcher/daemon/slot_ledger.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace fsdprun {
namespace {

/// Of those that are named in a refusal.
constexpr size_t kMostUsers = 16;

std::string Slots(int count) { return absl::StrCat(count, count == 1 ? " slot" : " slots"); }

}  // namespace

SlotLedger::SlotLedger(std::string node, int slots, std::vector<std::string> devices)
    : node_(std::move(node)), slots_(slots), devices_(std::move(devices)) {}

absl::StatusOr<std::vector<std::string>> SlotLedger::Take(const std::string& session,
                                                          const std::string& title, int slots) {
  if (slots > slots_) {
    return absl::OutOfRangeError(
        absl::StrCat(node_, " has ", Slots(slots_), ", and ", slots,
                     " are needed; give a lower --nproc-per-node, or the daemon more --slots"));
  }
  if (slots > free_slots()) {
    return absl::ResourceExhaustedError(
        absl::StrCat(node_, " has ", Slots(slots_), ", of which ", free_slots(),
                     free_slots() == 1 ? " is free, and " : " are free, and ", slots,
                     slots == 1 ? " is needed: " : " are needed: ", Users(),
                     "; wait for their end, or take other nodes"));
  }
  Holding holding{title, slots, {}};
  for (const std::string& device : devices_) {
    if (holding.devices.size() < static_cast<size_t>(slots) && IsFree(device)) {
      holding.devices.push_back(device);
    }
  }
  return (holdings_[session] = std::move(holding)).devices;
}

void SlotLedger::Restore(const std::string& session, const std::string& title, int slots,
                         const std::vector<std::string>& devices) {
  Holding holding{title, slots, {}};
  for (const std::string& device : devices) {
    if (std::find(devices_.begin(), devices_.end(), device) != devices_.end()) {
      holding.devices.push_back(device);
    }
  }
  holdings_[session] = std::move(holding);
}

void SlotLedger::Free(const std::string& session) { holdings_.erase(session); }

// A daemon that was started again with less may have given more.
int SlotLedger::free_slots() const {
  int used = 0;
  for (const auto& [session, holding] : holdings_) {
    used += holding.slots;
  }
  return std::max(0, slots_ - used);
}

bool SlotLedger::IsFree(const std::string& device) const {
  return std::none_of(holdings_.begin(), holdings_.end(), [&device](const auto& entry) {
    const std::vector<std::string>& taken = entry.second.devices;
    return std::find(taken.begin(), taken.end(), device) != taken.end();
  });
}

std::string SlotLedger::Users() const {
  std::vector<std::string> users;
  for (const auto& [session, holding] : holdings_) {
    users.push_back(
        absl::StrCat(Slots(holding.slots),
                     holding.devices.empty()
                         ? ""
                         : absl::StrCat(" (devices ", absl::StrJoin(holding.devices, ","), ")"),
                     " by ", holding.title));
  }
  const size_t more = users.size() > kMostUsers ? users.size() - kMostUsers : 0;
  users.resize(users.size() - more);
  return absl::StrCat(absl::StrJoin(users, ", "),
                      more == 0 ? "" : absl::StrCat(", and by ", more, " more jobs"));
}

}  // namespace fsdprun
