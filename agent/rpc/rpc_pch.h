#pragma once

// Precompiled once for all libraries that speak gRPC (cmake/FsdprunTargets.cmake). A source still
// includes what it uses.

#include <google/protobuf/message.h>
#include <grpcpp/grpcpp.h>

#include "base/base_pch.h"
