#pragma once

// Precompiled once for all tests that use LibTorch (cmake/FsdprunTargets.cmake).

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include "fsdp_runtime/src/torch_pch.h"
