#pragma once

#include <fsdp/collectives.h>
#include <fsdp/fully_shard_options.h>

#include <cstdint>
#include <memory>
#include <optional>

namespace fsdp {

/// TORCH_CHECK unless the integer, if there is one, divides `ranks`, which divide the parameters.
void check_reshard_after_forward(const std::optional<ReshardAfterForward>& asked, int64_t ranks);

/// The group of this rank and its neighbours in `comm` over which backward gathers a unit that has
/// been resharded as `asked`; null if that is all of `comm`. `comm` keeps it, for all units:
/// whether it is to be divided must not depend on when a rank lets its modules go. Collective over
/// `comm`. Errors: those of Collectives::split().
std::shared_ptr<Collectives> part_group(const std::optional<ReshardAfterForward>& asked,
                                        const std::shared_ptr<Collectives>& comm);

}  // namespace fsdp
