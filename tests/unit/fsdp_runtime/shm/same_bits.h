#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

namespace fsdp::shm::testing {

/// Whether the elements from `actual` on are the expected ones bit by bit; says which is the first
/// that is not. One comparison for a whole buffer: an assertion per element takes most of a test's
/// time.
template <typename T>
::testing::AssertionResult same_bits(const T* actual, const std::vector<T>& expected) {
  if (std::memcmp(actual, expected.data(), expected.size() * sizeof(T)) == 0) {
    return ::testing::AssertionSuccess();
  }
  size_t first = 0;
  while (std::memcmp(actual + first, expected.data() + first, sizeof(T)) == 0) {
    ++first;
  }
  return ::testing::AssertionFailure() << "element " << first << " of " << expected.size() << " is "
                                       << static_cast<double>(actual[first]) << ", expected "
                                       << static_cast<double>(expected[first]);
}

}  // namespace fsdp::shm::testing
