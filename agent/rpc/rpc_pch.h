#pragma once

// Precompiled once for all libraries that speak gRPC (cmake/FsdprunTargets.cmake). A source still
// includes what it uses.

#include <google/protobuf/message.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
