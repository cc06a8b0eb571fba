#include "fsdpctl/ckpt/inspect.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/strings/str_join.h"
#include "formats/checkpoint/error.h"
#include "formats/tensors/checkpoint_tensors.h"
#include "formats/tensors/compare.h"
#include "formats/tensors/dtype_names.h"
#include "formats/tensors/open_tensors.h"
#include "fsdpctl/ckpt/amounts.h"
#include "fsdpctl/ckpt/stored_objects.h"

namespace fsdprun::ckpt {
namespace {

constexpr char kTrainState[] = "train.state";

Json TensorsJson(const TensorSource& source) {
  Json tensors = Json::array();
  for (const auto& [key, facts] : source.tensors()) {
    tensors.push_back({{"key", key},
                       {"dtype", facts.dtype},
                       {"shape", facts.shape},
                       {"pieces", facts.pieces},
                       {"files", facts.files}});
  }
  return tensors;
}

/// Bytes of all elements whose type is known.
int64_t ElementBytesOf(const TensorSource& source) {
  int64_t bytes = 0;
  for (const auto& [key, facts] : source.tensors()) {
    if (FindTorchDtype(facts.dtype) != nullptr) {
      AddTensorBytes(facts, facts.dtype, key, bytes);
    }
  }
  return bytes;
}

std::string FilesText(const std::vector<std::string>& files) {
  if (files.size() <= 2) {
    return Printable(absl::StrJoin(files, ", "));
  }
  return Printable(files.front() + " ... " + files.back()) + " (" + std::to_string(files.size()) +
         ")";
}

std::string TensorsText(const TensorSource& source) {
  std::vector<std::vector<std::string>> rows = {{"KEY", "DTYPE", "SHAPE", "PIECES", "FILES"}};
  for (const auto& [key, facts] : source.tensors()) {
    rows.push_back({Printable(key), Printable(facts.dtype), ShapeText(facts.shape),
                    std::to_string(facts.pieces), FilesText(facts.files)});
  }
  return TableText(rows);
}

void AddManifest(const checkpoint::OpenedCheckpoint& opened, Report& report) {
  if (!opened.manifest && opened.metadata.objects.contains(kTrainState)) {
    report.text += "fsdprun.json is missing, which has its step and its checksums\n";
    return;
  }
  if (!opened.manifest) {
    report.json["written_by"] = "another program";
    report.text += "written by another program than fsdp-train (it has no fsdprun.json)\n";
    return;
  }
  const checkpoint::Manifest& manifest = *opened.manifest;
  report.json["step"] = manifest.step;
  report.json["tokens"] = manifest.tokens;
  report.json["world_size"] = manifest.world_size;
  report.json["run"] = manifest.run;
  report.json["job"] = manifest.job_id;
  report.text += "step " + std::to_string(manifest.step) + ", " + std::to_string(manifest.tokens) +
                 " tokens, written by " + std::to_string(manifest.world_size) + " ranks" +
                 (manifest.run.empty() ? "" : ", run " + Printable(manifest.run)) + "\n";
}

void AddObjects(const checkpoint::OpenedCheckpoint& opened, Report& report) {
  Json names = Json::array();
  for (const auto& [key, blob] : opened.metadata.objects) {
    names.push_back(key);
    report.text += "object " + Printable(key) + ", " + BytesText(blob.length) + " in " +
                   Printable(blob.file) + "\n";
  }
  report.json["objects"] = std::move(names);
  std::optional<Json> state;
  try {
    state = PlainObject(opened, kTrainState);
  } catch (const checkpoint::CheckpointError& error) {
    // The tensors are shown all the same.
    report.json["problem"] = error.what();
    report.text += std::string("\n") + error.what() + "\n";
  }
  if (!state || !state->is_object()) {
    return;
  }
  Json rest = *state;
  for (const char* part : {"config", "model_config"}) {
    if (rest.contains(part)) {
      report.json[part] = rest.at(part);
      report.text += std::string("\n") + part + ":\n" + rest.at(part).dump(2) + "\n";
      rest.erase(part);
    }
  }
  report.text += "\ntraining state:\n" + rest.dump(2) + "\n";
  report.json["train_state"] = std::move(rest);
}

}  // namespace

std::optional<Json> PlainObject(const checkpoint::OpenedCheckpoint& opened,
                                const std::string& key) {
  StoredObjects stored(opened);
  for (const auto& [item, blob] : opened.metadata.objects) {
    if (item == key || item.starts_with(key + ".")) {
      stored.Read(item);
    }
  }
  try {
    checkpoint::CheckpointReader reader(opened, /*verify_blobs=*/false);
    if (const std::optional<nlohmann::json> value = reader.ReadObject(key)) {
      return Json(*value);
    }
  } catch (const checkpoint::CheckpointError&) {
    // It is intact, so it is a Python object of another kind.
  }
  return std::nullopt;
}

Report InspectCheckpoint(const std::string& path) {
  const TensorLayout layout = LayoutOf(path);
  const std::unique_ptr<TensorSource> source = OpenTensors(path);
  const int64_t bytes = ElementBytesOf(*source);
  Report report;
  report.json = {{"path", path}, {"layout", LayoutName(layout)}, {"tensor_bytes", bytes}};
  report.text = Printable(path) + ": " + LayoutName(layout) + ", " +
                std::to_string(source->tensors().size()) + " tensors, " + BytesText(bytes) + "\n";
  const auto* dcp = dynamic_cast<const CheckpointTensors*>(source.get());
  if (dcp != nullptr) {
    AddManifest(dcp->opened(), report);
  }
  report.text += TensorsText(*source);
  report.json["tensors"] = TensorsJson(*source);
  if (dcp != nullptr) {
    AddObjects(dcp->opened(), report);
  }
  return report;
}

}  // namespace fsdprun::ckpt
