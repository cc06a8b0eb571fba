#pragma once

// Precompiled once for all tests that use LibTorch (cmake/FsdprunTargets.cmake). Unlike the
// product's, it has torch::nn: most of these tests need it, and unoptimised its templates are
// cheap.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include "fsdp_runtime/src/torch_pch.h"
