#include "fsdp_runtime/src/comm/survivors.h"

#include <algorithm>
#include <iterator>
#include <sstream>

namespace fsdp {
namespace {

// How long a look for one rank lasts before those for the others have their turn.
constexpr std::chrono::milliseconds kLook{200};

template <typename Ranks>
std::string ranks_text(const Ranks& ranks) {
  std::string text = ",";  // a key without a value would be one that is not there
  for (const int64_t rank : ranks) {
    text += std::to_string(rank) + ",";
  }
  return text;
}

std::vector<int64_t> ranks_of(const std::string& text) {
  std::vector<int64_t> ranks;
  std::istringstream in(text.substr(1));
  for (std::string rank; std::getline(in, rank, ',');) {
    ranks.push_back(std::stoll(rank));
  }
  return ranks;
}

}  // namespace

std::vector<int64_t> agree_on_survivors(StoreClient& store, const std::string& prefix, int64_t own,
                                        const std::vector<int64_t>& members,
                                        std::set<int64_t> excluded,
                                        StoreClient::TimePoint deadline) {
  const auto key = [&](int64_t rank) { return prefix + "/arrived/" + std::to_string(rank); };
  const std::string decision = prefix + "/members";
  store.set(key(own), ranks_text(excluded));
  std::set<int64_t> arrived;
  while (true) {
    for (const int64_t rank : members) {
      if (!arrived.contains(rank) && store.check({key(rank)})) {
        arrived.insert(rank);
        const std::vector<int64_t> theirs = ranks_of(store.get(key(rank), deadline));
        excluded.insert(theirs.begin(), theirs.end());
      }
    }
    const auto missing = std::find_if(members.begin(), members.end(), [&](int64_t rank) {
      return !arrived.contains(rank) && !excluded.contains(rank);
    });
    const auto now = std::chrono::steady_clock::now();
    if (missing == members.end() || now >= deadline || store.check({decision})) {
      break;
    }
    try {
      store.wait({key(*missing)}, std::min(deadline, now + kLook));
    } catch (const StoreTimeout&) {  // NOLINT(bugprone-empty-catch): what others know counts, too
    }
  }
  std::vector<int64_t> survivors;
  std::copy_if(arrived.begin(), arrived.end(), std::back_inserter(survivors),
               [&](int64_t rank) { return !excluded.contains(rank); });
  // Ranks may have waited for different ones; what the first says counts.
  return ranks_of(store.compare_set(decision, "", ranks_text(survivors)));
}

}  // namespace fsdp
