#include <gtest/gtest.h>
#include <signal.h>

#include "agent/process/keeper.h"

namespace fsdprun::keeper {
namespace {

ExitedReport Decoded(int code, int status) {
  siginfo_t info{};
  info.si_code = code;
  info.si_status = status;
  ExitedReport report;
  DecodeWaitStatus(info, report);
  return report;
}

TEST(WaitStatusTest, AnExitHasACodeAndNoSignal) {
  const ExitedReport report = Decoded(CLD_EXITED, 7);
  EXPECT_EQ(report.exit_code, 7);
  EXPECT_EQ(report.signal, 0);
  EXPECT_FALSE(report.dumped_core);
}

// Given as siginfo_t, so that no core has to be dumped.
TEST(WaitStatusTest, SignalIsReportedWithAndWithoutACoreDump) {
  for (const bool dumped : {false, true}) {
    const ExitedReport report = Decoded(dumped ? CLD_DUMPED : CLD_KILLED, SIGSEGV);
    EXPECT_EQ(report.exit_code, 0);
    EXPECT_EQ(report.signal, SIGSEGV);
    EXPECT_EQ(report.dumped_core, dumped);
  }
}

}  // namespace
}  // namespace fsdprun::keeper
