#pragma once

#include <fsdp/collectives.h>

#include <cstdint>
#include <memory>
#include <string>

#include "fsdp_runtime/shm/window_lane.h"
#include "fsdp_runtime/src/comm/membership.h"

namespace fsdp {

/// A window of the shared-memory backend, of `numel` elements per rank. It may outlive its group,
/// whose peers see it gone then.
std::shared_ptr<GatherWindow> make_shm_window(std::shared_ptr<shm::Window> window,
                                              std::shared_ptr<shm::WindowLane> lane,
                                              std::shared_ptr<const GroupPlace> place,
                                              int64_t numel, at::ScalarType dtype);

/// Lets who waits in a gather of a window hear that this rank has ended a part of the program.
WorkPtr mark_on_window_lane(const std::shared_ptr<shm::WindowLane>& lane,
                            const std::shared_ptr<const GroupPlace>& place,
                            const std::string& purpose);

}  // namespace fsdp
