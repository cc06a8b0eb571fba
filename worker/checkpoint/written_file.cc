#include "worker/checkpoint/written_file.h"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

namespace fsdprun::checkpoint {
namespace {

using nlohmann::json;

}  // namespace

std::string EncodeWritten(const ManifestFile& file) {
  json items = json::array();
  for (const ManifestItem& item : file.items) {
    items.push_back({item.key, item.offset, item.length, item.xxh3});
  }
  const std::vector<uint8_t> bytes = json::to_cbor(json{file.bytes, file.xxh3, items});
  return {bytes.begin(), bytes.end()};
}

ManifestFile DecodeWritten(const std::string& bytes) {
  const json value = json::from_cbor(bytes);
  ManifestFile file{value.at(0).get<int64_t>(), value.at(1).get<std::string>(), {}};
  for (const json& item : value.at(2)) {
    file.items.push_back({item.at(0).get<std::string>(), item.at(1).get<int64_t>(),
                          item.at(2).get<int64_t>(), item.at(3).get<std::string>()});
  }
  return file;
}

}  // namespace fsdprun::checkpoint
