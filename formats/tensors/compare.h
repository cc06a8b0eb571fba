#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "formats/tensors/tensor_source.h"

namespace fsdprun {

/// Of two tensors of one shape and dtype.
struct ValueDifference {
  int64_t different = 0;      // elements whose bits differ
  double max_difference = 0;  // of them; infinite where exactly one is NaN or their types are no
                              // numbers
};

/// Reads both piece by piece: memory does not depend on their size. Errors: as TensorSource's.
ValueDifference CompareTensors(TensorSource& a, const std::string& a_name, TensorSource& b,
                               const std::string& b_name);

/// Elements of a tensor. Errors: fsdp::archive::Error if the product of the sizes, 0 taken for 1,
/// is more than 2^63: then strides are, too.
int64_t ElementCount(const TensorFacts& facts, const std::string& name);

/// Adds the bytes of a tensor, with elements of `dtype`, to `total`. Errors: fsdp::archive::Error
/// naming the tensor if there are more than 2^63.
void AddTensorBytes(const TensorFacts& facts, std::string_view dtype, const std::string& name,
                    int64_t& total);

/// How many elements of so many bytes are read at once.
int64_t PieceElements(int64_t element_bytes);

}  // namespace fsdprun
