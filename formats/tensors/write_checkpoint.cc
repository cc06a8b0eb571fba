#include "formats/tensors/write_checkpoint.h"

#include <set>
#include <utility>

#include "formats/checkpoint/dcp_metadata.h"
#include "formats/checkpoint/error.h"
#include "formats/checkpoint/file_system.h"
#include "formats/checkpoint/manifest.h"
#include "formats/checkpoint/rank_file.h"
#include "formats/checkpoint/save_plan.h"
#include "formats/checkpoint/torch_blob.h"
#include "formats/files/output_folder.h"
#include "formats/tensors/compare.h"
#include "fsdp_runtime/archive/zip_archive.h"
#include "fsdp_runtime/plan/box.h"

namespace fsdprun {
namespace {

using checkpoint::BlobFrame;
using checkpoint::BlobLocation;
using checkpoint::CheckpointError;
using checkpoint::DcpMetadata;
using checkpoint::DType;
using checkpoint::DTypeInfo;
using checkpoint::PlannedChunk;
using checkpoint::SliceInfo;

constexpr int64_t kPieceBytesMax = int64_t{64} << 20;

/// What is written of the source's tensors, and in which order.
struct Plan {
  std::vector<SliceInfo> slices;  // as CheckpointToWrite::tensors
  std::vector<PlannedChunk> chunks;
  int64_t file_bytes = 0;
};

DType DTypeOf(const KeyedTensor& tensor, const TensorFacts& facts) {
  const DTypeInfo* info = checkpoint::FindDType(facts.dtype);
  if (info == nullptr) {
    throw CheckpointError("cannot write " + tensor.source + ": checkpoints have no dtype " +
                          facts.dtype);
  }
  return info->dtype;
}

int64_t DataBytes(const SliceInfo& slice, const PlannedChunk& chunk) {
  return fsdp::plan::numel_of(chunk.box) * checkpoint::InfoOf(slice.dtype).element_bytes;
}

/// Before pieces are planned, of which a large tensor has many.
void CheckSpace(const TensorSource& source, const CheckpointToWrite& output,
                const std::string& path) {
  int64_t bytes = 0;
  for (const KeyedTensor& tensor : output.tensors) {
    const TensorFacts& facts = source.tensors().at(tensor.source);
    DTypeOf(tensor, facts);
    AddTensorBytes(facts, facts.dtype, tensor.source, bytes);
  }
  CheckFree(path, bytes);
}

Plan MakePlan(const TensorSource& source, const CheckpointToWrite& output) {
  Plan plan;
  std::set<std::string> keys;
  for (const KeyedObject& object : output.objects) {
    plan.file_bytes += static_cast<int64_t>(object.blob.size());
    keys.insert(object.key);
  }
  for (const KeyedTensor& tensor : output.tensors) {
    const TensorFacts& facts = source.tensors().at(tensor.source);
    SliceInfo slice{tensor.key, DTypeOf(tensor, facts), facts.shape, {}};
    if (fsdp::plan::numel_of(facts.shape) > 0) {
      slice.boxes.push_back(fsdp::plan::whole_box(facts.shape));
    }
    if (!keys.insert(tensor.key).second) {
      throw CheckpointError("cannot write " + tensor.source + ": the key " + tensor.key +
                            " is taken already");
    }
    plan.slices.push_back(std::move(slice));
  }
  plan.chunks = checkpoint::PlanSave({plan.slices}, kPieceBytesMax).front();
  for (const PlannedChunk& chunk : plan.chunks) {
    const SliceInfo& slice = plan.slices[chunk.slice];
    const BlobFrame frame = checkpoint::FrameTensor(slice.dtype, chunk.box.sizes, 0);
    plan.file_bytes +=
        static_cast<int64_t>(frame.prefix.size() + frame.suffix.size()) + DataBytes(slice, chunk);
  }
  return plan;
}

/// Appends blobs to the data file, and keeps what .metadata and fsdprun.json say of them.
class DataFile {
 public:
  DataFile(const std::string& path, int64_t byte_count)
      : file_(path, byte_count, Existing::kRefuse), name_(checkpoint::RankFileName(0)) {}

  BlobLocation Append(const std::string& key, const std::vector<std::string_view>& parts) {
    const int64_t begin = position_;
    checkpoint::StreamHash hash;
    for (const std::string_view part : parts) {
      file_.Write(position_, part);
      position_ += static_cast<int64_t>(part.size());
      hash.Add(part.data(), part.size());
      whole_.Add(part.data(), part.size());
    }
    listed_.items.push_back({key, begin, position_ - begin, hash.Digest()});
    return {name_, begin, position_ - begin};
  }

  checkpoint::ManifestFile Finish() {
    file_.Publish();
    listed_.bytes = position_;
    listed_.xxh3 = whole_.Digest();
    return std::move(listed_);
  }

 private:
  OutputFile file_;
  std::string name_;
  int64_t position_ = 0;
  checkpoint::StreamHash whole_;
  checkpoint::ManifestFile listed_;
};

/// Of a KeyedTensor or a KeyedObject.
template <typename Keyed>
std::vector<checkpoint::PathPart> PathOf(const Keyed& keyed) {
  return keyed.path.empty() ? checkpoint::PathOfKey(keyed.key) : keyed.path;
}

void AppendTensors(TensorSource& source, const CheckpointToWrite& output, const Plan& plan,
                   DataFile& file, DcpMetadata& metadata) {
  for (size_t i = 0; i < plan.slices.size(); ++i) {
    const SliceInfo& slice = plan.slices[i];
    metadata.tensors[slice.key] = {
        std::string(checkpoint::InfoOf(slice.dtype).name), slice.shape, {}};
    metadata.paths[slice.key] = PathOf(output.tensors[i]);
  }
  std::string data;
  for (const PlannedChunk& chunk : plan.chunks) {
    const SliceInfo& slice = plan.slices[chunk.slice];
    data.resize(static_cast<size_t>(DataBytes(slice, chunk)));
    source.Read(output.tensors[chunk.slice].source, chunk.begin, fsdp::plan::numel_of(chunk.box),
                data.data());
    const BlobFrame frame = checkpoint::FrameTensor(
        slice.dtype, chunk.box.sizes, fsdp::archive::update_crc32(0, data.data(), data.size()));
    metadata.tensors[slice.key].chunks.push_back(
        {chunk.box, file.Append(slice.key, {frame.prefix, data, frame.suffix})});
  }
}

checkpoint::Manifest ManifestOf(const CheckpointToWrite& output) {
  checkpoint::Manifest manifest;
  manifest.step = output.step;
  manifest.tokens = output.tokens;
  manifest.world_size = 1;
  manifest.run = output.run;
  return manifest;
}

bool IsCheckpointFile(const std::string& name) {
  return name == checkpoint::kMetadataFile || name == checkpoint::kManifestFile ||
         (name.starts_with("__") && name.ends_with(".distcp"));
}

}  // namespace

void WriteCheckpoint(TensorSource& source, const CheckpointToWrite& output, const std::string& path,
                     Existing existing) {
  CheckSpace(source, output, path);
  const Plan plan = MakePlan(source, output);
  OutputFolder folder(path, plan.file_bytes, existing);
  checkpoint::Manifest manifest = ManifestOf(output);
  DcpMetadata metadata;
  const std::string data_name = checkpoint::RankFileName(0);
  DataFile file(folder.Place(data_name), plan.file_bytes);
  for (const KeyedObject& object : output.objects) {
    metadata.objects[object.key] = file.Append(object.key, {object.blob});
    metadata.paths[object.key] = PathOf(object);
  }
  AppendTensors(source, output, plan, file, metadata);
  manifest.files[data_name] = file.Finish();
  const std::string metadata_bytes = checkpoint::EncodeDcpMetadata(metadata);
  manifest.files[checkpoint::kMetadataFile] = {
      static_cast<int64_t>(metadata_bytes.size()), checkpoint::HashBytes(metadata_bytes), {}};
  WriteOutput(folder.Place(checkpoint::kManifestFile), checkpoint::EncodeManifest(manifest),
              Existing::kRefuse);
  WriteOutput(folder.Place(checkpoint::kMetadataFile), metadata_bytes, Existing::kRefuse);
  folder.Publish(IsCheckpointFile);
}

}  // namespace fsdprun
