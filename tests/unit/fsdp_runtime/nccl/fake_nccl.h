#pragma once

// A double of NCCL, in this program, as that of CUDA (fake_cuda.h), which writes down its calls:
// "init communicator 1: rank 0 of 2", "all_gather 4 of float32 on communicator 1, stream 1". Ranks
// do not meet: each of them gets communicators at once, and of a collective's result its own part,
// where the others' are 0.

#include <nccl.h>

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "tests/unit/fsdp_runtime/nccl/fake_cuda.h"

namespace fsdp::testing {

/// Thread: any.
class FakeNccl {
 public:
  static FakeNccl& get();

  /// Everything is as at first; no communicator may be left.
  void reset();
  /// What is launched on `device` from here on does not end, until let_go(), or its communicator is
  /// revoked or aborted.
  void hold(int64_t device);
  void let_go();
  /// Communicators are not made before let_go_of_forming().
  void hold_forming();
  void let_go_of_forming();
  /// From here on communicators of `device` report `error`.
  void set_asynchronous_error(int device, ncclResult_t error);
  /// Launches on `device` fail.
  void set_launch_error(int device, ncclResult_t error);
  /// What all-gathers of 64-bit integers gather, so also the ranks' colors when a group is split.
  void set_gathered_integers(std::vector<int64_t> values);

  /// Waits, for a minute at most, until errors have been asked for `times` times more.
  bool wait_for_looks(int times);
  /// The same, until all communicators have been freed.
  bool wait_until_none_is_left();

  // For the functions.
  struct Communicator {
    int device = 0;
    int number = 0;
    int rank = 0;
    int size = 1;
    bool is_revoked = false;
    std::vector<KernelPtr> kernels;
  };
  Communicator* make(int rank, int size);
  /// How many ranks of `whole` have its color; all if none have been set.
  int size_of_part(const Communicator& whole) const;
  void wait_for_forming();
  /// What is in flight on it does not go on.
  void revoke(Communicator& communicator);
  /// Whether a kernel of another communicator of its device does not end, which the last one of
  /// this may be queued behind: NCCL would wait.
  bool is_held_up_by_another(const Communicator& communicator) const;
  void free(Communicator* communicator);
  ncclResult_t asynchronous_error(const Communicator& communicator);
  /// "all_gather 4 of float32" on a stream.
  ncclResult_t launch(Communicator& communicator, const std::string& what, cudaStream_t stream);
  void gather_integers(void* to, size_t count) const;

 private:
  mutable std::mutex mu_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Communicator>> communicators_;  // guarded by mu_, as is the rest
  std::map<int, int> made_;                                   // by device
  std::map<int, ncclResult_t> errors_, launch_errors_;
  std::vector<int64_t> integers_;
  std::set<int> held_;
  bool holds_forming_ = false;
  int looks_ = 0;
};

}  // namespace fsdp::testing
