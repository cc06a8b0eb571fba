#pragma once

// Precompiled once for all tests of the control plane that do without gRPC
// (cmake/FsdprunTests.cmake).

#include "base/base_pch.h"
#include "tests/test_pch.h"
