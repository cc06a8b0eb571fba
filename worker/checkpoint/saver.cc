#include <ATen/core/Tensor.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "formats/checkpoint/claim.h"
#include "formats/checkpoint/commit.h"
#include "formats/checkpoint/dcp_metadata.h"
#include "formats/checkpoint/rank_file.h"
#include "formats/checkpoint/save_plan.h"
#include "formats/checkpoint/step_list.h"
#include "formats/checkpoint/torch_blob.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/exchange.h"
#include "worker/checkpoint/scalar_type.h"

namespace fsdprun::checkpoint {
namespace {

using nlohmann::json;

constexpr char kGranted = 'G';
constexpr char kRefused = 'R';
constexpr char kParamGroupsKey[] = "optim.param_groups";
constexpr char kTrainStateKey[] = "train.state";

// Note [Snapshot, then write]
// Save takes a snapshot and then writes it. A snapshot holds everything that the write needs. The
// write ends before Save returns, so tensors that are already on the host are not copied; an
// asynchronous save would have to copy them too.
struct Snapshot {
  int64_t step = 0;
  int64_t tokens = 0;
  std::string run;
  std::vector<SliceInfo> slices;
  std::vector<at::Tensor> host;      // one per slice: contiguous, on the CPU
  std::vector<BlobToWrite> objects;  // rank 0's
};

BlobToWrite ObjectBlob(const char* key, const std::string& text) {
  const json value = json::parse(text, nullptr, false);
  if (value.is_discarded()) {
    throw CheckpointError(std::string("cannot save ") + key +
                          ": not valid JSON: " + text.substr(0, 100));
  }
  BlobToWrite blob;
  blob.key = key;
  blob.object = PackObject(value);
  return blob;
}

SliceInfo InfoOfSlice(const fsdp::LocalShard& slice) {
  const int64_t numel = fsdp::plan::total_numel(slice.boxes);
  if (slice.local.numel() != numel) {
    throw CheckpointError("cannot save " + slice.fqn + ": expected " + std::to_string(numel) +
                          " local elements, got " + std::to_string(slice.local.numel()));
  }
  return {slice.fqn, ToDType(slice.local.scalar_type(), slice.fqn), slice.global_shape,
          slice.boxes};
}

Snapshot TakeSnapshot(int64_t step, const State& state, bool is_rank0) {
  if (step < 0) {
    throw CheckpointError("cannot save step " + std::to_string(step) + ": expected >= 0");
  }
  Snapshot snapshot;
  snapshot.step = step;
  snapshot.tokens = state.tokens;
  snapshot.run = state.run;
  for (const fsdp::LocalShard& slice : state.tensors) {
    snapshot.slices.push_back(InfoOfSlice(slice));
    snapshot.host.push_back(slice.local.detach().to(at::kCPU).contiguous());
  }
  if (is_rank0) {
    snapshot.objects.push_back(ObjectBlob(kParamGroupsKey, state.param_groups_json));
    snapshot.objects.push_back(ObjectBlob(kTrainStateKey, state.training_state_json));
  }
  return snapshot;
}

std::vector<BlobToWrite> BlobsOf(const Snapshot& snapshot,
                                 const std::vector<PlannedChunk>& chunks) {
  std::vector<BlobToWrite> blobs = snapshot.objects;
  for (const PlannedChunk& chunk : chunks) {
    const SliceInfo& slice = snapshot.slices[chunk.slice];
    const auto* bytes = static_cast<const char*>(snapshot.host[chunk.slice].const_data_ptr());
    BlobToWrite blob;
    blob.key = slice.key;
    blob.dtype = slice.dtype;
    blob.sizes = chunk.box.sizes;
    blob.data = bytes + chunk.begin * InfoOf(slice.dtype).element_bytes;
    blobs.push_back(std::move(blob));
  }
  return blobs;
}

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

/// `.metadata` for what all ranks planned and wrote.
DcpMetadata ComposeMetadata(const std::vector<std::vector<SliceInfo>>& slices,
                            const std::vector<std::vector<PlannedChunk>>& plan,
                            const std::vector<ManifestFile>& written) {
  DcpMetadata metadata;
  for (size_t rank = 0; rank < slices.size(); ++rank) {
    for (const SliceInfo& slice : slices[rank]) {
      StoredTensor& tensor = metadata.tensors[slice.key];
      tensor.dtype = InfoOf(slice.dtype).name;
      tensor.shape = slice.shape;
      metadata.paths[slice.key] = PathOfKey(slice.key);
    }
    const std::vector<ManifestItem>& items = written[rank].items;
    const size_t object_count = items.size() - plan[rank].size();
    for (size_t i = 0; i < items.size(); ++i) {
      const BlobLocation blob{RankFileName(static_cast<int64_t>(rank)), items[i].offset,
                              items[i].length};
      if (i < object_count) {
        metadata.objects[items[i].key] = blob;
        metadata.paths[items[i].key] = PathOfKey(items[i].key);
      } else {
        metadata.tensors[items[i].key].chunks.push_back({plan[rank][i - object_count].box, blob});
      }
    }
  }
  return metadata;
}

}  // namespace

struct Saver::Impl {
  explicit Impl(SaverOptions given) : options(std::move(given)) {
    if (!options.file_system) {
      options.file_system = std::make_shared<FileSystem>();
    }
    if (!options.group.steps) {
      options.group.steps = std::make_shared<StepList>();
    }
  }

  bool is_rank0() const { return options.group.collectives->rank() == 0; }
  void WarnAll(const std::string& message) const { EmitWarning(options.group, message); }

  std::string TemporaryPath(int64_t step) const {
    return options.dir + "/" + TemporaryName(step, claim);
  }

  void ClaimDirectory();
  std::string Write(const Snapshot& snapshot, const std::vector<std::string>& slice_texts);
  std::string PublishWritten(const Snapshot& snapshot,
                             const std::vector<std::vector<SliceInfo>>& slices,
                             const std::vector<std::vector<PlannedChunk>>& plan,
                             const std::vector<std::string>& written_texts);
  std::string RunOf(const std::string& given) const {
    return given.empty() ? options.job_id : given;
  }
  void CleanUpUnsynced() {
    if (is_unsynced) {
      CleanUp(*options.file_system, options.dir, claim,
              [this](const std::string& message) { WarnAll(message); });
      is_unsynced = false;
    }
  }
  CheckpointError CauseOf(const CheckpointError& failure) const;
  int RemoveAttempt(int64_t step) const {
    return checkpoint::RemoveAttempt(*options.file_system, options.dir, step, claim);
  }

  SaverOptions options;
  Claim claim;
  // Of rank 0.
  std::optional<ClaimPulse> pulse;
  bool is_unsynced = false;  // after an UnsyncedPublication, until CleanUp
};

void Saver::Impl::ClaimDirectory() {
  claim = MakeClaim(options.job_id, options.generation, options.claim_timeout);
  // AttemptOnRank0 rethrows CheckpointError; a refusal is returned as a result to keep its type.
  const std::string outcome = AttemptOnRank0(options.group, [this]() -> std::string {
    try {
      FileDescriptor file = AcquireClaim(*options.file_system, options.dir,
                                         {claim, options.claim_timeout, options.takes_over},
                                         [this](const std::string& message) { WarnAll(message); });
      pulse.emplace(options.file_system, std::move(file), PulseInterval(options.claim_timeout));
      return kGranted + claim.id;
    } catch (const ClaimHeldError& error) {
      return kRefused + std::string(error.what());
    }
  });
  if (outcome[0] == kRefused) {
    throw ClaimHeldError(outcome.substr(1));
  }
  claim.id = outcome.substr(1);
}

std::string Saver::Impl::PublishWritten(const Snapshot& snapshot,
                                        const std::vector<std::vector<SliceInfo>>& slices,
                                        const std::vector<std::vector<PlannedChunk>>& plan,
                                        const std::vector<std::string>& written_texts) {
  std::vector<ManifestFile> written;
  Manifest manifest;
  for (size_t rank = 0; rank < written_texts.size(); ++rank) {
    written.push_back(DecodeWritten(written_texts[rank]));
    if (!written.back().items.empty()) {
      manifest.files[RankFileName(static_cast<int64_t>(rank))] = written.back();
    }
  }
  manifest.step = snapshot.step;
  manifest.tokens = snapshot.tokens;
  manifest.world_size = static_cast<int64_t>(written.size());
  manifest.generation = options.generation;
  manifest.job_id = options.job_id;
  manifest.run = RunOf(snapshot.run);
  const DcpMetadata metadata = ComposeMetadata(slices, plan, written);
  try {
    return Publish(*options.file_system, options.dir, claim, EncodeDcpMetadata(metadata),
                   std::move(manifest), *options.group.steps,
                   [this](const std::string& message) { WarnAll(message); });
  } catch (const UnsyncedPublication&) {
    is_unsynced = true;
    throw;
  }
}

std::string Saver::Impl::Write(const Snapshot& snapshot,
                               const std::vector<std::string>& slice_texts) {
  std::vector<std::vector<SliceInfo>> slices;
  for (const std::string& text : slice_texts) {
    slices.push_back(DecodeSlices(text));
  }
  // The same input on every rank, so the same plan or the same error.
  const std::vector<std::vector<PlannedChunk>> plan = PlanSave(slices, options.chunk_bytes_max);
  const int64_t rank = options.group.collectives->rank();
  const std::vector<std::string> written = AttemptOnAll(options.group, [&] {
    return EncodeWritten(WriteRankFile(*options.file_system, TemporaryPath(snapshot.step), rank,
                                       BlobsOf(snapshot, plan[static_cast<size_t>(rank)])));
  });
  return AttemptOnRank0(options.group,
                        [&] { return PublishWritten(snapshot, slices, plan, written); });
}

/// Who takes a claim removes the files in the making of the one who had it: then a save fails for
/// want of them, and the claim is the cause. Collective.
CheckpointError Saver::Impl::CauseOf(const CheckpointError& failure) const {
  if (failure.error_number() == ECANCELED) {
    return failure;  // there is no time to look
  }
  try {
    AttemptOnRank0(options.group, [this] {
      CheckClaim(options.dir, claim, "save");
      return std::string();
    });
  } catch (const CheckpointError& lost) {
    const bool could_look = lost.error_number() <= 0;
    return could_look ? lost : failure;
  }
  return failure;
}

Saver::Saver(SaverOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {
  impl_->ClaimDirectory();
}

Saver::~Saver() = default;

bool Saver::IsReplaced() const {
  try {
    const std::optional<ClaimSight> current = LookAtClaim(impl_->options.dir);
    return current && current->claim.id != impl_->claim.id;
  } catch (const CheckpointError&) {
    return false;
  }
}

void Saver::Release() {
  if (impl_->pulse) {
    impl_->pulse->Release();
  }
}

std::string Saver::Save(int64_t step, const State& state) {
  Impl& impl = *impl_;
  Snapshot snapshot;
  std::string published;
  try {
    const std::vector<std::string> slices = AttemptOnAll(impl.options.group, [&] {
      snapshot = TakeSnapshot(step, state, impl.is_rank0());
      if (impl.is_rank0()) {
        CheckClaim(impl.options.dir, impl.claim, "save");  // before the bytes are written
        impl.CleanUpUnsynced();
        CheckReplaceable(impl.options.dir + "/" + StepName(step), impl.RunOf(state.run));
        FileSystem& file_system = *impl.options.file_system;
        const std::string path = impl.TemporaryPath(step);
        CheckIo(impl.RemoveAttempt(step), "remove", path);
        CheckIo(file_system.MakeDirectory(path), "make the directory", path);
      }
      return EncodeSlices(snapshot.slices);
    });
    published = impl.Write(snapshot, slices);
  } catch (const CheckpointError& error) {
    if (impl.is_rank0() && !impl.is_unsynced) {
      impl.RemoveAttempt(step);  // what cannot be removed now is removed at the next start
    }
    const CheckpointError cause = impl.CauseOf(error);
    const std::string text =
        "checkpoint of step " + std::to_string(step) + " failed: " + cause.what();
    if (cause.error_number() == kClaimLost) {
      throw ClaimHeldError(text);
    }
    throw CheckpointError(text, cause.error_number());
  }
  if (impl.is_rank0()) {
    Prune(*impl.options.file_system, impl.options.dir, impl.claim,
          {impl.options.keep, impl.RunOf(state.run)}, published, *impl.options.group.steps,
          [&impl](const std::string& message) { impl.WarnAll(message); });
  }
  return published;
}

}  // namespace fsdprun::checkpoint
