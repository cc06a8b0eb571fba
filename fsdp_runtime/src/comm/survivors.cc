#include "fsdp_runtime/src/comm/survivors.h"

#include <algorithm>
#include <iterator>
#include <sstream>

namespace fsdp {
namespace {

using TimePoint = StoreClient::TimePoint;

// How long a look for one rank lasts before those for the others have their turn.
constexpr std::chrono::milliseconds kLook{200};

// A store that is silent for a while is asked again: it is when something has gone wrong that ranks
// meet here, and one that gave up would leave the others with a member that does not come. `call`
// must be idempotent.
template <typename Call>
auto ask(TimePoint deadline, const Call& call) {
  while (true) {
    try {
      return call();
    } catch (const StoreSilence&) {
      if (std::chrono::steady_clock::now() >= deadline) {
        throw;
      }
    }
  }
}

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
                                        const std::function<std::set<int64_t>()>& gone,
                                        TimePoint deadline) {
  const auto key = [&](int64_t rank) { return prefix + "/arrived/" + std::to_string(rank); };
  const auto is_there = [&](const std::string& what) {
    return ask(deadline, [&] { return store.check({what}); });
  };
  const std::string decision = prefix + "/members";
  ask(deadline, [&] { return store.compare_set(key(own), "", ranks_text(excluded)); });
  std::set<int64_t> arrived;
  while (true) {
    excluded.merge(gone());
    for (const int64_t rank : members) {
      if (!arrived.contains(rank) && is_there(key(rank))) {
        arrived.insert(rank);
        const std::vector<int64_t> theirs =
            ranks_of(ask(deadline, [&] { return store.get(key(rank), store.deadline()); }));
        excluded.insert(theirs.begin(), theirs.end());
      }
    }
    const auto missing = std::find_if(members.begin(), members.end(), [&](int64_t rank) {
      return !arrived.contains(rank) && !excluded.contains(rank);
    });
    const auto now = std::chrono::steady_clock::now();
    if (missing == members.end() || now >= deadline || is_there(decision)) {
      break;
    }
    try {
      store.wait({key(*missing)}, std::min(deadline, now + kLook));
    } catch (const StoreSilence&) {  // NOLINT(bugprone-empty-catch): it is asked again
    } catch (const StoreTimeout&) {  // NOLINT(bugprone-empty-catch): what others know counts, too
    }
  }
  std::vector<int64_t> survivors;
  std::copy_if(arrived.begin(), arrived.end(), std::back_inserter(survivors),
               [&](int64_t rank) { return !excluded.contains(rank); });
  // Ranks may have waited for different ones; what the first says counts.
  return ranks_of(
      ask(deadline, [&] { return store.compare_set(decision, "", ranks_text(survivors)); }));
}

}  // namespace fsdp
