#pragma once

#include <ATen/core/Tensor.h>
#include <fsdp/collectives.h>
#include <fsdp/fully_shard.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "formats/checkpoint/claim.h"
#include "formats/checkpoint/error.h"

namespace fsdprun::checkpoint {

class Channel;
class FileSystem;
class StepList;

/// The contents of one checkpoint as one rank holds them.
struct State {
  /// `fqn` is the full checkpoint key: "model.<fqn>", "optim.state.<fqn>.exp_avg" (or
  /// .exp_avg_sq; same boxes as the parameter) or "optim.state.<fqn>.step" (global_shape {},
  /// float32; on every rank). Boxes that several ranks hold are written once, by the lowest of
  /// them. `local`: contiguous, CPU or CUDA.
  std::vector<fsdp::LocalShard> tensors;
  /// Hyper-parameters as JSON: a list of objects ("lr", "betas", "eps", "weight_decay", "params":
  /// [fqn...]). Stored as one Python list of dicts under `optim.param_groups`. Only rank 0's is
  /// written.
  std::string param_groups_json = "[]";
  /// Step, tokens, data cursor, schedule, RNG: any JSON object. Stored as one Python dict under
  /// `train.state`. Only rank 0's is written. Numbers come back exactly; NaN and infinity are
  /// refused.
  std::string training_state_json = "{}";
  // For fsdprun.json only.
  int64_t tokens = 0;  // so that tools need not open the pickles
  /// What was begun at step 0 and is continued by every start that resumes from its checkpoints:
  /// NewRun(), else Candidate::run. SaverOptions::keep counts and removes only its checkpoints.
  /// Empty: the job id. Only rank 0's is written.
  std::string run;
};

/// The ranks that save and load together, for every call below.
struct Group {
  /// Not null. The calls of this library are collective over it, in the same order on all ranks.
  std::shared_ptr<fsdp::Collectives> collectives;
  /// Where the small byte tensors that are exchanged live: CUDA for NCCL, else CPU.
  at::Device device = at::kCPU;
  /// Receives one line per warning, on rank 0 only. With Saver::Begin, also in the thread of the
  /// save, and maybe after the Saver's end. Unset: stderr.
  std::function<void(const std::string&)> warn;
  /// What rank 0 remembers of the checkpoints from one call to the next. Unset: nothing, except
  /// that a Saver does it from save to save.
  std::shared_ptr<StepList> steps;
  /// What texts are exchanged over, instead of `collectives`, which then says only who is there.
  std::shared_ptr<Channel> channel;
};

struct SaverOptions {
  /// `checkpoint.dir`: made if missing, on a file system that all ranks see.
  std::string dir;
  /// How many checkpoints of the run stay; 0: all.
  int64_t keep = 0;
  /// Besides, those of the steps that it divides stay for ever; 0: none.
  int64_t keep_every = 0;
  Group group;
  /// Fencing (Note [Fencing by claim]): FSDPRUN_GENERATION and FSDPRUN_JOB_ID.
  uint64_t generation = 0;
  std::string job_id;
  /// A claim of another launch that has not been renewed for so long, or for as long as its holder
  /// allows, is taken over.
  std::chrono::milliseconds claim_timeout = kClaimTimeout;
  /// Takes the directory at once, whoever uses it.
  bool takes_over = false;
  /// Larger pieces are cut into chunks of at most this size.
  int64_t chunk_bytes_max = int64_t{1} << 30;
  /// All effects on disk go through this; unset: the real one. Tests inject faults here. With
  /// Begin, also from the thread of the save.
  std::shared_ptr<FileSystem> file_system;
  /// Asked on rank 0, in the thread of the save, while that waits for the removal of earlier
  /// checkpoints: whether it must end soon, with ECANCELED. Unset: no.
  std::function<bool()> must_give_up;
  /// What a save that was begun exchanges over, beside whatever the caller does with
  /// `group.collectives`; not needed for Save.
  std::shared_ptr<Channel> background;
};

/// Writes checkpoints `<dir>/step-<N>/` in DCP's layout. One per job process, all ranks.
/// Thread: one. Errors: CheckpointError, with the same text on all ranks.
class Saver {
 public:
  /// Collective. Claims the directory for this generation and removes what dead runs left behind.
  /// May wait for claim_timeout, which rank 0 tells. Errors: the directory cannot be made or
  /// written; a newer generation of this job has claimed it; ClaimHeldError if another launch uses
  /// it.
  explicit Saver(const SaverOptions& options);
  /// Does not release the claim: what ends with an error may be started again by its launcher. Ends
  /// what was begun and not finished, published or not, and what is still being removed. If that
  /// takes longer than 10 s, as on a hung file system, it goes on while the process lives.
  ~Saver();
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  /// Collective. Writes, commits and prunes; returns the path of the published checkpoint. Replaces
  /// an earlier one of the same step, and refuses to replace a directory of that name that another
  /// program made (one without fsdprun.json) or another run. On an error nothing is published,
  /// unless the message says so, and the earlier checkpoints are unchanged; the caller may continue
  /// and try again.
  /// If the file system is known to have less room than that, nothing is written (ENOSPC).
  /// ClaimHeldError: another launch has taken the directory.
  std::string Save(int64_t step, const State& state);

  /// Collective. Does of Save what needs the other ranks' attention, which touches no file, and
  /// leaves the rest to a thread of its own: copies of the tensors, then files, commit and room for
  /// the next. It exchanges over SaverOptions::background. `state` may be changed once AwaitCopy
  /// has returned. The copies take as much memory of the host as the tensors, and keep it until the
  /// Saver ends. Precondition: no save is in the making. Errors: CheckpointError, on all ranks, if
  /// the ranks' parts cannot be a checkpoint; what the file system says is Finish's.
  void Begin(int64_t step, const State& state);

  /// Not collective. Returns at once if nothing was begun.
  void AwaitCopy();

  /// Whether Finish would return at once: so there is one, and this rank's part of it has ended.
  /// Not collective.
  bool HasEnded() const;
  /// The same; waits for it until `deadline`.
  bool AwaitEnd(std::chrono::steady_clock::time_point deadline) const;

  /// Of what Begin has begun: whether this rank has lost the way to the others, who may still wait
  /// for its part. Not collective; to be told to them, and all to Cancel.
  bool HasLostTheWay() const;
  /// What Begin has begun ends soon, as `why` says unless it is published already. Not collective.
  void Cancel(const CheckpointError& why);
  /// What the next Begin exchanges over. Precondition: no save is in the making.
  void SetBackground(std::shared_ptr<Channel> background);

  /// What Begin has begun: as Save, which blocks until it has ended on all ranks. Collective, over
  /// SaverOptions::group. What is no longer kept may still be being removed. Precondition: a save
  /// is in the making. Errors: as Save; kChannelLost if the background's channel is.
  std::string Finish();

  /// How long the last save took, until this rank's part of it had ended, for better or worse.
  std::chrono::steady_clock::duration save_time() const;

  /// Whether another process has claimed the directory since, as far as can be told. Not
  /// collective; one look at a file.
  bool IsReplaced() const;

  /// Lets others have the directory at once: nothing of this launch will use it again, once what is
  /// being removed is, or 10 s are over. Nothing may be saved after this.
  void Release();

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

/// How much FindResume reads before it accepts a checkpoint.
enum class Verify {
  kStructure,  // .metadata and fsdprun.json, presence and size of every file; Load checks what it
               // reads, so each byte is read once
  kFull,       // and the checksum of every file, the files being divided among the ranks
};

/// Checkpoints that turned out to be damaged when they were loaded, by path, and how. For what
/// chooses they are as if they did not verify. The same on all ranks.
using Unloadable = std::map<std::string, CheckpointError>;

/// A checkpoint that passed verification. The same on all ranks.
struct Candidate {
  std::string path;
  /// From fsdprun.json; for a checkpoint that Python wrote, from the directory's name, else 0.
  int64_t step = 0;
  /// The ranks that wrote it; of one that Python wrote, those that have written a file.
  int64_t world_size = 0;
  /// Empty: unknown.
  std::string run;
  /// false: no fsdprun.json (Python wrote it), so there are no checksums to verify.
  bool has_checksums = false;
  /// All files were compared with their checksums (Verify::kFull); Load need not do it again.
  bool files_verified = false;
};

/// Chooses what to resume from; collective, all ranks get rank 0's choice.
/// `resume` is `checkpoint.resume`: "auto": the newest checkpoint in `dir` that verifies; newer
/// ones that do not are skipped with a warning; none at all (or no directory): nullopt. "none":
/// nullopt. Else as FindAt. Errors: CheckpointError if `auto` found checkpoints but none of them
/// verifies; as FindAt.
std::optional<Candidate> FindResume(const std::string& dir, const std::string& resume,
                                    const Group& group, Verify verify = Verify::kFull,
                                    const Unloadable& unloadable = {});

/// The checkpoint `path`, or, of those in the directory `path`, the newest that verifies.
/// Collective, as FindResume. Errors: CheckpointError if there is none or none verifies.
Candidate FindAt(const std::string& path, const Group& group, Verify verify = Verify::kFull,
                 const Unloadable& unloadable = {});

/// A launch of a job: its start and its restarts.
struct Launch {
  std::string job_id;  // empty: not known
  bool is_restart = false;
};

/// Of several checkpoints in `dir`, those that the launch has written: the newest that verifies;
/// nullopt if there is none. Collective, as FindResume. Errors: CheckpointError if there are some
/// but none verifies, and at a restart also if there may be some.
std::optional<Candidate> FindOfJob(const std::string& dir, const Launch& launch, const Group& group,
                                   Verify verify = Verify::kFull,
                                   const Unloadable& unloadable = {});

struct LoadOptions {
  /// `optim.param_groups` and `train.state` need not be there, as where Python has written the
  /// checkpoint; what is missing stays as it is in `state`.
  bool may_lack_objects = false;
};

/// Fills `state` from `candidate`; collective. Each `tensors[i].local` is overwritten in place (it
/// may be a view of a flat shard), whatever world size wrote the checkpoint; `param_groups_json`
/// and `training_state_json` are replaced on every rank. A stored dtype that differs is converted
/// if every value converts exactly, else refused. Of a checkpoint without `train.state` the keys
/// may begin otherwise: Note [Keys of other programs]. Errors: MismatchError naming the missing or
/// mis-shaped keys, and in such a checkpoint those of parameters that `state` does not have;
/// CheckpointError naming the file and item that are damaged; `state` is then partly overwritten.
void Load(const Candidate& candidate, State& state, const Group& group,
          const LoadOptions& options = {});

/// Loads what `find` chooses (FindResume, FindOfJob), and what it chooses next if that was removed
/// meanwhile, a few times, or is damaged; collective. Returns what was loaded; nullopt if `find`
/// has chosen nothing at once. Errors: those of `find`, for which what is damaged does not verify;
/// MismatchError and all that is no CheckpointError of `load`, which may call Load for several
/// candidates, each of which overwrites all of the state; CheckpointError if nothing is left of
/// what there was.
std::optional<Candidate> LoadChosen(
    const Group& group,
    const std::function<std::optional<Candidate>(const Unloadable& unloadable)>& find,
    const std::function<void(const Candidate&)>& load);

/// A new id for State::run; collective, the same on all ranks.
std::string NewRun(const Group& group);

/// The number of publications in `dir` so far, as its checkpoints tell; collective. If it has
/// changed since FindResume, that may have chosen an older checkpoint than it would now.
int64_t CountPublications(const std::string& dir, const Group& group);

/// Makes `dir` if it is missing and proves that a file can be written there and synced. Not
/// collective. Errors: CheckpointError naming the path and what to do. Takes milliseconds. A new
/// directory is made durable by the Saver.
void CheckWritable(const std::string& dir);

/// Proves for the steps of which `is_saved` is true that a save of the run will replace nothing of
/// other programs and other runs. Not collective. Errors: CheckpointError naming the directory of
/// the lowest step that is in the way.
void CheckReplaceable(const std::string& dir, const std::string& run,
                      const std::function<bool(int64_t step)>& is_saved);

}  // namespace fsdprun::checkpoint
