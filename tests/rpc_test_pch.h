#pragma once

// Precompiled once for all tests of what speaks gRPC (cmake/FsdprunTargets.cmake).

#include "agent/rpc/rpc_pch.h"
#include "tests/test_pch.h"
