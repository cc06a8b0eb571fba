#pragma once

namespace fsdp::detail {

/// Whether the calling thread runs a checkpointed segment again only for what is saved there: what
/// backward passes through is the graph of the first run.
bool is_replaying();

}  // namespace fsdp::detail
