#include "worker/checkpoint/plan_agreement.h"

#include "formats/checkpoint/file_system.h"
#include "formats/checkpoint/rank_file.h"
#include "worker/checkpoint/exchange.h"

namespace fsdprun::checkpoint {
namespace {

int64_t PlannedBytes(const SavePlan& plan) {
  int64_t bytes = 0;
  for (size_t rank = 0; rank < plan.chunks.size(); ++rank) {
    for (const PlannedChunk& chunk : plan.chunks[rank]) {
      const DType dtype = plan.slices[rank][chunk.slice].dtype;
      bytes += fsdp::plan::numel_of(chunk.box) * InfoOf(dtype).element_bytes;
    }
  }
  return bytes;
}

}  // namespace

std::string PlanAgreement::ChecksumOf(const std::vector<SliceInfo>& mine) {
  return HashBytes(EncodeSlices(mine));
}

std::shared_ptr<const SavePlan> PlanAgreement::Agree(const Group& group,
                                                     const std::vector<SliceInfo>& mine,
                                                     const std::vector<std::string>& checksums) {
  if (plan_ && checksums == checksums_) {
    return plan_;
  }
  plan_.reset();
  auto plan = std::make_shared<SavePlan>();
  for (const std::string& text : GatherTexts(group, EncodeSlices(mine))) {
    plan->slices.push_back(DecodeSlices(text));
  }
  // The same input on every rank, so the same plan or the same error.
  plan->chunks = PlanSave(plan->slices, chunk_bytes_max_);
  plan->bytes = PlannedBytes(*plan);
  checksums_ = checksums;
  plan_ = std::move(plan);
  return plan_;
}

DcpMetadata ComposeMetadata(const SavePlan& plan, const std::vector<ManifestFile>& written) {
  DcpMetadata metadata;
  for (size_t rank = 0; rank < plan.slices.size(); ++rank) {
    for (const SliceInfo& slice : plan.slices[rank]) {
      StoredTensor& tensor = metadata.tensors[slice.key];
      tensor.dtype = InfoOf(slice.dtype).name;
      tensor.shape = slice.shape;
      metadata.paths[slice.key] = PathOfKey(slice.key);
    }
    const std::vector<ManifestItem>& items = written[rank].items;
    const std::vector<PlannedChunk>& chunks = plan.chunks[rank];
    const size_t object_count = items.size() - chunks.size();
    for (size_t i = 0; i < items.size(); ++i) {
      const BlobLocation blob{RankFileName(static_cast<int64_t>(rank)), items[i].offset,
                              items[i].length};
      if (i < object_count) {
        metadata.objects[items[i].key] = blob;
        metadata.paths[items[i].key] = PathOfKey(items[i].key);
      } else {
        metadata.tensors[items[i].key].chunks.push_back({chunks[i - object_count].box, blob});
      }
    }
  }
  return metadata;
}

}  // namespace fsdprun::checkpoint
