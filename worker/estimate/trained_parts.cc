#include "worker/estimate/trained_parts.h"

#include <algorithm>
#include <optional>

#include "formats/models/block_names.h"

namespace fsdprun::worker {
namespace {

constexpr std::string_view kWeightEnd = ".weight";
constexpr std::string_view kAdapterEnd = ".lora_A.weight";

/// What stands behind the number of the block.
std::string NameInBlock(const std::string& name, int64_t block) {
  const std::string number = "." + std::to_string(block) + ".";
  const size_t place = name.find(number);
  return place == std::string::npos ? name : name.substr(place + number.size());
}

std::string Joined(std::string_view layer, std::string_view end) {
  return std::string(layer) + std::string(end);
}

}  // namespace

bool TrainedPart::HasAnyOf(std::initializer_list<std::string_view> beginnings) const {
  return std::any_of(beginnings.begin(), beginnings.end(), [this](std::string_view beginning) {
    const auto found = names.lower_bound(beginning);
    return found != names.end() && found->starts_with(beginning);
  });
}

bool TrainedPart::NeedsInputOf(std::initializer_list<std::string_view> layers) const {
  return std::any_of(layers.begin(), layers.end(), [this](std::string_view layer) {
    return Has(Joined(layer, kWeightEnd)) || Has(Joined(layer, kAdapterEnd));
  });
}

const TrainedPart& TrainedParts::Block(int64_t number) const {
  static const TrainedPart kFrozen;
  const auto found = blocks.find(number);
  return found == blocks.end() ? kFrozen : found->second;
}

TrainedParts TrainedPartsOf(const std::vector<EstimatedWeight>& weights) {
  TrainedParts parts;
  for (const EstimatedWeight& weight : weights) {
    if (!weight.is_trainable) {
      continue;
    }
    const std::optional<int64_t> block = BlockOf(weight.name);
    TrainedPart& part = block ? parts.blocks[*block] : parts.others;
    part.names.insert(block ? NameInBlock(weight.name, *block) : weight.name);
    part.numel += weight.numel();
    part.adapter_ranks += weight.name.ends_with(kAdapterEnd) ? weight.shape.front() : 0;
  }
  return parts;
}

}  // namespace fsdprun::worker
