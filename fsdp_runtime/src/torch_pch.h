#pragma once

// Precompiled once for all programs and libraries that use LibTorch (cmake/FsdprunTargets.cmake);
// tests have tests/torch_test_pch.h. A source still includes what it uses; this only saves parsing
// it again. Autograd's and torch::nn's headers are left out: they cause template instantiations in
// every file that includes them, which costs more than parsing them where needed.

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>
