#pragma once

#include <chrono>
#include <memory>

#include "worker/checkpoint/channel.h"
#include "worker/checkpoint/checkpoint.h"

namespace fsdprun::worker {

/// What a save exchanges over while the ranks train: the store at which they have met, as the
/// environment says, with a connection and keys of its own. Collective. Null on all ranks, with a
/// warning, if one of them cannot connect: then checkpoints are written between steps.
std::shared_ptr<checkpoint::Channel> MakeSaveChannel(
    const checkpoint::Group& group,
    std::chrono::milliseconds connect_timeout = std::chrono::seconds(30));

}  // namespace fsdprun::worker
