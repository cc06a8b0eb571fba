#include "proto/worker_contract.h"

namespace fsdprun::contract {

bool IsPermanentExit(int exit_code) { return exit_code == kExitConfig; }

}  // namespace fsdprun::contract
