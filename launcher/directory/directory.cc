#include "launcher/directory/directory.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "launcher/directory/claim_directory.h"
#include "launcher/directory/file_claims.h"
#include "launcher/directory/fixed_endpoint.h"
#include "launcher/directory/one_node.h"

namespace fsdprun {

std::unique_ptr<Directory> MakeDirectory(DirectoryContext context) {
  if (!context.plan.is_agent && context.plan.IsSingleNode()) {
    return std::make_unique<OneNode>(std::move(context));
  }
  if (context.plan.uses_file) {
    const auto given = context.environment.find("FSDPRUN_TOKEN");
    const bool has_token = !context.plan.token_file.empty() ||
                           (given != context.environment.end() && !given->second.empty());
    auto store = std::make_unique<FileClaims>(
        absl::StrCat(context.plan.rendezvous_file, ".", context.plan.rdzv_id), has_token);
    return std::make_unique<ClaimDirectory>(std::move(context), std::move(store));
  }
  return std::make_unique<FixedEndpoint>(std::move(context));
}

}  // namespace fsdprun
