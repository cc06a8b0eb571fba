#include "fsdpctl/ckpt/verify.h"

#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>

#include "formats/checkpoint/blob_source.h"
#include "formats/checkpoint/checkpoint_reader.h"
#include "formats/checkpoint/error.h"
#include "formats/checkpoint/torch_blob.h"
#include "formats/tensors/open_tensors.h"
#include "fsdpctl/ckpt/amounts.h"
#include "fsdpctl/ckpt/model_description.h"
#include "fsdpctl/ckpt/model_weights.h"
#include "fsdpctl/ckpt/stored_objects.h"

namespace fsdprun::ckpt {
namespace {

using checkpoint::BlobLocation;
using checkpoint::InputFile;
using checkpoint::OpenedCheckpoint;

/// Counts what is checked, and collects what is damaged.
class Findings {
 public:
  /// Does `check`; what it throws is a damage of `item`.
  template <typename Check>
  void Try(const std::string& item, const Check& check) {
    try {
      check();
    } catch (const std::runtime_error& error) {
      damaged_.push_back({{"item", item}, {"problem", error.what()}});
    }
    ++checked_;
  }
  void AddBytes(int64_t bytes) { bytes_ += bytes; }
  /// Of an item whose writer has left out its checksum: its structure alone is checked.
  void CountUnchecked() { ++unchecked_; }
  /// Doubts those that were counted, if there are any. `reason`: why they have no checksum.
  void DoubtUnchecked(const std::string& reason) {
    if (unchecked_ > 0) {
      doubt_ = std::to_string(unchecked_) + " of them have no checksum" + reason +
               ": whether their content is what was written cannot be told";
    }
  }
  /// Why nobody can tell whether all is there.
  void Doubt(std::string reason) { doubt_ = std::move(reason); }

  Report ToReport(const std::string& path, const std::string& by) {
    Report report;
    report.is_good = damaged_.empty();
    for (const Json& damage : damaged_) {
      report.text += Printable(damage.at("problem").get<std::string>()) + "\n";
    }
    report.text += Printable(path) + ": " +
                   (!report.is_good  ? std::to_string(damaged_.size()) + " damaged"
                    : doubt_.empty() ? "intact"
                                     : "no damage found") +
                   " (" + std::to_string(checked_) + " items, " + BytesText(bytes_) + ", " + by +
                   ")\n";
    if (!doubt_.empty()) {
      report.text += doubt_ + "\n";
    }
    report.json = {{"path", path},        {"intact", report.is_good},
                   {"checked", checked_}, {"bytes", bytes_},
                   {"checked_by", by},    {"without_checksum", unchecked_},
                   {"damaged", damaged_}};
    if (report.is_good && !doubt_.empty()) {
      report.json["intact"] = nullptr;
      report.json["doubt"] = doubt_;
    }
    return report;
  }

 private:
  std::string doubt_;
  Json damaged_ = Json::array();
  int64_t checked_ = 0;
  int64_t unchecked_ = 0;
  int64_t bytes_ = 0;
};

void CheckBlob(const std::string& key, const BlobLocation& blob, const std::string& path,
               std::map<std::string, InputFile>& files, Findings& findings) {
  const std::string file_path = path + "/" + blob.file;
  const InputFile& file = files.try_emplace(blob.file, file_path).first->second;
  const std::string what = key + " in " + file_path + " at byte " + std::to_string(blob.offset);
  if (blob.offset + blob.length > file.size()) {
    throw checkpoint::CheckpointError(what + ": the file is truncated: it has " +
                                      std::to_string(file.size()) + " bytes, the item ends at " +
                                      std::to_string(blob.offset + blob.length));
  }
  const checkpoint::BlobSource source(file, blob);
  if (!CheckArchive(source, what)) {
    findings.CountUnchecked();
  }
}

void CheckChunk(const std::string& key, const checkpoint::StoredTensor& tensor,
                const checkpoint::StoredChunk& chunk, const std::string& path,
                std::map<std::string, InputFile>& files, Findings& findings) {
  CheckBlob(key, chunk.blob, path, files, findings);
  const std::string what = key + " in " + path + "/" + chunk.blob.file;
  const checkpoint::BlobSource source(files.at(chunk.blob.file), chunk.blob);
  const checkpoint::TensorBlob blob = checkpoint::ReadTensorFrame(source, what);
  if (blob.sizes != chunk.box.sizes || checkpoint::InfoOf(blob.dtype).name != tensor.dtype) {
    throw checkpoint::CheckpointError(what + " has another shape or dtype than .metadata says");
  }
}

void CheckBlobs(const OpenedCheckpoint& opened, Findings& findings) {
  std::map<std::string, InputFile> files;
  for (const auto& [key, blob] : opened.metadata.objects) {
    findings.Try(key, [&, &key = key, &blob = blob] {
      CheckBlob(key, blob, opened.path, files, findings);
      findings.AddBytes(blob.length);
    });
  }
  for (const auto& [key, tensor] : opened.metadata.tensors) {
    for (const checkpoint::StoredChunk& chunk : tensor.chunks) {
      if (chunk.blob.file.empty()) {
        continue;
      }
      findings.Try(key, [&, &key = key, &tensor = tensor] {
        CheckChunk(key, tensor, chunk, opened.path, files, findings);
        findings.AddBytes(chunk.blob.length);
      });
    }
  }
}

/// Whether fsdp-train has written it.
bool HasTrainingState(const OpenedCheckpoint& opened) {
  return opened.metadata.objects.contains("train.state");
}

Report VerifyDcp(const std::string& path) {
  Findings findings;
  OpenedCheckpoint opened;
  bool is_open = false;
  findings.Try(checkpoint::kMetadataFile, [&] {
    opened = checkpoint::OpenCheckpoint(path, checkpoint::FilesThere::kTrust);
    is_open = true;
  });
  if (!is_open) {
    return findings.ToReport(path, "the structure");
  }
  if (!opened.manifest) {
    CheckBlobs(opened, findings);
    findings.DoubtUnchecked(
        HasTrainingState(opened)
            ? ", since fsdprun.json, where fsdp-train's checkpoints have them, is missing"
            : ", as torch.serialization.set_crc32_options can say");
    return findings.ToReport(path, "the CRC-32 of each archive");
  }
  for (const auto& [name, file] : opened.manifest->files) {
    findings.Try(name, [&, &name = name, &file = file] {
      checkpoint::VerifyFile(path, name, file);
      findings.AddBytes(file.bytes);
    });
  }
  // That .metadata places everything within listed files.
  findings.Try("places", [&] { checkpoint::OpenCheckpoint(path); });
  return findings.ToReport(path, "XXH3 checksums");
}

/// Whether all weights of the model, in their shapes, are there; false if that cannot be told.
/// Errors: Error if not.
bool IsWholeModel(TensorSource& source, const std::string& path) {
  const std::optional<ModelDescription> model = FindDescription(source, path);
  return model && WeightsOfModel(source, path, model->config, model->source).unchecked.empty();
}

}  // namespace

Report VerifyCheckpoint(const std::string& path) {
  if (LayoutOf(path) == TensorLayout::kDcp) {
    return VerifyDcp(path);
  }
  Findings findings;
  const bool is_sharded = LayoutOf(path) == TensorLayout::kShardedSafetensors;
  findings.Try(path, [&] {
    const std::unique_ptr<TensorSource> source = OpenTensors(path);
    if (is_sharded && !IsWholeModel(*source, path)) {
      findings.Doubt(
          "these files do not say how large a tensor is: without a config.json of a known model "
          "beside them, whether the last rank's are missing cannot be told");
    }
  });
  return findings.ToReport(path, "the structure; safetensors have no checksums");
}

}  // namespace fsdprun::ckpt
