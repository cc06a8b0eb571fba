#pragma once

// Precompiled for the worker's torch sources; each still includes what it uses.

#include <ATen/ATen.h>
#include <torch/nn/module.h>
