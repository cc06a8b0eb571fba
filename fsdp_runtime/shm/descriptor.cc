#include "fsdp_runtime/shm/descriptor.h"

#include <string.h>

#include <algorithm>
#include <iterator>

#include "fsdp_runtime/plan/fnv1a.h"

namespace fsdp::shm {
namespace {

const char* kind_name(Kind kind) {
  static constexpr const char* kNames[] = {"all_gather", "reduce_scatter", "all_reduce",
                                           "broadcast",  "barrier",        "all_gather"};
  const auto index = static_cast<size_t>(kind);
  return index < std::size(kNames) ? kNames[index] : "unknown";
}

// "rank 3", "ranks 0, 1 and 3".
std::string name_ranks(const std::vector<size_t>& ranks, const std::vector<int64_t>& names) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    const char* separator = i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ";
    text +=
        separator + (names.empty() ? std::to_string(ranks[i]) : std::to_string(names[ranks[i]]));
  }
  return text;
}

}  // namespace

Purpose purpose_of(std::string_view text) {
  Purpose purpose{};
  const size_t length = std::min(text.size(), purpose.text.size() - 1);
  text.substr(text.size() - length).copy(purpose.text.data(), length);
  Fnv1a digest;
  for (const char letter : text) {
    digest.mix(static_cast<unsigned char>(letter));
  }
  purpose.digest = digest.digest();
  return purpose;
}

bool is_same_operation(const Descriptor& a, const Descriptor& b) {
  return a.kind == b.kind && a.dtype == b.dtype && a.op == b.op && a.root == b.root &&
         a.numel == b.numel && a.purpose == b.purpose;
}

std::string describe(const Descriptor& descriptor, int lane, uint64_t sequence) {
  const auto& text = descriptor.purpose.text;
  const std::string purpose(text.data(), ::strnlen(text.data(), text.size()));
  return std::string(kind_name(descriptor.kind)) + " #" + std::to_string(sequence) +
         (purpose.empty() ? "" : " for " + purpose) +
         (descriptor.kind == Kind::kWindowGather ? " of window " + std::to_string(descriptor.root)
                                                 : " on lane " + std::to_string(lane)) +
         " (" + std::to_string(descriptor.numel) + " x " + name_of(descriptor.dtype) + ")";
}

std::string describe_out_of_step(const std::vector<Descriptor>& issued, int lane, uint64_t sequence,
                                 const std::vector<int64_t>& names) {
  std::string text;
  std::vector<bool> is_told(issued.size());
  for (size_t first = 0; first < issued.size(); ++first) {
    if (is_told[first]) {
      continue;
    }
    std::vector<size_t> ranks;
    for (size_t rank = first; rank < issued.size(); ++rank) {
      if (is_same_operation(issued[rank], issued[first])) {
        ranks.push_back(rank);
        is_told[rank] = true;
      }
    }
    text += (first == 0 ? "" : ", but ") + name_ranks(ranks, names) + " issued " +
            describe(issued[first], lane, sequence);
  }
  return text +
         "; every rank must call the same units and issue the same operations in the same order: "
         "look for a branch that depends on the rank or its data";
}

}  // namespace fsdp::shm
