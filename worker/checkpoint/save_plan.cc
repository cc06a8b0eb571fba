#include "worker/checkpoint/save_plan.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "worker/checkpoint/error.h"
#include "worker/checkpoint/torch_blob.h"

namespace fsdprun::worker::checkpoint {
namespace {

using fsdp::plan::Box;

struct HeldRange {
  int64_t begin = 0;
  int64_t end = 0;
  size_t rank = 0;
  size_t slice = 0;
};

std::string RangeText(int64_t begin, int64_t end) {
  return "[" + std::to_string(begin) + ", " + std::to_string(end) + ")";
}

/// Halves `box` along its first dimension that is longer than one until each part is small enough;
/// the parts stay contiguous element ranges in the order of the elements.
void AppendParts(const Box& box, int64_t elements_max, std::vector<Box>& out) {
  size_t dim = 0;
  while (dim < box.sizes.size() && box.sizes[dim] == 1) {
    ++dim;
  }
  if (dim == box.sizes.size() || fsdp::plan::numel_of(box) <= elements_max) {
    out.push_back(box);
    return;
  }
  Box head = box;
  Box tail = box;
  head.sizes[dim] = box.sizes[dim] / 2;
  tail.offsets[dim] += head.sizes[dim];
  tail.sizes[dim] -= head.sizes[dim];
  AppendParts(head, elements_max, out);
  AppendParts(tail, elements_max, out);
}

void CheckSlice(const SliceInfo& slice, const SliceInfo& first, size_t rank) {
  if (slice.dtype != first.dtype || slice.shape != first.shape) {
    throw CheckpointError("cannot save " + slice.key + ": rank " + std::to_string(rank) +
                          " has another shape or dtype than a lower rank");
  }
  if (slice.begin < 0 || slice.begin > slice.end || slice.end > fsdp::plan::numel_of(slice.shape)) {
    throw CheckpointError("cannot save " + slice.key + ": rank " + std::to_string(rank) +
                          " claims the elements " + RangeText(slice.begin, slice.end) + " of " +
                          std::to_string(fsdp::plan::numel_of(slice.shape)));
  }
}

/// Keeps one rank per range and checks that the ranges tile the tensor.
std::vector<HeldRange> Owners(std::vector<HeldRange> claims, const SliceInfo& tensor) {
  std::sort(claims.begin(), claims.end(), [](const HeldRange& a, const HeldRange& b) {
    return std::tie(a.begin, a.end, a.rank) < std::tie(b.begin, b.end, b.rank);
  });
  std::vector<HeldRange> owners;
  int64_t covered = 0;
  for (const HeldRange& claim : claims) {
    const bool is_copy =
        !owners.empty() && owners.back().begin == claim.begin && owners.back().end == claim.end;
    if (is_copy && owners.back().rank != claim.rank) {
      continue;
    }
    if (claim.begin != covered) {
      throw CheckpointError("cannot save " + tensor.key + ": rank " + std::to_string(claim.rank) +
                            " holds " + RangeText(claim.begin, claim.end) +
                            " where the next element is " + std::to_string(covered) +
                            " (ranges overlap or leave a gap)");
    }
    covered = claim.end;
    owners.push_back(claim);
  }
  if (covered != fsdp::plan::numel_of(tensor.shape)) {
    throw CheckpointError("cannot save " + tensor.key + ": no rank holds the elements from " +
                          std::to_string(covered) + " on");
  }
  return owners;
}

}  // namespace

std::vector<std::vector<PlannedChunk>> PlanSave(const std::vector<std::vector<SliceInfo>>& ranks,
                                                int64_t chunk_bytes_max) {
  std::map<std::string, std::pair<const SliceInfo*, std::vector<HeldRange>>> tensors;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    for (size_t i = 0; i < ranks[rank].size(); ++i) {
      const SliceInfo& slice = ranks[rank][i];
      auto& [first, claims] =
          tensors.try_emplace(slice.key, &slice, std::vector<HeldRange>()).first->second;
      CheckSlice(slice, *first, rank);
      if (slice.begin != slice.end) {
        claims.push_back({slice.begin, slice.end, rank, i});
      }
    }
  }
  std::vector<std::vector<PlannedChunk>> plan(ranks.size());
  const int64_t bytes_max = std::min(chunk_bytes_max, kBlobDataBytesMax);
  for (const auto& [key, tensor] : tensors) {
    const SliceInfo& info = *tensor.first;
    const int64_t elements_max = std::max<int64_t>(1, bytes_max / InfoOf(info.dtype).element_bytes);
    for (const HeldRange& owner : Owners(tensor.second, info)) {
      std::vector<Box> parts;
      for (const Box& box : fsdp::plan::flat_range_to_boxes(info.shape, owner.begin, owner.end)) {
        AppendParts(box, elements_max, parts);
      }
      for (Box& part : parts) {
        const int64_t begin = fsdp::plan::flat_begin_of(info.shape, part);
        const int64_t end = begin + fsdp::plan::numel_of(part);
        plan[owner.rank].push_back({owner.slice, std::move(part), begin, end});
      }
    }
  }
  return plan;
}

std::string EncodeSlices(const std::vector<SliceInfo>& slices) {
  nlohmann::json list = nlohmann::json::array();
  for (const SliceInfo& slice : slices) {
    list.push_back({slice.key, static_cast<int>(slice.dtype), slice.shape, slice.begin, slice.end});
  }
  const std::vector<uint8_t> bytes = nlohmann::json::to_cbor(list);
  return {bytes.begin(), bytes.end()};
}

std::vector<SliceInfo> DecodeSlices(const std::string& bytes) {
  std::vector<SliceInfo> slices;
  for (const nlohmann::json& item : nlohmann::json::from_cbor(bytes)) {
    slices.push_back({item.at(0).get<std::string>(), static_cast<DType>(item.at(1).get<int>()),
                      item.at(2).get<std::vector<int64_t>>(), item.at(3).get<int64_t>(),
                      item.at(4).get<int64_t>()});
  }
  return slices;
}

}  // namespace fsdprun::worker::checkpoint
