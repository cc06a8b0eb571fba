#include "formats/checkpoint/save_plan.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <utility>

#include "formats/checkpoint/error.h"
#include "formats/checkpoint/torch_blob.h"

namespace fsdprun::checkpoint {
namespace {

using fsdp::Box;
using fsdp::plan::numel_of;

/// Who writes a part of a tensor.
struct Owner {
  size_t rank = 0;
  size_t slice = 0;
};

/// By the boxes of the part.
using Owners = std::map<std::vector<Box>, Owner>;

/// As Python writes slices: "[0:3, 2:4]".
std::string BoxText(const Box& box) {
  if (box.offsets.size() != box.sizes.size()) {
    return "[" + std::to_string(box.offsets.size()) + " offsets, " +
           std::to_string(box.sizes.size()) + " sizes]";
  }
  std::string text = "[";
  for (size_t d = 0; d < box.sizes.size(); ++d) {
    text += (d == 0 ? "" : ", ") + std::to_string(box.offsets[d]) + ":" +
            std::to_string(box.offsets[d] + box.sizes[d]);
  }
  return text + "]";
}

/// Halves `box` along its first dimension that is longer than one until each part is small enough;
/// the parts follow each other in the box's memory.
void AppendParts(const Box& box, int64_t elements_max, std::vector<Box>& out) {
  size_t dim = 0;
  while (dim < box.sizes.size() && box.sizes[dim] == 1) {
    ++dim;
  }
  if (dim == box.sizes.size() || numel_of(box) <= elements_max) {
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
  const Box whole = fsdp::plan::whole_box(slice.shape);
  for (const Box& box : slice.boxes) {
    if (box.sizes.size() != slice.shape.size() || box.offsets.size() != slice.shape.size() ||
        numel_of(box) == 0 || fsdp::plan::intersect(box, whole) != box) {
      throw CheckpointError("cannot save " + slice.key + ": rank " + std::to_string(rank) +
                            " claims the elements " + BoxText(box) + " of a tensor of " +
                            BoxText(whole));
    }
  }
}

void AddOwner(Owners& owners, const SliceInfo& slice, Owner owner) {
  const auto [held, is_new] = owners.try_emplace(slice.boxes, owner);
  if (!is_new && held->second.rank == owner.rank) {
    throw CheckpointError("cannot save " + slice.key + ": rank " + std::to_string(owner.rank) +
                          " holds " + BoxText(slice.boxes.front()) + " twice (parts overlap)");
  }
}

/// The dimension in which the boxes begin at the most places: along it, few lie side by side.
size_t MostDividedDimension(const std::vector<std::pair<Box, size_t>>& held, size_t dimensions) {
  size_t most_divided = 0;
  size_t places_max = 0;
  for (size_t d = 0; d < dimensions; ++d) {
    std::set<int64_t> places;
    for (const auto& [box, rank] : held) {
      places.insert(box.offsets[d]);
    }
    if (places.size() > places_max) {
      places_max = places.size();
      most_divided = d;
    }
  }
  return most_divided;
}

/// Checks that no two boxes have an element in common.
void CheckDisjoint(std::vector<std::pair<Box, size_t>> held, const SliceInfo& tensor) {
  const size_t d = MostDividedDimension(held, tensor.shape.size());
  std::sort(held.begin(), held.end(), [d](const auto& a, const auto& b) {
    return std::tie(a.first.offsets[d], a) < std::tie(b.first.offsets[d], b);
  });
  for (size_t i = 0; i < held.size(); ++i) {
    const Box& box = held[i].first;
    // What begins behind the box in this dimension cannot overlap it, nor can what follows.
    const int64_t end = box.offsets[d] + box.sizes[d];
    for (size_t k = i + 1; k < held.size() && held[k].first.offsets[d] < end; ++k) {
      if (fsdp::plan::intersect(box, held[k].first)) {
        throw CheckpointError("cannot save " + tensor.key + ": " + BoxText(box) + " of rank " +
                              std::to_string(held[i].second) + " and " + BoxText(held[k].first) +
                              " of rank " + std::to_string(held[k].second) + " overlap");
      }
    }
  }
}

/// Checks that the parts tile the tensor.
void CheckTiling(const Owners& owners, const SliceInfo& tensor) {
  std::vector<std::pair<Box, size_t>> held;  // and the rank
  int64_t numel = 0;
  for (const auto& [boxes, owner] : owners) {
    numel += fsdp::plan::total_numel(boxes);
    for (const Box& box : boxes) {
      held.emplace_back(box, owner.rank);
    }
  }
  if (!tensor.shape.empty()) {
    CheckDisjoint(std::move(held), tensor);
  }
  if (numel != numel_of(tensor.shape)) {
    throw CheckpointError("cannot save " + tensor.key + ": no rank holds " +
                          std::to_string(numel_of(tensor.shape) - numel) + " of its " +
                          std::to_string(numel_of(tensor.shape)) + " elements");
  }
}

}  // namespace

std::vector<std::vector<PlannedChunk>> PlanSave(const std::vector<std::vector<SliceInfo>>& ranks,
                                                int64_t chunk_bytes_max) {
  std::map<std::string, std::pair<const SliceInfo*, Owners>> tensors;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    for (size_t i = 0; i < ranks[rank].size(); ++i) {
      const SliceInfo& slice = ranks[rank][i];
      auto& [first, owners] = tensors.try_emplace(slice.key, &slice, Owners()).first->second;
      CheckSlice(slice, *first, rank);
      if (!slice.boxes.empty()) {
        AddOwner(owners, slice, {rank, i});
      }
    }
  }
  std::vector<std::vector<PlannedChunk>> plan(ranks.size());
  const int64_t bytes_max = std::min(chunk_bytes_max, kBlobDataBytesMax);
  for (const auto& [key, tensor] : tensors) {
    const SliceInfo& info = *tensor.first;
    const int64_t elements_max = std::max<int64_t>(1, bytes_max / InfoOf(info.dtype).element_bytes);
    CheckTiling(tensor.second, info);
    for (const auto& [boxes, owner] : tensor.second) {
      std::vector<Box> parts;
      for (const Box& box : boxes) {
        AppendParts(box, elements_max, parts);
      }
      int64_t begin = 0;
      for (Box& part : parts) {
        const int64_t numel = numel_of(part);
        plan[owner.rank].push_back({owner.slice, std::move(part), begin});
        begin += numel;
      }
    }
  }
  return plan;
}

std::string EncodeSlices(const std::vector<SliceInfo>& slices) {
  nlohmann::json list = nlohmann::json::array();
  for (const SliceInfo& slice : slices) {
    nlohmann::json boxes = nlohmann::json::array();
    for (const Box& box : slice.boxes) {
      boxes.push_back({box.offsets, box.sizes});
    }
    list.push_back({slice.key, static_cast<int>(slice.dtype), slice.shape, std::move(boxes)});
  }
  const std::vector<uint8_t> bytes = nlohmann::json::to_cbor(list);
  return {bytes.begin(), bytes.end()};
}

std::vector<SliceInfo> DecodeSlices(const std::string& bytes) {
  std::vector<SliceInfo> slices;
  for (const nlohmann::json& item : nlohmann::json::from_cbor(bytes)) {
    slices.push_back({item.at(0).get<std::string>(),
                      static_cast<DType>(item.at(1).get<int>()),
                      item.at(2).get<std::vector<int64_t>>(),
                      {}});
    for (const nlohmann::json& box : item.at(3)) {
      slices.back().boxes.push_back(
          {box.at(0).get<std::vector<int64_t>>(), box.at(1).get<std::vector<int64_t>>()});
    }
  }
  return slices;
}

}  // namespace fsdprun::checkpoint
