#pragma once

/// @file
/// Process groups: collectives on tensors, errors of lost peers, and groups made from groups.

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <fsdp/export.h>
#include <fsdp/work.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace fsdp {

/// @addtogroup communicate
/// @{

class PartGroups;

/// How a reduction joins the elements of all ranks.
enum class ReduceOp {
  kSum,  ///< Their sum.
  kAvg,  ///< The sum, divided by the number of ranks. Floating-point dtypes only.
  kMax   ///< The largest.
};

/// A peer died or left the group: this rank is a victim, not the root cause.
class FSDP_API PeerError : public c10::Error {
 public:
  using c10::Error::Error;
  /// Who died or left, by its rank in the world: not one that left because of that. Unset if that
  /// is not known.
  std::optional<int64_t> rank;
  /// What this rank was in: "all_gather for unit layers.0 on lane 0".
  std::string operation;
  /// How long it had been in it.
  std::chrono::milliseconds waited{0};
};

/// The answer to Collectives::agree().
class FSDP_API Agreement {
 public:
  virtual ~Agreement() = default;
  /// Blocks the host. Whether all ranks have passed the same value; false also if the backend
  /// cannot tell. The same on all ranks. Throws like Work::wait() on the CPU.
  virtual bool wait() = 0;
};
/// Never null.
using AgreementPtr = std::shared_ptr<Agreement>;

/// How an operation is issued. A lane alone is one, too:
///
/// ```cpp
/// group.all_reduce(loss, fsdp::ReduceOp::kAvg)->wait();  // on the default lane
/// group.broadcast(bytes, 0, {fsdp::Lane::kReduce, "the tokenizer"})->wait();
/// ```
struct FSDP_API Issue {
  /// On lane `on`, as `purpose` and `after` say.
  // NOLINTNEXTLINE(google-explicit-constructor): most operations need no more than a lane
  Issue(Lane on, std::string what_for = {}, WorkPtr behind = nullptr)
      : lane(on), purpose(std::move(what_for)), after(std::move(behind)) {}

  Lane lane;  ///< The same on all ranks.
  /// What the operation is for, such as "unit layers.0". The same on all ranks, which compare it.
  std::string purpose;
  /// A work of any group and lane, which must end before the operation begins. CPU: the lane waits
  /// for it, so it must not depend on what comes later on this lane; if it fails, so does the
  /// operation, with the same error, and with it the group, because its peers cannot go on without
  /// this rank. A group that is destroyed waits for what its operations in flight depend on. CUDA:
  /// the lane's stream waits.
  WorkPtr after;
};

/// Memory of which each rank of a group has a part, and sees the parts of all end to end: an
/// all-gather that copies nothing. A rank writes its own part only. By a gather it promises that
/// the part stays as it is until all ranks have ended that use; so whoever writes waits for the
/// readers, and who reads waits for nobody but those who have not issued the gather yet.
///
/// All ranks issue the same gathers, of all windows of a group, in the same order, which is
/// compared as with other operations. Tensors may outlive window and group. Destroying a window is
/// local, and ends its use. Thread: the rank's; waiting for a work: any.
class FSDP_API GatherWindow {
 public:
  virtual ~GatherWindow() = default;
  /// Shape [numel], on the group's device: this rank's part. To be written from wait_for_readers()
  /// to the next issue().
  virtual at::Tensor own() = 0;
  /// Shape [size * numel]: all parts in rank order. Valid from Work::wait() to release(). What is
  /// written there is seen by this rank alone, until release().
  virtual at::Tensor whole() = 0;
  /// Issues an all-gather: the peers may read own(). Blocks the host for Issue::after, and while
  /// many gathers are in flight; the lane does not matter. Errors come from the work. The window
  /// must have been released, and its group still be there.
  virtual WorkPtr issue(Issue issue) = 0;
  /// Ends the use of the last gather. Local. No-op if that has ended. If it cannot be ended, the
  /// group fails, because its peers would wait for that: throws like Work::wait().
  virtual void release() = 0;
  /// Blocks the host until all ranks have ended the uses of all gathers that this rank has issued.
  /// It must have released the window itself. Throws like Work::wait().
  virtual void wait_for_readers() = 0;
};

/// The collectives of one process group, ordered after all work that the caller's current stream
/// (CUDA) or thread (CPU) has issued before, and after Issue::after. Every rank must issue the same
/// operations with the same sizes in the same order per lane. Tensors are contiguous and must stay
/// alive and unmodified until Work::wait() has returned (CPU) or the stream has passed it. dtypes:
/// float32, float64, bfloat16, float16 for reductions, int32 and int64 too for kSum and kMax; any
/// for gathers and broadcasts. Thread: issue from one thread at a time.
///
/// Errors of all operations: TORCH_CHECK at once, on this rank alone, on a tensor that is
/// undefined, not contiguous, on another type of device, or of another size or dtype than the
/// operation needs. What fails later comes from Work::wait(): PeerError if a peer died or left,
/// else c10::Error. All groups of a world fail together, and for good: see shrink().
///
/// CUDA graphs: operations on a stream that is captured become a part of the graph. Each work must
/// be waited for before the capture ends, on a captured stream, and not after it. In turn no work
/// from before it may be Issue::after, or waited for, there. No timeout bounds the launches, and
/// the ranks compare what they capture, not what they launch. Of NCCL, with several ranks or
/// ProcessGroupOptions::communicates_alone, Work::is_done() is true at once, and Work::wait() where
/// it must not be, Work::wait_on_host() and barrier() throw; what a group of one rank that copies
/// gives must not be asked for is_done() or wait_on_host(). Form groups before.
class FSDP_API Collectives {
 public:
  virtual ~Collectives() = default;

  /// This process's number in the group, from 0.
  virtual int64_t rank() const = 0;
  /// How many ranks there are.
  virtual int64_t size() const = 0;
  /// What the ranks of this group are called in the world it was split from, by rank; 0, 1, 2, ...
  /// if it was not split.
  virtual std::vector<int64_t> world_ranks() const;
  /// "shm", "gloo", "nccl" or "single"; "recording(...)" around one of them.
  virtual std::string name() const = 0;
  /// The device of the tensors; CUDA with its index.
  virtual c10::Device device() const { return c10::kCPU; }
  /// Whether operations are ordered by the streams of a device: Work::wait() does not block the
  /// host, and work is cheaper in large batches. Default: unless the tensors are on the CPU.
  virtual bool is_stream_ordered() const { return !device().is_cpu(); }

  /// Gathers the parts of all ranks, in rank order. Shapes: `input` has n elements, `output` size *
  /// n of the same dtype. `input` may be output's own slice `[rank * n, (rank + 1) * n)` (in place:
  /// no copy).
  virtual WorkPtr all_gather_into(at::Tensor output, at::Tensor input,
                                  Issue issue = Lane::kGather) = 0;
  /// Reduces over all ranks and gives each rank its part, in rank order. Shapes: `input` has size *
  /// n elements, `output` n of the same dtype. CPU: the sum runs over ranks 0, 1, 2, ... in this
  /// order, so every run gives the same bits; NCCL chooses its own order. kAvg divides the sum by
  /// size. `input` may be overwritten.
  virtual WorkPtr reduce_scatter_into(at::Tensor output, at::Tensor input, ReduceOp op,
                                      Issue issue = Lane::kReduce) = 0;
  /// As reduce_scatter_into(), with `output` += the sum (or average) in one pass over memory, with
  /// the bits of a separate addition. What `output` is after a failure is not defined. For dtypes
  /// of which has_reduce_scatter_onto() is true; others: TORCH_CHECK.
  virtual WorkPtr reduce_scatter_onto(at::Tensor output, at::Tensor input, ReduceOp op,
                                      Issue issue = Lane::kReduce);
  /// Whether reduce_scatter_onto() can do this dtype. The same on all ranks. Default: none.
  virtual bool has_reduce_scatter_onto(at::ScalarType dtype) const;
  /// Reduces `tensor` over all ranks in place; it has the same size on all. The order of sums is
  /// that of reduce_scatter_into().
  virtual WorkPtr all_reduce(at::Tensor tensor, ReduceOp op, Issue issue = Lane::kReduce) = 0;
  /// Makes `tensor` what it is on rank `root`, in place; it has the same size on all ranks.
  virtual WorkPtr broadcast(at::Tensor tensor, int64_t root, Issue issue = Lane::kReduce) = 0;
  /// Blocks the host until every rank has entered. Throws like Work::wait() on the CPU.
  virtual void barrier() = 0;

  /// Runs `stage`, work of this rank alone, in the order of a lane: behind what was issued there
  /// before, and ahead of what comes later. CPU: on the lane's thread, beside the caller's; a stage
  /// that keeps to one core leaves the others to compute. CUDA: at once, with the lane's stream as
  /// the current one, so that the kernels it launches are ordered there, behind the caller's
  /// current stream. If `issue.after` fails (CPU), `stage` does not run, and the returned work
  /// fails with the same error; so does it with what `stage` throws. No peer takes part, and none
  /// is affected. Default: everything at once, in the caller, on a device on its current stream.
  virtual WorkPtr run_on_lane(Issue issue, std::function<void()> stage);

  /// For whoever has read a result on the host, after the read, or is about to use results for
  /// good. CUDA: throws like Work::wait() if the group has failed by now, because what was in
  /// flight may have ended without a result. Default (CPU): nothing, because Work::wait() has
  /// thrown. Does not block.
  virtual void check_results(const std::string& operation) const;

  /// An operation without data: it ends a part of the program on a lane, so that a rank that waits
  /// there for a peer, which has gone on to the other lane, hears of it. All ranks issue it.
  ///
  /// Ranks that have left the common order would wait for each other, or exchange one unit for
  /// another of the same size. The CPU backends compare what every operation is for, and fail on
  /// all ranks with who has issued what; nccl compares in agree(), and at marks that are waited
  /// for. Default: nothing.
  virtual WorkPtr mark(Issue issue);
  /// Asks whether all ranks, which all call it, pass the same value. In the order of the reduce
  /// lane, and a mark on the other. Default: nobody can tell.
  virtual AgreementPtr agree(uint64_t value, std::string purpose = {});

  /// Divides the group: returns the group of the ranks that pass the same `color`, in the order of
  /// their ranks here, with the same backend and timeout. Collective over this group, and blocks
  /// the host. The new group has lanes of its own, and may outlive this one; they fail together.
  /// Errors: TORCH_CHECK if the group was made by other means than init_process_group.
  virtual std::shared_ptr<Collectives> split(int64_t color);

  /// Ends all operations of all ranks, in flight and to come, of this group and of all that were
  /// split from the same world, with `reason` as the error. No-op if they have failed. Does not
  /// block. Any thread.
  virtual void abort(const std::string& reason);

  /// Forms a new world of the ranks of this group that all call this, in their order, when it has
  /// failed: their processes need not be started again. `ranks_to_exclude`: those known to be gone,
  /// such as PeerError::rank, by their ranks in the world; the others are waited for, but not
  /// longer than `patience`. The new group has a new rank and size, and the same backend and
  /// timeout; what was made with the old one (parts, meshes, modules) is to be destroyed, not used.
  /// If another rank dies meanwhile, it throws, and may be called again.
  /// Before shards are taken over, see AdamW::step() about how many steps each rank has done.
  /// The ranks meet in the store of init_process_group. Ranks that were not in this group join them
  /// by init_process_group with a store_prefix of their own instead. Errors: c10::Error if the
  /// store is gone, or the others go on without this rank; TORCH_CHECK as split().
  virtual std::shared_ptr<Collectives> shrink(
      const std::vector<int64_t>& ranks_to_exclude,
      std::chrono::milliseconds patience = std::chrono::seconds(30));

  /// Uninitialised memory that this backend transfers fastest: shape [numel], contiguous, at least
  /// 64-byte aligned. The shared-memory backend returns pages that all ranks map, so that peers
  /// read a gradient slot in place and an all-gather is one copy. Every operation accepts any
  /// tensor; this one is only cheaper. Local call (ranks may differ), any thread. The tensor may
  /// outlive the group. Default: at::empty on device().
  virtual at::Tensor empty_for_comm(int64_t numel, at::ScalarType dtype);

  /// Makes a window of `numel` elements per rank, which fill a multiple of window_alignment(), for
  /// `purpose`, such as "unit layers.0". Collective, and blocks the host. Null, on all ranks, if
  /// the backend copies or a rank has no memory for it.
  virtual std::shared_ptr<GatherWindow> make_gather_window(int64_t numel, at::ScalarType dtype,
                                                           std::string purpose);
  /// Of a rank's part of a window, in bytes; 0: this group has no windows.
  virtual int64_t window_alignment() const { return 0; }

 private:
  friend class PartGroups;
  std::shared_ptr<PartGroups> parts_;  // that units gather over
};

/// One collective issued through RecordingCollectives.
struct FSDP_API CollectiveRecord {
  /// "all_gather", "reduce_scatter", "all_reduce", "broadcast" or "barrier".
  std::string operation;
  Lane lane = Lane::kGather;  ///< On which it was issued.
  int64_t numel = 0;          ///< Elements of the larger tensor; 0 of a barrier.
  std::string dtype;          ///< "Float", "BFloat16", ...; empty of a barrier.
  /// Member by member.
  bool operator==(const CollectiveRecord&) const = default;
};

/// Forwards every call to `inner` and records those that move data, to check that all ranks issue
/// the same sequence, or how much a program communicates. Thread: as Collectives.
class FSDP_API RecordingCollectives : public Collectives {
 public:
  /// Errors: TORCH_CHECK if `inner` is null.
  explicit RecordingCollectives(std::shared_ptr<Collectives> inner);
  int64_t rank() const override;
  int64_t size() const override;
  std::vector<int64_t> world_ranks() const override;
  std::string name() const override;
  c10::Device device() const override;
  bool is_stream_ordered() const override;
  WorkPtr all_gather_into(at::Tensor output, at::Tensor input, Issue issue) override;
  WorkPtr reduce_scatter_into(at::Tensor output, at::Tensor input, ReduceOp op,
                              Issue issue) override;
  /// Recorded as "reduce_scatter".
  WorkPtr reduce_scatter_onto(at::Tensor output, at::Tensor input, ReduceOp op,
                              Issue issue) override;
  bool has_reduce_scatter_onto(at::ScalarType dtype) const override;
  WorkPtr all_reduce(at::Tensor tensor, ReduceOp op, Issue issue) override;
  WorkPtr broadcast(at::Tensor tensor, int64_t root, Issue issue) override;
  void barrier() override;
  WorkPtr run_on_lane(Issue issue, std::function<void()> stage) override;
  void check_results(const std::string& operation) const override;
  WorkPtr mark(Issue issue) override;
  AgreementPtr agree(uint64_t value, std::string purpose) override;
  /// The part records for itself.
  std::shared_ptr<Collectives> split(int64_t color) override;
  void abort(const std::string& reason) override;
  /// The new group records for itself.
  std::shared_ptr<Collectives> shrink(const std::vector<int64_t>& ranks_to_exclude,
                                      std::chrono::milliseconds patience) override;
  at::Tensor empty_for_comm(int64_t numel, at::ScalarType dtype) override;
  /// Its gathers are recorded as "all_gather".
  std::shared_ptr<GatherWindow> make_gather_window(int64_t numel, at::ScalarType dtype,
                                                   std::string purpose) override;
  int64_t window_alignment() const override;

  /// Since the beginning or the last clear(), in the order in which they were issued.
  const std::vector<CollectiveRecord>& records() const { return *records_; }
  /// Forgets the records.
  void clear() { records_->clear(); }

 private:
  std::shared_ptr<Collectives> inner_;
  std::shared_ptr<std::vector<CollectiveRecord>> records_;  // windows may outlive this
};

/// @}

}  // namespace fsdp
