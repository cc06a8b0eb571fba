#include "launcher/directory/directory.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "launcher/directory/claim_directory.h"
#include "launcher/directory/etcd_claims.h"
#include "launcher/directory/file_claims.h"
#include "launcher/directory/fixed_endpoint.h"
#include "launcher/directory/one_node.h"
#include "launcher/directory/told_coordinator.h"
#include "proto/cluster/clocks.h"

namespace fsdprun {

namespace {

absl::StatusOr<std::unique_ptr<ClaimStore>> MakeEtcdClaims(const DirectoryContext& context) {
  const LaunchPlan& plan = context.plan;
  EtcdClient::Options options{.targets = {ToString(plan.endpoint)}, .etcd = plan.etcd};
  if (plan.read_timeout.has_value()) {
    options.timeout = std::min<Duration>(options.timeout, *plan.read_timeout);
  }
  // The claim is renewed on another thread, which no signal of the beginning shall end.
  options.is_cancelled = [main = std::this_thread::get_id(), poll = context.is_cancelled] {
    return std::this_thread::get_id() == main && poll && poll();
  };
  ASSIGN_OR_RETURN(std::unique_ptr<EtcdClient> client, EtcdClient::Make(std::move(options)));
  return std::make_unique<EtcdClaims>(
      std::move(client), absl::StrCat(plan.etcd.prefix, "/", plan.rdzv_id, "/coordinator"),
      context.on_taken);
}

}  // namespace

std::chrono::seconds ClaimLeaseOf(const LaunchPlan& plan) {
  const Clocks clocks = plan.node_lease.has_value() ? ClocksFor(*plan.node_lease) : Clocks{};
  return std::chrono::ceil<std::chrono::seconds>(clocks.claim_lease);
}

absl::StatusOr<std::unique_ptr<Directory>> MakeDirectory(DirectoryContext context) {
  if (!context.plan.coordinators.empty()) {
    return std::make_unique<ToldCoordinator>(std::move(context));
  }
  const bool has_others = context.plan.is_agent || context.plan.is_coordinator;
  if (!has_others && context.plan.IsSingleNode()) {
    return std::make_unique<OneNode>(std::move(context));
  }
  if (context.plan.backend == RendezvousBackend::kEtcd) {
    ASSIGN_OR_RETURN(std::unique_ptr<ClaimStore> store, MakeEtcdClaims(context));
    return std::make_unique<ClaimDirectory>(std::move(context), std::move(store));
  }
  if (context.plan.uses_file) {
    const auto given = context.environment.find("FSDPRUN_TOKEN");
    const bool has_token = context.plan.takes_anybody || !context.plan.token_file.empty() ||
                           (given != context.environment.end() && !given->second.empty());
    auto store = std::make_unique<FileClaims>(
        absl::StrCat(context.plan.rendezvous_file, ".", context.plan.rdzv_id), has_token,
        context.on_taken);
    return std::make_unique<ClaimDirectory>(std::move(context), std::move(store));
  }
  return std::make_unique<FixedEndpoint>(std::move(context));
}

}  // namespace fsdprun
