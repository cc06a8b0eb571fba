#include "launcher/directory/directory.h"

#include <utility>

#include "launcher/directory/fixed_endpoint.h"
#include "launcher/directory/one_node.h"

namespace fsdprun {

std::unique_ptr<Directory> MakeDirectory(DirectoryContext context) {
  if (!context.plan.is_agent && context.plan.IsSingleNode()) {
    return std::make_unique<OneNode>(std::move(context));
  }
  return std::make_unique<FixedEndpoint>(std::move(context));
}

}  // namespace fsdprun
