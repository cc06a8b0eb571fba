#include <cerrno>
#include <nlohmann/json.hpp>
#include <utility>

#include "formats/checkpoint/step_list.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/directory_sink.h"
#include "worker/checkpoint/exchange.h"
#include "worker/checkpoint/plan_agreement.h"
#include "worker/checkpoint/snapshot.h"

namespace fsdprun::checkpoint {
namespace {

using nlohmann::json;

constexpr char kGranted = 'G';
constexpr char kRefused = 'R';

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

}  // namespace

// Note [Snapshot, plan, sink]
// A save is three things that know nothing of each other: the snapshot, which is all that this rank
// has to write; the plan, which says who writes what; and the sink, which is where it goes. This
// file puts them together and exchanges between ranks how each step of it has ended.
struct Saver::Impl {
  explicit Impl(const SaverOptions& options)
      : group(options.group),
        agreement(options.chunk_bytes_max),
        sink(options, options.group.steps ? options.group.steps : std::make_shared<StepList>(),
             [this](const std::string& message) { EmitWarning(group, message); }) {}

  int64_t rank() const { return group.collectives->rank(); }
  bool is_rank0() const { return rank() == 0; }

  void ClaimDirectory();
  std::string Write(const Snapshot& snapshot, const SavePlan& plan);
  std::string PublishWritten(const Snapshot& snapshot, const SavePlan& plan,
                             const std::vector<std::string>& written_texts);
  CheckpointError CauseOf(const CheckpointError& failure) const;

  const Group group;
  PlanAgreement agreement;
  DirectorySink sink;
};

void Saver::Impl::ClaimDirectory() {
  // AttemptOnRank0 rethrows CheckpointError; a refusal is returned as a result to keep its type.
  const std::string outcome = AttemptOnRank0(group, [this]() -> std::string {
    try {
      return kGranted + sink.Acquire();
    } catch (const ClaimHeldError& error) {
      return kRefused + std::string(error.what());
    }
  });
  if (outcome[0] == kRefused) {
    throw ClaimHeldError(outcome.substr(1));
  }
  sink.Join(outcome.substr(1));
}

std::string Saver::Impl::PublishWritten(const Snapshot& snapshot, const SavePlan& plan,
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
  manifest.run = snapshot.run;
  return sink.Publish(std::move(manifest), ComposeMetadata(plan, written));
}

std::string Saver::Impl::Write(const Snapshot& snapshot, const SavePlan& plan) {
  const std::vector<std::string> written = AttemptOnAll(group, [&] {
    return EncodeWritten(sink.Write(snapshot.step, rank(),
                                    BlobsOf(snapshot, plan.chunks[static_cast<size_t>(rank())])));
  });
  return AttemptOnRank0(group, [&] { return PublishWritten(snapshot, plan, written); });
}

/// Who takes a claim removes the files in the making of the one who had it: then a save fails for
/// want of them, and the claim is the cause. Collective.
CheckpointError Saver::Impl::CauseOf(const CheckpointError& failure) const {
  if (failure.error_number() == ECANCELED) {
    return failure;  // there is no time to look
  }
  try {
    AttemptOnRank0(group, [this] {
      sink.CheckHeld();
      return std::string();
    });
  } catch (const CheckpointError& lost) {
    const bool could_look = lost.error_number() <= 0;
    return could_look ? lost : failure;
  }
  return failure;
}

Saver::Saver(const SaverOptions& options) : impl_(std::make_unique<Impl>(options)) {
  impl_->ClaimDirectory();
}

Saver::~Saver() = default;

bool Saver::IsReplaced() const { return impl_->sink.IsReplaced(); }

void Saver::Release() { impl_->sink.Release(); }

std::string Saver::Save(int64_t step, const State& state) {
  Impl& impl = *impl_;
  Snapshot snapshot;
  std::string published;
  try {
    const std::vector<std::string> checksums = AttemptOnAll(impl.group, [&] {
      snapshot = TakeSnapshot(step, state, impl.is_rank0());
      if (impl.is_rank0()) {
        impl.sink.Prepare(step, state.run);
      }
      return PlanAgreement::ChecksumOf(snapshot.slices);
    });
    published = impl.Write(snapshot, *impl.agreement.Agree(impl.group, snapshot.slices, checksums));
  } catch (const CheckpointError& error) {
    if (impl.is_rank0()) {
      impl.sink.Discard(step);
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
    impl.sink.Prune(state.run, published);
  }
  return published;
}

}  // namespace fsdprun::checkpoint
