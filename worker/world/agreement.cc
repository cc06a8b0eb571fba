#include "worker/world/agreement.h"

#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "formats/checkpoint/commit.h"
#include "formats/checkpoint/file_system.h"
#include "proto/release.h"
#include "worker/checkpoint/exchange.h"
#include "worker/data/document_ends.h"
#include "worker/data/stream_digest.h"

namespace fsdprun::worker {
namespace {

constexpr size_t kMaxNamedKeys = 5;

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 && name[0] != '\0' ? name : "unknown host";
}

/// A word that has a meaning of its own stays; of a path only counts that it is one.
Json WithoutPath(const Json& value) {
  const bool is_word = value == "" || value == "none" || value == "auto";
  return is_word ? value : Json("a path");
}

/// What of data.mixture does not name files.
Json WithoutFiles(const Json& mixture) {
  Json weights = mixture;
  for (Json& source : weights) {
    if (source.is_object()) {
      source.erase("files");
    }
  }
  return weights;
}

void AddConfig(const Json& resolved, Json& facts) {
  for (const auto& [section, keys] : resolved.items()) {
    for (const auto& [name, value] : keys.items()) {
      const std::string key = section + "." + name;
      if (key == "model.weights" || key == "checkpoint.dir" || key == "checkpoint.resume" ||
          key == "metrics.trace_dir") {
        facts[key] = WithoutPath(value);
      } else if (key == "data.mixture") {
        facts[key] = WithoutFiles(value);
      } else if (key != "model.config" && key != "data.train" && key != "data.valid" &&
                 key != "metrics.jsonl" && key != "metrics.tensorboard") {
        facts[key] = value;
      }
    }
  }
}

void AddModel(const ModelConfig& model, Json& facts) {
  for (const auto& [key, value] : model.description.items()) {
    facts["the model's " + key] = value;
  }
}

void AddData(const std::string& what, int64_t size, const std::string& digest, Json& facts) {
  facts["the size of " + what] = size;
  facts["the digest of " + what] = digest;
}

void AddFiles(const std::string& what, const TokenStream& stream, Json& facts) {
  AddData(what, stream.size(), SampledDigest(stream, stream.size()), facts);
}

/// Of windows that depend on where documents end: the tokens do not say it.
void AddDocuments(const std::string& what, const std::vector<Windows>& sources, Json& facts) {
  if (!sources.front().may_ignore_targets()) {
    return;
  }
  int64_t count = 0;
  for (const Windows& source : sources) {
    count += source.count();
  }
  const DocumentEnds ends = EndsOf(sources);
  facts["the number of windows of " + what] = count;
  facts["the document ends of " + what] = ends.digest.empty() ? Json(ends.id) : Json(ends.digest);
}

bool HoldsWeights(const std::filesystem::path& file) {
  const std::string extension = file.extension().string();
  return extension == ".safetensors" || extension == ".distcp" || file.filename() == ".metadata";
}

void AddWeights(const std::string& path, Json& facts) {
  std::vector<std::string> files;
  std::error_code ignored;
  if (std::filesystem::is_regular_file(path, ignored)) {
    files.push_back(path);
  }
  for (const auto& entry : std::filesystem::directory_iterator(path, ignored)) {
    if (HoldsWeights(entry.path()) && entry.is_regular_file(ignored)) {
      files.push_back(entry.path().string());
    }
  }
  std::sort(files.begin(), files.end());
  AddFiles("model.weights", TokenStream(files), facts);
}

std::string Encode(const RankInput& input) { return Json{input.host, input.facts}.dump(); }

RankInput Decode(const std::string& text) {
  const Json value = Json::parse(text);
  return {value.at(0).get<std::string>(), value.at(1)};
}

std::string Described(size_t rank, const RankInput& input) {
  return "rank " + std::to_string(rank) + " (" + input.host + ")";
}

/// A missing value is null.
Json ValueOf(const RankInput& input, const std::string& key) {
  return input.facts.contains(key) ? input.facts.at(key) : Json(nullptr);
}

/// Keys whose values differ, in the order of the first.
std::vector<std::string> DifferentKeys(const RankInput& first, const RankInput& second) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : first.facts.items()) {
    if (ValueOf(second, key) != value) {
      keys.push_back(key);
    }
  }
  for (const auto& [key, value] : second.facts.items()) {
    if (!first.facts.contains(key)) {
      keys.push_back(key);
    }
  }
  return keys;
}

std::string NameRest(const std::vector<std::string>& keys) {
  std::string text;
  for (size_t i = 1; i < std::min(keys.size(), kMaxNamedKeys); ++i) {
    text += (i == 1 ? "; also different: " : ", ") + keys[i];
  }
  return keys.size() > kMaxNamedKeys ? text + " and others" : text;
}

/// The path of a new file, or nothing.
std::string WriteProbe(checkpoint::FileSystem& file_system, const std::string& dir) {
  const std::string name = checkpoint::ProbeName();
  checkpoint::FileDescriptor file;
  return file_system.Create(dir + "/" + name, file) == 0 ? name : "";
}

/// Also if it cannot be told for now: that says nothing of what is mounted there, and whoever reads
/// or writes there next will say it.
bool Sees(const std::string& path) {
  try {
    return checkpoint::FileExists(path);
  } catch (const checkpoint::CheckpointError&) {
    return true;
  }
}

}  // namespace

RankInput DescribeInput(const Json& resolved, const ModelConfig& model, const TrainData& train,
                        const Windows* valid) {
  RankInput input;
  input.host = HostName();
  input.facts["the version of fsdp-train"] = kRelease;
  input.facts["the version of LibTorch"] = TORCH_VERSION;
  AddConfig(resolved, input.facts);
  AddModel(model, input.facts);
  const std::string weights = resolved.at("model").at("weights");
  if (weights != "none") {
    AddWeights(weights, input.facts);
  }
  const std::string trained_on = train.is_mixture() ? "data.mixture" : "data.train";
  AddData(trained_on, train.size(), train.Digest(train.size()), input.facts);
  AddDocuments(trained_on, train.sources(), input.facts);
  if (valid != nullptr) {
    AddFiles("data.valid", valid->stream(), input.facts);
    AddDocuments("data.valid", {*valid}, input.facts);
  }
  return input;
}

std::optional<std::string> DescribeDisagreement(const std::vector<RankInput>& inputs) {
  const auto other = std::find_if(inputs.begin(), inputs.end(), [&](const RankInput& input) {
    return !DifferentKeys(inputs.front(), input).empty();
  });
  if (other == inputs.end()) {
    return std::nullopt;
  }
  const std::vector<std::string> keys = DifferentKeys(inputs.front(), *other);
  return Described(static_cast<size_t>(other - inputs.begin()), *other) + ": " + keys.front() +
         " is " + Excerpt(ValueOf(*other, keys.front())) + ", rank 0 has " +
         Excerpt(ValueOf(inputs.front(), keys.front())) + NameRest(keys) +
         "; start all nodes with the same program, configuration, model and data";
}

void RequireAgreement(const RankInput& mine, const checkpoint::Group& group) {
  std::vector<RankInput> inputs;
  for (const std::string& text : checkpoint::GatherTexts(group, Encode(mine))) {
    inputs.push_back(Decode(text));
  }
  if (const auto disagreement = DescribeDisagreement(inputs)) {
    throw DisagreementError(*disagreement);
  }
}

void RequireSharedDirectory(const std::string& dir, const checkpoint::Group& group) {
  if (group.collectives->size() == 1) {
    return;
  }
  checkpoint::FileSystem file_system;
  const bool is_rank0 = group.collectives->rank() == 0;
  const std::string name =
      checkpoint::BroadcastText(group, is_rank0 ? WriteProbe(file_system, dir) : std::string());
  if (name.empty()) {
    return;
  }
  const RankInput mine{HostName(), {{"dir", dir}, {"sees", Sees(dir + "/" + name)}}};
  const std::vector<std::string> texts = checkpoint::GatherTexts(group, Encode(mine));
  if (is_rank0) {
    file_system.RemoveTree(dir + "/" + name);
  }
  for (size_t rank = 1; rank < texts.size(); ++rank) {
    const RankInput input = Decode(texts[rank]);
    if (!input.facts.at("sees").get<bool>()) {
      throw DisagreementError("checkpoint.dir is not shared: " + Described(rank, input) +
                              " does not see in its " + input.facts.at("dir").get<std::string>() +
                              " the file that " + Described(0, Decode(texts[0])) +
                              " has just written into its " +
                              Decode(texts[0]).facts.at("dir").get<std::string>() +
                              "; all nodes must mount one file system there, such as NFS");
    }
  }
}

}  // namespace fsdprun::worker
