#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

#include "base/mutex.h"
#include "fsdprun/v1/coordinator.grpc.pb.h"
#include "launcher/rpc/run_id_table.h"

namespace fsdprun {

/// Answers launchers of other run ids that were given this coordinator's endpoint. See RunIdTable.
/// Thread: gRPC's.
class RunIdService : public v1::RunIds::CallbackService {
 public:
  RunIdService(std::string run_id, std::string token)
      : token_(std::move(token)), table_(std::move(run_id)) {}

  grpc::ServerBidiReactor<v1::FindRunId, v1::RunIdPlace>* Find(
      grpc::CallbackServerContext* context) override;

 private:
  class Question;

  v1::RunIdPlace Answer(const v1::FindRunId& question, uint64_t caller) ABSL_LOCKS_EXCLUDED(mu_);
  void Leave(uint64_t caller, bool closes) ABSL_LOCKS_EXCLUDED(mu_);

  const std::string token_;
  std::atomic<uint64_t> next_caller_{1};
  Mutex mu_;
  RunIdTable table_ ABSL_GUARDED_BY(mu_);
};

}  // namespace fsdprun
