#pragma once

namespace fsdprun::contract {

/// In the environment of a launcher, and so of its agents: a worker that is alone in its world gets
/// no variable about ranks and their meeting (RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR,
/// TORCHELASTIC_RUN_ID and the like). With them libraries set up a process group and wrap the
/// model, which changes the names of its parameters. Workers never see this variable itself.
inline constexpr char kEnvLoneWorkerIsPlain[] = "FSDPRUN_LONE_WORKER_IS_PLAIN";

}  // namespace fsdprun::contract
