#include "formats/checkpoint/manifest.h"

#include <nlohmann/json.hpp>

#include "formats/checkpoint/error.h"
#include "formats/checkpoint/file_system.h"

namespace fsdprun::checkpoint {
namespace {

using nlohmann::json;

constexpr int kSchema = 1;
constexpr char kChecksumField[] = "manifest_xxh3";
constexpr int kManifestDepthMax = 64;  // the destructor of deeper JSON recurses deeply

json FileToJson(const ManifestFile& file) {
  json items = json::array();
  for (const ManifestItem& item : file.items) {
    items.push_back(
        {{"key", item.key}, {"offset", item.offset}, {"length", item.length}, {"xxh3", item.xxh3}});
  }
  return {{"bytes", file.bytes}, {"xxh3", file.xxh3}, {"items", std::move(items)}};
}

/// `key` of `value`. Conversions of negative numbers, fractions and large numbers would wrap.
int64_t CountFromJson(const json& value, const char* key, const std::string& complaint) {
  const json& number = value.at(key);
  if (!number.is_number_unsigned() || number > kManifestNumberMax) {
    throw CheckpointError(complaint + key + " = " + number.dump() +
                          ": expected a whole number from 0 to 2^53");
  }
  return number.get<int64_t>();
}

bool IsPlainName(const std::string& name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\0", 2)) == std::string::npos;
}

/// Whatever its starter counts with, such as nanoseconds.
uint64_t GenerationFromJson(const json& number, const std::string& complaint) {
  if (!number.is_number_unsigned()) {
    throw CheckpointError(complaint + "generation = " + number.dump() +
                          ": expected a whole number from 0 to 2^64 - 1");
  }
  return number.get<uint64_t>();
}

ManifestFile FileFromJson(const json& value, const std::string& complaint) {
  ManifestFile file;
  file.bytes = CountFromJson(value, "bytes", complaint);
  file.xxh3 = value.at("xxh3").get<std::string>();
  for (const json& item : value.at("items")) {
    file.items.push_back(
        {item.at("key").get<std::string>(), CountFromJson(item, "offset", complaint),
         CountFromJson(item, "length", complaint), item.at("xxh3").get<std::string>()});
    const ManifestItem& last = file.items.back();
    if (last.offset > file.bytes || last.length > file.bytes - last.offset) {
      throw CheckpointError(complaint + "the item " + last.key + " outside of it");
    }
  }
  return file;
}

Manifest FromJson(const json& value, const std::string& what) {
  const std::string damaged = what + " is damaged: ";
  Manifest manifest;
  manifest.step = CountFromJson(value, "step", damaged);
  manifest.tokens = CountFromJson(value, "tokens", damaged);
  manifest.world_size = CountFromJson(value, "world_size", damaged);
  manifest.generation = GenerationFromJson(value.at("generation"), damaged);
  manifest.sequence = CountFromJson(value, "sequence", damaged);
  manifest.job_id = value.at("job_id").get<std::string>();
  manifest.run = value.value("run", manifest.job_id);
  for (const auto& [name, file] : value.at("files").items()) {
    if (!IsPlainName(name)) {
      throw CheckpointError(damaged + "a file is called " + json(name).dump());
    }
    manifest.files[name] = FileFromJson(file, damaged + name + " has ");
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
    if (depth > kManifestDepthMax) {
      throw CheckpointError(what + " is damaged: it is nested deeper than " +
                            std::to_string(kManifestDepthMax));
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

}  // namespace fsdprun::checkpoint
