#include "formats/safetensors/safetensors_writer.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <string_view>

#include "formats/safetensors/safetensors.h"
#include "fsdp_runtime/archive/error.h"

namespace fsdprun {
namespace {

using fsdp::archive::Error;

constexpr size_t kHeaderBytesMax = 100'000'000;
constexpr size_t kAlignment = 8;
constexpr int64_t kBitsMax = int64_t{1} << 62;

void CheckNames(const std::vector<SafetensorsItem>& items) {
  std::set<std::string_view> names;
  for (const SafetensorsItem& item : items) {
    if (item.name == "__metadata__") {
      throw Error("cannot write a tensor of the name __metadata__: safetensors reserves it");
    }
    if (!names.insert(item.name).second) {
      throw Error("cannot write the tensor " + item.name + " twice into one file");
    }
  }
}

/// Serialized, without the padding.
std::string HeaderText(const std::vector<SafetensorsItem>& items, const std::vector<size_t>& order,
                       const std::vector<int64_t>& begins, const std::vector<int64_t>& bytes) {
  Json header = Json::object();
  header["__metadata__"] = {{"format", "pt"}};
  for (const size_t i : order) {
    header[items[i].name] = {{"dtype", items[i].dtype},
                             {"shape", items[i].shape},
                             {"data_offsets", {begins[i], begins[i] + bytes[i]}}};
  }
  try {
    return header.dump();
  } catch (const nlohmann::json::exception& error) {
    throw Error(std::string("cannot write the names of tensors: ") + error.what());
  }
}

}  // namespace

int64_t SafetensorsBytes(const SafetensorsItem& item) {
  int64_t bits = SafetensorsDtypeBits(item.dtype);
  if (bits == 0) {
    throw Error("cannot write " + item.name + ": safetensors has no dtype " + item.dtype);
  }
  for (const int64_t size : item.shape) {
    if (size < 0 || (size > 0 && bits > kBitsMax / size)) {
      throw Error("cannot write " + item.name + ": the size " + std::to_string(size) +
                  " of a dimension is not possible");
    }
    bits *= size;
  }
  if (bits % 8 != 0) {
    throw Error("cannot write " + item.name + ": its elements do not fill whole bytes");
  }
  return bits / 8;
}

SafetensorsLayout LayOutSafetensors(const std::vector<SafetensorsItem>& items) {
  CheckNames(items);
  std::vector<size_t> order(items.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const int64_t a_bits = SafetensorsDtypeBits(items[a].dtype);
    const int64_t b_bits = SafetensorsDtypeBits(items[b].dtype);
    return a_bits != b_bits ? a_bits > b_bits : items[a].name < items[b].name;
  });
  SafetensorsLayout layout;
  layout.begins.resize(items.size());
  std::vector<int64_t> bytes(items.size());
  int64_t end = 0;
  for (const size_t i : order) {
    bytes[i] = SafetensorsBytes(items[i]);
    layout.begins[i] = end;
    if (__builtin_add_overflow(end, bytes[i], &end)) {
      throw Error("cannot write the tensors: together they have more than 2^63 bytes");
    }
  }
  std::string text = HeaderText(items, order, layout.begins, bytes);
  text.append((kAlignment - text.size() % kAlignment) % kAlignment, ' ');
  if (text.size() > kHeaderBytesMax) {
    throw Error("cannot write " + std::to_string(items.size()) + " tensors into one file: " +
                "its header would have " + std::to_string(text.size()) + " bytes, at most " +
                std::to_string(kHeaderBytesMax) + " are allowed; divide it with --max-shard-size");
  }
  for (size_t i = 0; i < 8; ++i) {
    layout.head += static_cast<char>(static_cast<uint64_t>(text.size()) >> (8 * i));
  }
  layout.head += text;
  for (int64_t& begin : layout.begins) {
    begin += static_cast<int64_t>(layout.head.size());
  }
  layout.file_bytes = end + static_cast<int64_t>(layout.head.size());
  return layout;
}

std::vector<std::vector<size_t>> DivideIntoShards(const std::vector<SafetensorsItem>& items,
                                                  int64_t bytes_max) {
  std::vector<std::vector<size_t>> shards(1);
  int64_t shard_bytes = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    const int64_t bytes = SafetensorsBytes(items[i]);
    if (!shards.back().empty() && bytes > bytes_max - shard_bytes) {
      shards.emplace_back();
      shard_bytes = 0;
    }
    shards.back().push_back(i);
    shard_bytes += bytes;
  }
  return shards;
}

std::string ShardFileName(size_t shard, size_t count) {
  if (count == 1) {
    return "model.safetensors";
  }
  char name[80];
  std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", shard + 1, count);
  return name;
}

std::string ShardIndex(const std::vector<SafetensorsItem>& items,
                       const std::vector<std::vector<size_t>>& shards) {
  int64_t total = 0;
  Json map = Json::object();
  for (size_t shard = 0; shard < shards.size(); ++shard) {
    for (const size_t i : shards[shard]) {
      total += SafetensorsBytes(items[i]);
      map[items[i].name] = ShardFileName(shard, shards.size());
    }
  }
  const Json index = {{"metadata", {{"total_size", total}}}, {"weight_map", std::move(map)}};
  return index.dump(2) + "\n";
}

bool IsModelFileName(const std::string& name) {
  if (name == "model.safetensors" || name == "model.safetensors.index.json") {
    return true;
  }
  unsigned shard = 0;
  unsigned count = 0;
  int end = 0;
  return std::sscanf(name.c_str(), "model-%5u-of-%5u.safetensors%n", &shard, &count, &end) == 2 &&
         static_cast<size_t>(end) == name.size();
}

}  // namespace fsdprun
