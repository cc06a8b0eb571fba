// gtest's main for tests that ctest starts: a skipped case must not look like a passed one.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>

/// Exit code 77, which ctest shows as skipped, if all passed but some were skipped; 1 for a filter
/// that matches no case.
int main(int argc, char** argv) {
  constexpr int kSkipped = 77;
  testing::InitGoogleMock(&argc, argv);
  const int failed = RUN_ALL_TESTS();
  const bool has_skipped = testing::UnitTest::GetInstance()->skipped_test_count() > 0;
  if (!testing::GTEST_FLAG(list_tests) &&
      testing::UnitTest::GetInstance()->test_to_run_count() == 0) {
    std::fputs("the filter matches no case\n", stderr);
    return 1;
  }
  return failed == 0 && has_skipped ? kSkipped : failed;
}
