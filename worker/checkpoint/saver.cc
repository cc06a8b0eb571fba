#include <c10/util/Exception.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "formats/checkpoint/step_list.h"
#include "worker/checkpoint/channel.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/directory_sink.h"
#include "worker/checkpoint/exchange.h"
#include "worker/checkpoint/pending_removal.h"
#include "worker/checkpoint/plan_agreement.h"
#include "worker/checkpoint/snapshot.h"
#include "worker/checkpoint/written_file.h"

namespace fsdprun::checkpoint {
namespace {

/// What has become of a save.
struct Saved {
  std::string path;
  /// Of rank 0.
  std::vector<std::string> retired;
};

/// Brings a snapshot to the host.
using ToHost = std::function<void(Snapshot&)>;

using Clock = std::chrono::steady_clock;

/// How long a Saver that ends waits for what its thread still does. A hung file system would hold
/// up the end of the process, and the report of why it ends.
constexpr auto kEndTimeout = std::chrono::seconds(10);

std::string FailureText(int64_t step, const CheckpointError& cause) {
  return "checkpoint of step " + std::to_string(step) + " failed: " + cause.what();
}

constexpr char kGranted = 'G';
constexpr char kRefused = 'R';

}  // namespace

// Note [Snapshot, plan, sink]
// A save is three things that know nothing of each other: the snapshot, which is all that this rank
// has to write; the plan, which says who writes what; and the sink, which is where it goes. This
// file puts them together and exchanges between ranks how each step of it has ended.
//
// Note [Saves beside training]
// The state of a run changes only in the optimizer's step. So a save that was begun copies it
// beside the next forward and backward, and only the next optimizer step waits for what is not
// copied yet (of a step that is a graph, the whole step). What is agreed before that goes over
// training's communicator, at the same place of the program on all ranks, and touches no file,
// since a file system that hangs must not hold up training; what follows goes over the background's
// channel, since training uses the other meanwhile, in an order that has nothing to do with it.
//
// Ranks may differ in what they know of the end of a save: who loses the way to the others cannot
// tell whether it was published. Rank 0 publishes, so what it says is how the save has ended, and
// Finish tells it to all, over training's communicator. What is removed to make room is removed
// after that, since it may take longer than the save.

/// Outlives the Saver while its thread is in a call that does not return.
struct Saver::Impl {
  explicit Impl(const SaverOptions& options)
      : group(options.group),
        must_give_up(options.must_give_up),
        background(options.group),
        agreement(options.chunk_bytes_max),
        sink(options, options.group.steps ? options.group.steps : std::make_shared<StepList>(),
             [this](const std::string& message) { EmitWarning(group, message); }) {
    background.channel = options.background;
  }

  int64_t rank() const { return group.collectives->rank(); }
  bool is_rank0() const { return rank() == 0; }

  void ClaimDirectory();
  std::shared_ptr<const SavePlan> Agree(int64_t step, const State& state, Snapshot& snapshot);
  void Prepare(const Snapshot& snapshot, const SavePlan& plan);
  void BringToHost(Snapshot& snapshot);
  Saved Complete(const Group& over, Snapshot& snapshot, const SavePlan& plan,
                 const ToHost& to_host);
  void AwaitThread() const {
    if (tidied.valid()) {
      tidied.wait_for(kEndTimeout);
    }
  }
  void SaveBeside(Snapshot& snapshot, const SavePlan& plan, std::promise<void>& copied,
                  std::promise<std::string>& published);
  std::string Write(const Group& over, Snapshot& snapshot, const SavePlan& plan,
                    const ToHost& to_host);
  std::string WriteWithRoom(const Group& over, Snapshot& snapshot, const SavePlan& plan,
                            const ToHost& to_host);
  std::string PublishWritten(const Snapshot& snapshot, const SavePlan& plan,
                             const std::vector<std::string>& written_texts);
  [[noreturn]] void Fail(const Group& over, int64_t step, const CheckpointError& error);
  CheckpointError CauseOf(const Group& over, const CheckpointError& failure) const;

  const Group group;
  const std::function<bool()> must_give_up;
  Group background;
  PlanAgreement agreement;
  DirectorySink sink;
  Staging staging;
  // Of what was begun.
  int64_t step = 0;
  Clock::time_point began_at;
  std::future<void> copied;
  std::future<std::string> pending;
  /// With the end of the thread: what was retired is removed.
  std::shared_future<void> tidied;
  /// Of the save before it.
  PendingRemoval removal;
  /// Of the last save, until this rank's part of it has ended.
  std::atomic<Clock::duration> save_time{Clock::duration::zero()};
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

/// A save that is not begun. Who begins saves as well has room for copies already.
void Saver::Impl::BringToHost(Snapshot& snapshot) {
  if (background.channel && staging.is_on_device()) {
    staging.Copy(snapshot);
  } else {
    CopyToHost(snapshot);
  }
}

/// On rank 0.
void Saver::Impl::Prepare(const Snapshot& snapshot, const SavePlan& plan) {
  removal.RequireName(snapshot.step);
  int64_t needed_bytes = plan.bytes;
  for (const BlobToWrite& object : snapshot.objects) {
    needed_bytes += static_cast<int64_t>(object.object.size());
  }
  sink.Prepare(snapshot.step, snapshot.run, needed_bytes);
}

std::string Saver::Impl::Write(const Group& over, Snapshot& snapshot, const SavePlan& plan,
                               const ToHost& to_host) {
  AttemptAndConclude(
      over,
      [&] {
        to_host(snapshot);
        return std::string();
      },
      [&](const std::vector<std::string>&) {
        Prepare(snapshot, plan);
        return std::string();
      });
  return AttemptAndConclude(
      over,
      [&] {
        return EncodeWritten(sink.Write(
            snapshot.step, rank(), BlobsOf(snapshot, plan.chunks[static_cast<size_t>(rank())])));
      },
      [&](const std::vector<std::string>& written) {
        return PublishWritten(snapshot, plan, written);
      });
}

/// Write; once more if what the save before it retired, which was still being removed, may have
/// been in the way. The errors of Write are all ranks'.
std::string Saver::Impl::WriteWithRoom(const Group& over, Snapshot& snapshot, const SavePlan& plan,
                                       const ToHost& to_host) {
  const bool is_removing = removal.IsUnderWay();
  try {
    return Write(over, snapshot, plan, to_host);
  } catch (const CheckpointError& error) {
    if (!removal.HasMadeWay(over, error, is_removing)) {
      throw;
    }
  }
  return Write(over, snapshot, plan, [](Snapshot&) {});  // the tensors are on the host by now
}

/// Who takes a claim removes the files in the making of the one who had it: then a save fails for
/// want of them, and the claim is the cause. Collective.
CheckpointError Saver::Impl::CauseOf(const Group& over, const CheckpointError& failure) const {
  if (failure.error_number() == ECANCELED) {
    return failure;  // there is no time to look
  }
  try {
    AttemptOnRank0(over, [this] {
      sink.CheckHeld();
      return std::string();
    });
  } catch (const CheckpointError& lost) {
    const int number = lost.error_number();
    const bool could_look = number == 0 || number == kClaimLost;
    return could_look ? lost : failure;
  }
  return failure;
}

void Saver::Impl::Fail(const Group& over, int64_t step, const CheckpointError& error) {
  if (is_rank0()) {
    sink.Discard(step);
  }
  const CheckpointError cause = CauseOf(over, error);
  const std::string text = FailureText(step, cause);
  if (cause.error_number() == kClaimLost) {
    throw ClaimHeldError(text, kClaimLost);
  }
  throw CheckpointError(text, cause.error_number());
}

/// Fills in the snapshot. Collective over training's communicator.
std::shared_ptr<const SavePlan> Saver::Impl::Agree(int64_t step_to_save, const State& state,
                                                   Snapshot& snapshot) {
  removal = PendingRemoval(tidied, step, must_give_up);
  step = step_to_save;
  began_at = Clock::now();
  try {
    const std::vector<std::string> checksums = AttemptOnAll(group, [&] {
      snapshot = TakeSnapshot(step, state, is_rank0());
      return PlanAgreement::ChecksumOf(snapshot.slices);
    });
    return agreement.Agree(group, snapshot.slices, checksums);
  } catch (const CheckpointError& error) {
    throw CheckpointError(FailureText(step, error), error.error_number());
  }
}

/// What follows Agree, but for the removal of what is retired. Collective over `over`.
Saved Saver::Impl::Complete(const Group& over, Snapshot& snapshot, const SavePlan& plan,
                            const ToHost& to_host) {
  Saved saved;
  try {
    saved.path = WriteWithRoom(over, snapshot, plan, to_host);
  } catch (const CheckpointError& error) {
    Fail(over, snapshot.step, error);
  }
  if (is_rank0()) {
    saved.retired = sink.Retire(snapshot.run, saved.path);
  }
  return saved;
}

/// In a thread of its own. Throws nothing.
void Saver::Impl::SaveBeside(Snapshot& snapshot, const SavePlan& plan, std::promise<void>& copied_,
                             std::promise<std::string>& published) {
  Saved saved;
  try {
    saved = Complete(background, snapshot, plan, [&](Snapshot& shared) {
      const auto let_go = [&](const void*) { copied_.set_value(); };  // also after an error
      const std::unique_ptr<const void, decltype(let_go)> copying(&shared, let_go);
      staging.Copy(shared);
    });
  } catch (const std::exception&) {
    save_time = Clock::now() - began_at;
    published.set_exception(std::current_exception());
    return;
  }
  save_time = Clock::now() - began_at;
  published.set_value(saved.path);
  sink.Remove(saved.retired);
}

Saver::Saver(const SaverOptions& options) : impl_(std::make_shared<Impl>(options)) {
  impl_->ClaimDirectory();
}

Saver::~Saver() {
  if (impl_->pending.valid()) {
    Cancel(CheckpointError("the saver has ended", ECANCELED));
  }
  impl_->AwaitThread();
}

bool Saver::IsReplaced() const { return impl_->sink.IsReplaced(); }

void Saver::Release() {
  impl_->AwaitThread();  // whoever has the directory next removes the same
  impl_->sink.Release();
}

std::string Saver::Save(int64_t step, const State& state) {
  Snapshot snapshot;
  const std::shared_ptr<const SavePlan> plan = impl_->Agree(step, state, snapshot);
  impl_->staging.Mark(snapshot);
  const Saved saved = impl_->Complete(impl_->group, snapshot, *plan,
                                      [this](Snapshot& shared) { impl_->BringToHost(shared); });
  impl_->save_time = Clock::now() - impl_->began_at;
  impl_->sink.Remove(saved.retired);
  return saved.path;
}

void Saver::Begin(int64_t step, const State& state) {
  Impl& impl = *impl_;
  TORCH_CHECK(impl.background.channel != nullptr,
              "checkpoint::Saver::Begin: SaverOptions::background is not set");
  TORCH_CHECK(!impl.pending.valid(),
              "checkpoint::Saver::Begin: a save is in the making; Finish() it first");
  auto snapshot = std::make_shared<Snapshot>();
  std::shared_ptr<const SavePlan> plan = impl.Agree(step, state, *snapshot);
  impl.background.channel->Restart();
  impl.staging.Mark(*snapshot);
  std::promise<void> copied;
  std::promise<std::string> published;
  std::promise<void> tidied;
  impl.copied = copied.get_future();
  impl.pending = published.get_future();
  const std::shared_future<void> before = std::exchange(impl.tidied, tidied.get_future().share());
  std::thread([shared = impl_, snapshot, plan = plan, before, copied = std::move(copied),
               published = std::move(published), tidied = std::move(tidied)]() mutable {
    shared->SaveBeside(*snapshot, *plan, copied, published);
    if (before.valid()) {
      before.wait();
    }
    // Whoever waits may take what they refer to apart.
    snapshot.reset();
    plan.reset();
    shared.reset();
    tidied.set_value();
  }).detach();
}

void Saver::AwaitCopy() {
  if (impl_->copied.valid()) {
    impl_->copied.get();
  }
}

bool Saver::HasEnded() const { return AwaitEnd(Clock::now()); }

bool Saver::AwaitEnd(Clock::time_point deadline) const {
  return impl_->pending.valid() && impl_->pending.wait_until(deadline) == std::future_status::ready;
}

bool Saver::HasLostTheWay() const { return HasEnded() && impl_->background.channel->IsLost(); }

void Saver::Cancel(const CheckpointError& why) { impl_->background.channel->Cancel(why); }

void Saver::SetBackground(std::shared_ptr<Channel> background) {
  TORCH_CHECK(!impl_->pending.valid(),
              "checkpoint::Saver::SetBackground: a save is in the making; Finish() it first");
  impl_->background.channel = std::move(background);
}

std::string Saver::Finish() {
  Impl& impl = *impl_;
  TORCH_CHECK(impl.pending.valid(),
              "checkpoint::Saver::Finish: no save is in the making; Begin() one first");
  AwaitCopy();
  std::future<std::string> pending = std::move(impl.pending);
  pending.wait();
  try {
    return AttemptOnRank0(impl.group, [&] { return pending.get(); });
  } catch (const CheckpointError& error) {
    if (error.error_number() == kClaimLost) {
      throw ClaimHeldError(error.what(), kClaimLost);
    }
    throw;
  }
}

Clock::duration Saver::save_time() const { return impl_->save_time; }

}  // namespace fsdprun::checkpoint
