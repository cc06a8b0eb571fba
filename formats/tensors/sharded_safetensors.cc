#include <algorithm>
#include <cstdio>
#include <optional>
#include <set>
#include <utility>

#include "formats/tensors/dtype_names.h"
#include "formats/tensors/safetensors_tensors.h"

namespace fsdprun {
namespace {

using fsdp::Box;

constexpr char kSharding[] = "DCP_SHARDING_INFO";
constexpr int64_t kOffsetMax = int64_t{1} << 53;

struct ShardName {
  unsigned shard = 0;  // from 1: the rank
  unsigned file = 0;   // from 1
  unsigned count = 0;
};

/// "shard-00002-model-00001-of-00003.safetensors"
std::optional<ShardName> ParseShardName(const std::string& name) {
  ShardName parsed;
  int end = 0;
  const bool fits = std::sscanf(name.c_str(), "shard-%5u-model-%5u-of-%5u.safetensors%n",
                                &parsed.shard, &parsed.file, &parsed.count, &end) == 3 &&
                    static_cast<size_t>(end) == name.size();
  return fits ? std::optional(parsed) : std::nullopt;
}

std::vector<std::string> SafetensorsNames(const std::filesystem::path& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().extension() == ".safetensors") {
      names.push_back(entry->path().filename().string());
    }
  }
  if (error) {
    throw ConfigError("cannot list " + directory.string() + ": " + error.message());
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// A rank that is missing between others.
void CheckNoGap(const std::string& directory, const std::vector<std::string>& names) {
  std::set<unsigned> shards;
  for (const std::string& name : names) {
    if (const std::optional<ShardName> parsed = ParseShardName(name)) {
      shards.insert(parsed->shard);
    }
  }
  unsigned expected = 1;
  for (const unsigned shard : shards) {
    if (shard != expected) {
      char missing[40];
      std::snprintf(missing, sizeof missing, "shard-%05u-model-*", expected);
      throw ConfigError(directory + " is not complete: it has no " + missing +
                        " but files of later ranks; copy all files of the checkpoint");
    }
    ++expected;
  }
}

/// Where the file's part of each tensor begins; none are said: all begin at 0.
std::map<std::string, std::vector<int64_t>> OffsetsOf(const SafetensorsFile& file) {
  const auto text = file.header().metadata.find(kSharding);
  if (text == file.header().metadata.end()) {
    return {};
  }
  return ParseShardOffsets(text->second, file.path() + ", " + kSharding);
}

}  // namespace

std::map<std::string, std::vector<int64_t>> ParseShardOffsets(std::string_view text,
                                                              const std::string& source) {
  std::map<std::string, std::vector<int64_t>> offsets;
  const Json info = ParseStrictJson(text, source);
  if (!info.is_object()) {
    throw ConfigError(source + ": expected an object of tensors");
  }
  for (const auto& [name, entry] : info.items()) {
    const bool has_list = entry.is_object() && entry.contains("saved_offsets") &&
                          entry.at("saved_offsets").is_array();
    if (!has_list) {
      throw ConfigError(source + ": " + name + " has no list saved_offsets");
    }
    std::vector<int64_t>& of_tensor = offsets[name];
    for (const Json& offset : entry.at("saved_offsets")) {
      if (!offset.is_number_unsigned() || offset > kOffsetMax) {
        throw ConfigError(source + ": " + name + ".saved_offsets has " + Excerpt(offset) +
                          ": expected whole numbers from 0 to 2^53");
      }
      of_tensor.push_back(offset.get<int64_t>());
    }
  }
  return offsets;
}

bool ShardedSafetensors::IsOne(const std::filesystem::path& directory) {
  for (const std::string& name : SafetensorsNames(directory)) {
    if (ParseShardName(name)) {
      return true;
    }
  }
  return false;
}

ShardedSafetensors::ShardedSafetensors(const std::filesystem::path& directory)
    : directory_(directory.string()) {
  const std::vector<std::string> names = SafetensorsNames(directory);
  CheckNoGap(directory_, names);
  for (const std::string& name : names) {
    AddFile(directory / name);
  }
  for (const auto& [name, facts] : tensors_) {
    CheckWhole(name);
  }
}

void ShardedSafetensors::AddFile(const std::filesystem::path& path) {
  files_.push_back(std::make_unique<SafetensorsFile>(path));
  const SafetensorsFile& file = *files_.back();
  const std::map<std::string, std::vector<int64_t>> offsets = OffsetsOf(file);
  for (const auto& [name, entry] : file.header().tensors) {
    const auto found = offsets.find(name);
    Box box{found != offsets.end() ? found->second : std::vector<int64_t>(entry.shape.size(), 0),
            entry.shape};
    if (box.offsets.size() != box.sizes.size()) {
      throw ConfigError(file.path() + ", " + kSharding + ": " + name + " has " +
                        std::to_string(box.offsets.size()) + " saved_offsets for " +
                        std::to_string(box.sizes.size()) + " dimensions");
    }
    const DtypeNames* dtype = FindSafetensorsDtype(entry.dtype);
    const std::string dtype_name = dtype == nullptr ? entry.dtype : std::string(dtype->torch);
    auto [place, is_new] = tensors_.try_emplace(
        name, TensorFacts{dtype_name, std::vector<int64_t>(entry.shape.size(), 0), 0, {}});
    TensorFacts& facts = place->second;
    if (facts.dtype != dtype_name || facts.shape.size() != entry.shape.size()) {
      throw ConfigError(file.path() + ": " + name + " has another dtype or number of dimensions " +
                        "than in " + facts.files.front());
    }
    for (size_t d = 0; d < facts.shape.size(); ++d) {
      int64_t end = 0;
      if (__builtin_add_overflow(box.offsets[d], box.sizes[d], &end)) {
        throw ConfigError(file.path() + ", " + kSharding + ": the saved_offsets of " + name +
                          " are beyond any tensor");
      }
      facts.shape[d] = std::max(facts.shape[d], end);
    }
    facts.files.push_back(path.filename().string());
    std::vector<Part>& parts = parts_[name];
    const bool is_replica =
        std::any_of(parts.begin(), parts.end(), [&](const Part& part) { return part.box == box; });
    if (!is_replica) {
      parts.push_back({std::move(box), &file, entry.begin});
      ++facts.pieces;
    }
  }
}

void ShardedSafetensors::CheckWhole(const std::string& name) {
  const std::vector<Part>& parts = parts_.at(name);
  int64_t numel = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    numel += fsdp::plan::numel_of(parts[i].box);
    for (size_t k = 0; k < i && !parts[i].box.sizes.empty(); ++k) {
      if (fsdp::plan::intersect(parts[i].box, parts[k].box)) {
        throw ConfigError(directory_ + " is damaged: parts of " + name + " in " +
                          parts[k].file->path() + " and " + parts[i].file->path() + " overlap");
      }
    }
  }
  int64_t expected = 1;
  for (const int64_t size : tensors_.at(name).shape) {
    if (__builtin_mul_overflow(expected, size, &expected)) {
      throw ConfigError(directory_ + " is damaged: the offsets of " + name + " are impossible");
    }
  }
  if (numel != expected) {
    throw ConfigError(directory_ + " is not complete: no file has " +
                      std::to_string(expected - numel) + " of the " + std::to_string(expected) +
                      " elements of " + name + "; copy all files of the checkpoint");
  }
}

void ShardedSafetensors::Read(const std::string& name, int64_t begin, int64_t count, void* out) {
  const TensorFacts& facts = tensors_.at(name);
  const int64_t bytes = ElementBytes(facts.dtype, name);
  const std::vector<Part>& parts = parts_.at(name);
  if (facts.shape.empty()) {
    parts.front().file->Read(parts.front().begin, bytes, out);
    return;
  }
  auto* next = static_cast<char*>(out);
  for (const Box& box : fsdp::plan::flat_range_to_boxes(facts.shape, begin, begin + count)) {
    for (const Part& part : parts) {
      if (const std::optional<Box> common = fsdp::plan::intersect(box, part.box)) {
        fsdp::plan::for_each_run(
            *common, part.box, box, [&](int64_t from, int64_t to, int64_t numel) {
              part.file->Read(part.begin + from * bytes, numel * bytes, next + to * bytes);
            });
      }
    }
    next += fsdp::plan::numel_of(box) * bytes;
  }
}

}  // namespace fsdprun
