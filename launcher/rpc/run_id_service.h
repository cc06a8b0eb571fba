#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/mono_time.h"
#include "base/mutex.h"
#include "fsdprun/v1/coordinator.grpc.pb.h"
#include "launcher/rpc/front_door.h"
#include "launcher/rpc/run_id_table.h"

namespace fsdprun {

/// Answers launchers of other run ids that were given this coordinator's endpoint. See RunIdTable.
/// Thread: gRPC's.
class RunIdService : public v1::RunIds::CallbackService {
 public:
  /// Another launcher hosts this coordinator's run id too, at these endpoints. On gRPC's threads.
  using OnOtherHost = std::function<void(const std::vector<std::string>& endpoints)>;

  /// `door` outlives it.
  RunIdService(std::string run_id, FrontDoor& door, OnOtherHost on_other_host)
      : run_id_(run_id),
        door_(door),
        on_other_host_(std::move(on_other_host)),
        table_(std::move(run_id), MonoNow()) {}

  grpc::ServerBidiReactor<v1::FindRunId, v1::RunIdPlace>* Find(
      grpc::CallbackServerContext* context) override;
  /// See RunIdTable::Settle().
  void Settle() ABSL_LOCKS_EXCLUDED(mu_);
  /// See RunIdTable::NoteSilence().
  void NoteSilence() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  class Question;

  v1::RunIdPlace Answer(const v1::FindRunId& question, uint64_t caller) ABSL_LOCKS_EXCLUDED(mu_);
  void Leave(uint64_t caller, bool closes) ABSL_LOCKS_EXCLUDED(mu_);
  void Break(uint64_t caller) ABSL_LOCKS_EXCLUDED(mu_);
  bool Hear(uint64_t caller) ABSL_LOCKS_EXCLUDED(mu_);

  const std::string run_id_;
  FrontDoor& door_;
  const OnOtherHost on_other_host_;
  std::atomic<uint64_t> next_caller_{1};
  Mutex mu_;
  RunIdTable table_ ABSL_GUARDED_BY(mu_);
};

}  // namespace fsdprun
