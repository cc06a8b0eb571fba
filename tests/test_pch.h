#pragma once

// Precompiled once for all tests that do without LibTorch (cmake/FsdprunTargets.cmake): parsing
// these costs a test more than its own lines. A source still includes what it uses.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>
