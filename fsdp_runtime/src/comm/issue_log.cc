#include "fsdp_runtime/src/comm/issue_log.h"

#include <algorithm>
#include <cstring>

namespace fsdp {
namespace {

IssueLog::Issued issued_from(const std::string& bytes) {
  IssueLog::Issued issued(bytes.size() / sizeof(shm::Descriptor));
  if (!issued.empty()) {  // memcpy takes no null pointer, not even for nothing
    std::memcpy(issued.data(), bytes.data(), issued.size() * sizeof(shm::Descriptor));
  }
  return issued;
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
  const Issued& issued = lanes_[static_cast<size_t>(lane)];
  return {reinterpret_cast<const char*>(issued.data()), issued.size() * sizeof(shm::Descriptor)};
}

std::string IssueLog::first_difference(Lane lane, const std::vector<std::string>& by_rank) const {
  std::vector<Issued> all;
  size_t longest = 0;
  for (const std::string& bytes : by_rank) {
    all.push_back(issued_from(bytes));
    longest = std::max(longest, all.back().size());
  }
  for (size_t i = 0; i < longest; ++i) {
    std::vector<shm::Descriptor> issued;
    for (const Issued& own : all) {
      // Whoever has issued no more has gone on to the agreement.
      issued.push_back(i < own.size() ? own[i] : shm::Descriptor{});
    }
    if (std::any_of(issued.begin(), issued.end(), [&issued](const shm::Descriptor& other) {
          return !shm::is_same_operation(other, issued.front());
        })) {
      return shm::describe_out_of_step(issued, static_cast<int>(lane),
                                       forgotten_[static_cast<size_t>(lane)] + i + 1);
    }
  }
  return "";
}

}  // namespace fsdp
