#pragma once

#include <stdexcept>

namespace fsdp {

/// A call to the store failed; what() names server, operation, key and cause.
class StoreError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The call's deadline passed.
class StoreTimeout : public StoreError {
 public:
  using StoreError::StoreError;
};

}  // namespace fsdp
