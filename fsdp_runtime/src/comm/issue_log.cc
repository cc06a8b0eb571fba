#include "fsdp_runtime/src/comm/issue_log.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace fsdp {
namespace {

/// What one rank remembers of a lane.
struct Remembered {
  uint64_t forgotten = 0;  // operations before the first of `issued`
  IssueLog::Issued issued;

  uint64_t count() const { return forgotten + issued.size(); }
  /// Of `number`, from 0, which is not forgotten. Whoever has issued no more has gone on to the
  /// agreement.
  shm::Descriptor at(uint64_t number) const {
    return number < count() ? issued[number - forgotten] : shm::Descriptor{};
  }
};

Remembered remembered_from(const std::string& bytes) {
  Remembered own;
  constexpr size_t kHeader = sizeof(own.forgotten);
  if (bytes.size() < kHeader) {
    return own;
  }
  std::memcpy(&own.forgotten, bytes.data(), kHeader);
  own.issued.resize((bytes.size() - kHeader) / sizeof(shm::Descriptor));
  if (!own.issued.empty()) {  // memcpy takes no null pointer, not even for nothing
    std::memcpy(own.issued.data(), bytes.data() + kHeader,
                own.issued.size() * sizeof(shm::Descriptor));
  }
  return own;
}

std::string called_on_lane(size_t rank, const std::vector<int64_t>& names) {
  return "rank " + std::to_string(names.empty() ? static_cast<int64_t>(rank) : names[rank]);
}

/// Some ranks have forgotten operations that others have not even issued.
std::string describe_forgotten(const std::vector<Remembered>& all, Lane lane,
                               const std::vector<int64_t>& names) {
  const auto [fewest, most] = std::minmax_element(
      all.begin(), all.end(),
      [](const Remembered& a, const Remembered& b) { return a.count() < b.count(); });
  const auto told = [&](auto found) {
    return called_on_lane(static_cast<size_t>(found - all.begin()), names) + " has issued " +
           std::to_string(found->count());
  };
  return "the ranks have not issued the same operations on lane " +
         std::to_string(static_cast<int>(lane)) + ": since they last agreed, " + told(fewest) +
         ", but " + told(most) + " and does not remember the first " +
         std::to_string(most->forgotten) +
         ", of which one is the first that differs; look for a branch that depends on the rank or "
         "its data";
}

}  // namespace

void IssueLog::add(Lane lane, const shm::Descriptor& issued) {
  const auto index = static_cast<size_t>(lane);
  if (lanes_[index].size() == kRemembered) {
    lanes_[index].clear();
    forgotten_[index] += kRemembered;
  }
  lanes_[index].push_back(issued);
  last_lane_ = lane;
  for (const uint64_t value :
       {static_cast<uint64_t>(index), static_cast<uint64_t>(issued.kind),
        static_cast<uint64_t>(issued.dtype), static_cast<uint64_t>(issued.op),
        static_cast<uint64_t>(issued.root), issued.numel, issued.purpose.digest}) {
    digest_.mix(value);
  }
}

std::string IssueLog::last() const {
  const auto index = static_cast<size_t>(last_lane_);
  if (lanes_[index].empty()) {
    return "nothing";
  }
  return shm::describe(lanes_[index].back(), static_cast<int>(index),
                       forgotten_[index] + lanes_[index].size());
}

std::string IssueLog::bytes_of(Lane lane) const {
  const auto index = static_cast<size_t>(lane);
  const Issued& issued = lanes_[index];
  std::string bytes(reinterpret_cast<const char*>(&forgotten_[index]), sizeof(forgotten_[index]));
  return bytes.append(reinterpret_cast<const char*>(issued.data()),
                      issued.size() * sizeof(shm::Descriptor));
}

std::string IssueLog::first_difference(Lane lane, const std::vector<std::string>& by_rank,
                                       const std::vector<int64_t>& names, Extent extent) {
  std::vector<Remembered> all;
  uint64_t begin = 0;  // of what all ranks remember
  uint64_t least = std::numeric_limits<uint64_t>::max();
  uint64_t end = 0;
  for (const std::string& bytes : by_rank) {
    all.push_back(remembered_from(bytes));
    begin = std::max(begin, all.back().forgotten);
    least = std::min(least, all.back().count());
    end = std::max(end, all.back().count());
  }
  end = extent == Extent::kAll ? end : least;
  for (uint64_t number = begin; number < end && least >= begin; ++number) {
    std::vector<shm::Descriptor> issued;
    issued.reserve(all.size());
    for (const Remembered& own : all) {
      issued.push_back(own.at(number));
    }
    const bool is_same =
        std::all_of(issued.begin(), issued.end(), [&issued](const shm::Descriptor& other) {
          return shm::is_same_operation(other, issued.front());
        });
    if (!is_same) {
      const std::string text =
          shm::describe_out_of_step(issued, static_cast<int>(lane), number + 1, names);
      return begin == 0 ? text
                        : text + "; not all ranks remember the " + std::to_string(begin) +
                              " operations of this lane before, so an earlier one may be the first "
                              "that differs";
    }
  }
  return least < begin && extent == Extent::kAll ? describe_forgotten(all, lane, names) : "";
}

std::string IssueLog::different_counts(Lane lane, const std::vector<std::string>& by_rank,
                                       const std::vector<int64_t>& names) {
  std::string text;
  bool is_same = true;
  uint64_t first_count = 0;
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    const Remembered own = remembered_from(by_rank[rank]);
    first_count = rank == 0 ? own.count() : first_count;
    is_same = is_same && own.count() == first_count;
    text += (rank == 0 ? "" : ", ") + called_on_lane(rank, names) + " has issued " +
            std::to_string(own.count()) + " operations on lane " +
            std::to_string(static_cast<int>(lane));
    if (!own.issued.empty()) {
      text += ", the last " + shm::describe(own.issued.back(), static_cast<int>(lane), own.count());
    }
  }
  return is_same ? "" : text;
}

}  // namespace fsdp
