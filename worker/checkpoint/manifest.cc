#include "worker/checkpoint/manifest.h"

#include <nlohmann/json.hpp>

#include "worker/checkpoint/error.h"
#include "worker/checkpoint/file_system.h"

namespace fsdprun::worker::checkpoint {
namespace {

using nlohmann::json;

constexpr int kSchema = 1;
constexpr char kChecksumField[] = "manifest_xxh3";
constexpr int kDepthMax = 64;  // the destructor of deeper JSON recurses deeply

json FileToJson(const ManifestFile& file) {
  json items = json::array();
  for (const ManifestItem& item : file.items) {
    items.push_back(
        {{"key", item.key}, {"offset", item.offset}, {"length", item.length}, {"xxh3", item.xxh3}});
  }
  return {{"bytes", file.bytes}, {"xxh3", file.xxh3}, {"items", std::move(items)}};
}

ManifestFile FileFromJson(const json& value, const std::string& complaint) {
  ManifestFile file;
  file.bytes = value.at("bytes").get<int64_t>();
  if (file.bytes < 0) {
    throw CheckpointError(complaint + std::to_string(file.bytes) + " bytes");
  }
  file.xxh3 = value.at("xxh3").get<std::string>();
  for (const json& item : value.at("items")) {
    file.items.push_back({item.at("key").get<std::string>(), item.at("offset").get<int64_t>(),
                          item.at("length").get<int64_t>(), item.at("xxh3").get<std::string>()});
    const ManifestItem& last = file.items.back();
    if (last.offset < 0 || last.length < 0 || last.offset > file.bytes ||
        last.length > file.bytes - last.offset) {
      throw CheckpointError(complaint + "the item " + last.key + " outside of it");
    }
  }
  return file;
}

Manifest FromJson(const json& value, const std::string& what) {
  Manifest manifest;
  manifest.step = value.at("step").get<int64_t>();
  manifest.tokens = value.at("tokens").get<int64_t>();
  manifest.world_size = value.at("world_size").get<int64_t>();
  manifest.generation = value.at("generation").get<uint64_t>();
  manifest.sequence = value.at("sequence").get<int64_t>();
  manifest.job_id = value.at("job_id").get<std::string>();
  manifest.run = value.value("run", manifest.job_id);
  for (const auto& [name, file] : value.at("files").items()) {
    manifest.files[name] = FileFromJson(file, what + " is damaged: " + name + " has ");
  }
  return manifest;
}

}  // namespace

std::string EncodeManifest(const Manifest& manifest) {
  json files = json::object();
  for (const auto& [name, file] : manifest.files) {
    files[name] = FileToJson(file);
  }
  json value = {{"schema", kSchema},
                {"step", manifest.step},
                {"tokens", manifest.tokens},
                {"world_size", manifest.world_size},
                {"generation", manifest.generation},
                {"sequence", manifest.sequence},
                {"job_id", manifest.job_id},
                {"run", manifest.run},
                {"files", std::move(files)}};
  value[kChecksumField] = HashBytes(value.dump());
  return value.dump(1) + "\n";
}

Manifest DecodeManifest(std::string_view text, const std::string& what) {
  const auto keep = [&what](int depth, json::parse_event_t, json&) {
    if (depth > kDepthMax) {
      throw CheckpointError(what + " is damaged: it is nested deeper than " +
                            std::to_string(kDepthMax));
    }
    return true;
  };
  json value = json::parse(text, keep, false);
  if (!value.is_object() || !value.contains(kChecksumField)) {
    throw CheckpointError(what + " is damaged: it is no JSON object with a checksum");
  }
  const json checksum = value[kChecksumField];
  value.erase(kChecksumField);
  try {
    if (checksum != json(HashBytes(value.dump()))) {
      throw CheckpointError(what + " is damaged: its checksum does not match its content");
    }
    if (value.at("schema") != kSchema) {
      throw CheckpointError(what + " has schema " + value.at("schema").dump() +
                            "; this build reads " + std::to_string(kSchema) +
                            ": use the build that wrote it");
    }
    return FromJson(value, what);
  } catch (const json::exception& error) {
    throw CheckpointError(what + " is damaged: " + error.what());
  }
}

}  // namespace fsdprun::worker::checkpoint
