#pragma once

#include <ATen/core/ivalue.h>
#include <fsdp/state_dict.h>

namespace fsdp {

// State dicts as objects of Python, for LibTorch's pickler. Errors of all: TORCH_CHECK with the
// key.

/// {name: tensor}, on the CPU. Tensors that share memory go on to do so.
c10::IValue python_dict_of(const ModelStateDict& dict);
/// {"state": {name: {name: tensor}}, "param_groups": [{name: value, "params": [name]}]}.
c10::IValue python_dict_of(const OptimizerStateDict& dict);

}  // namespace fsdp
