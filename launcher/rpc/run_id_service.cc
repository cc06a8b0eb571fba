#include "launcher/rpc/run_id_service.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace fsdprun {
namespace {

constexpr int kMaxEndpoints = 64;

v1::RunIdPlace::Kind ToWire(RunIdTable::Kind kind) {
  switch (kind) {
    case RunIdTable::Kind::kHere:
      return v1::RunIdPlace::KIND_HERE;
    case RunIdTable::Kind::kThere:
      return v1::RunIdPlace::KIND_THERE;
    case RunIdTable::Kind::kYours:
      return v1::RunIdPlace::KIND_YOURS;
    case RunIdTable::Kind::kClosed:
      return v1::RunIdPlace::KIND_CLOSED;
    case RunIdTable::Kind::kWait:
      return v1::RunIdPlace::KIND_WAIT;
    case RunIdTable::Kind::kUnknown:
      break;
  }
  return v1::RunIdPlace::KIND_UNKNOWN;
}

template <class Texts>
std::vector<std::string> Endpoints(const Texts& texts) {
  const int count = std::min(texts.size(), kMaxEndpoints);
  return {texts.begin(), texts.begin() + count};
}

}  // namespace

// One caller, for as long as its stream lives. gRPC calls one reaction after the other: a read is
// begun only when the one before has ended.
class RunIdService::Question : public grpc::ServerBidiReactor<v1::FindRunId, v1::RunIdPlace> {
 public:
  Question(RunIdService& service, uint64_t caller, absl::StatusOr<std::string> proven_run_id)
      : service_(service), caller_(caller), proven_run_id_(std::move(proven_run_id)) {
    if (proven_run_id_.ok()) {
      StartRead(&question_);
    } else {
      Finish({static_cast<grpc::StatusCode>(proven_run_id_.status().code()),
              std::string(proven_run_id_.status().message())});
    }
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      service_.Break(caller_);
      Finish(grpc::Status::OK);
      return;
    }
    if (is_answered_) {
      OnLaterMessage();
      return;
    }
    if (question_.run_id() != *proven_run_id_) {
      // Nothing is read any more.
      Finish({grpc::StatusCode::UNAUTHENTICATED, "the job's token is missing or wrong"});
      return;
    }
    is_answered_ = true;
    answer_ = service_.Answer(question_, caller_);
    StartWrite(&answer_);
    StartRead(&question_);
  }

  void OnDone() override { delete this; }

 private:
  // One whose place another has asks anew when its call ends.
  void OnLaterMessage() {
    if (!question_.beats()) {
      service_.Leave(caller_, question_.closes());
    } else if (!service_.Hear(caller_)) {
      Finish(grpc::Status::OK);
      return;
    }
    StartRead(&question_);
  }

  RunIdService& service_;
  const uint64_t caller_;
  const absl::StatusOr<std::string> proven_run_id_;
  v1::FindRunId question_;
  v1::RunIdPlace answer_;
  bool is_answered_ = false;
};

grpc::ServerBidiReactor<v1::FindRunId, v1::RunIdPlace>* RunIdService::Find(
    grpc::CallbackServerContext* context) {
  return new Question(*this, next_caller_++, door_.RunIdOf(*context));
}

v1::RunIdPlace RunIdService::Answer(const v1::FindRunId& question, uint64_t caller) {
  const RunIdTable::Question asked{
      .run_id = question.run_id(),
      .endpoints = Endpoints(question.endpoints()),
      .refused = Endpoints(question.refused()),
      .hosts = question.hosts(),
      .claim_lease = std::chrono::seconds(question.claim_lease_seconds())};
  if (asked.hosts && asked.run_id == run_id_) {
    on_other_host_(asked.endpoints);
  }
  MutexLock lock(mu_);
  const RunIdTable::Answer answer = table_.Ask(asked, caller, MonoNow());
  v1::RunIdPlace place;
  place.set_kind(ToWire(answer.kind));
  for (const std::string& endpoint : answer.endpoints) {
    place.add_endpoints(endpoint);
  }
  place.set_wants_beats(answer.kind == RunIdTable::Kind::kYours);
  return place;
}

void RunIdService::Leave(uint64_t caller, bool closes) {
  MutexLock lock(mu_);
  table_.Leave(caller, closes);
}

void RunIdService::Break(uint64_t caller) {
  MutexLock lock(mu_);
  table_.Break(caller, MonoNow());
}

bool RunIdService::Hear(uint64_t caller) {
  MutexLock lock(mu_);
  return table_.Hear(caller, MonoNow());
}

void RunIdService::NoteSilence() {
  MutexLock lock(mu_);
  table_.NoteSilence(MonoNow());
}

void RunIdService::Settle() {
  MutexLock lock(mu_);
  table_.Settle(MonoNow());
}

}  // namespace fsdprun
