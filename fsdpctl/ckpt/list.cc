#include "fsdpctl/ckpt/list.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>
#include <vector>

#include "formats/checkpoint/claim.h"
#include "formats/checkpoint/commit.h"
#include "formats/checkpoint/error.h"
#include "formats/checkpoint/file_system.h"
#include "formats/checkpoint/manifest.h"
#include "formats/checkpoint/step_list.h"
#include "fsdpctl/ckpt/amounts.h"

namespace fsdprun::ckpt {
namespace {

constexpr int64_t kNsPerSecond = 1'000'000'000;

std::string NameOf(const std::string& path) {
  return Printable(std::filesystem::path(path).filename().string());
}

int64_t BytesIn(const std::string& folder) {
  int64_t bytes = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code no_size;
    const auto size = entry->file_size(no_size);
    bytes += no_size ? 0 : static_cast<int64_t>(size);
  }
  return bytes;
}

/// Seconds since .metadata was written.
std::optional<int64_t> AgeOf(const std::string& folder, int64_t now_s) {
  try {
    const checkpoint::InputFile file(folder + "/" + checkpoint::kMetadataFile);
    return now_s - file.modified_ns() / kNsPerSecond;
  } catch (const checkpoint::CheckpointError&) {
    return std::nullopt;
  }
}

Json EntryJson(const std::string& path, int64_t step, bool is_complete, int64_t now_s) {
  Json entry = {{"name", NameOf(path)}, {"step", step}, {"complete", is_complete}};
  entry["bytes"] = BytesIn(path);
  const std::optional<int64_t> age = AgeOf(path, now_s);
  entry["age_s"] = age ? Json(*age) : Json();
  const std::string manifest_path = path + "/" + checkpoint::kManifestFile;
  try {
    if (checkpoint::FileExists(manifest_path)) {
      const checkpoint::Manifest manifest = checkpoint::DecodeManifest(
          checkpoint::ReadWholeFile(manifest_path, checkpoint::kManifestBytesMax), manifest_path);
      entry["run"] = manifest.run;
      entry["job"] = manifest.job_id;
      entry["tokens"] = manifest.tokens;
      entry["world_size"] = manifest.world_size;
    }
  } catch (const checkpoint::CheckpointError& error) {
    entry["problem"] = error.what();
  }
  return entry;
}

Json ClaimJson(const std::string& directory, int64_t now_s) {
  const std::optional<checkpoint::ClaimSight> sight = checkpoint::LookAtClaim(directory);
  if (!sight) {
    return {};
  }
  const checkpoint::Claim& claim = sight->claim;
  const char* state = sight->pulse == 0 ? "released" : sight->is_dead ? "dead" : "held";
  Json json = {{"state", state},
               {"job", claim.job_id},
               {"generation", claim.generation},
               {"host", claim.host},
               {"pid", claim.pid}};
  if (sight->pulse != 0) {
    json["last_sign_s"] = now_s - sight->pulse / kNsPerSecond;
  }
  return json;
}

std::string ClaimText(const Json& claim) {
  if (claim.is_null()) {
    return "claimed by nobody\n";
  }
  const std::string job = claim.at("job").get<std::string>();
  const std::string holder =
      Printable((job.empty() ? "a start without a job id" : "job " + job) + ", process " +
                std::to_string(claim.at("pid").get<int64_t>()) + " on " +
                claim.at("host").get<std::string>());
  const std::string state = claim.at("state").get<std::string>();
  if (state == "released") {
    return "released by " + holder + "\n";
  }
  if (state == "dead") {
    return "claimed by " + holder + ", which has ended\n";
  }
  return "claimed by " + holder + ", last sign of life " +
         AgeText(claim.at("last_sign_s").get<int64_t>()) + " ago\n";
}

std::string NumberText(const Json& entry, const char* field) {
  return entry.contains(field) ? std::to_string(entry.at(field).get<int64_t>()) : "-";
}

std::string ListText(const Json& checkpoints) {
  std::vector<std::vector<std::string>> rows = {
      {"NAME", "STEP", "TOKENS", "SIZE", "AGE", "RANKS", "RUN", "STATE"}};
  for (const Json& entry : checkpoints) {
    const Json& age = entry.at("age_s");
    rows.push_back({entry.at("name").get<std::string>(), NumberText(entry, "step"),
                    NumberText(entry, "tokens"), BytesText(entry.at("bytes").get<int64_t>()),
                    age.is_null() ? "-" : AgeText(age.get<int64_t>()),
                    NumberText(entry, "world_size"), Printable(entry.value("run", "-")),
                    entry.contains("problem") ? Printable(entry.at("problem").get<std::string>())
                    : entry.at("complete").get<bool>() ? "complete"
                                                       : "not complete"});
  }
  return TableText(rows);
}

}  // namespace

Report ListCheckpoints(const std::string& directory, int64_t now_s) {
  if (!checkpoint::DirectoryExists(directory)) {
    throw checkpoint::CheckpointError("cannot list " + directory + ": there is no such folder");
  }
  Json checkpoints = Json::array();
  for (const checkpoint::StepEntry& step : checkpoint::ListSteps(directory)) {
    checkpoints.push_back(EntryJson(step.path, step.step, step.is_complete, now_s));
  }
  for (const std::string& name : checkpoint::ListDirectory(directory)) {
    if (const std::optional<int64_t> step = checkpoint::LeftoverStep(name, "tmp-")) {
      checkpoints.push_back(EntryJson(directory + "/" + name, *step, false, now_s));
    }
  }
  Report report;
  report.json = {{"directory", directory}, {"claim", ClaimJson(directory, now_s)}};
  report.text = ClaimText(report.json.at("claim"));
  report.text += checkpoints.empty() ? "no checkpoints\n" : ListText(checkpoints);
  report.json["checkpoints"] = std::move(checkpoints);
  return report;
}

}  // namespace fsdprun::ckpt
