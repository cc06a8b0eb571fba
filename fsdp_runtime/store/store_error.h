#pragma once

#include <stdexcept>

namespace fsdp {

/// A call to the store failed; what() names server, operation, key and cause.
class StoreError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The server does not answer at all, within seconds: it, or the way to it, may be overloaded or
/// gone.
class StoreSilence : public StoreError {
 public:
  using StoreError::StoreError;
};

/// The call's deadline passed; the server lives.
class StoreTimeout : public StoreError {
 public:
  using StoreError::StoreError;
};

}  // namespace fsdp
