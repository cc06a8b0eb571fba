#include "worker/metrics/tensorboard_events.h"

#include <gtest/gtest.h>

#include <string>

namespace fsdprun::worker::tensorboard {
namespace {

std::string Hex(std::string_view bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const char byte : bytes) {
    text.push_back(kDigits[static_cast<unsigned char>(byte) >> 4]);
    text.push_back(kDigits[byte & 15]);
  }
  return text;
}

TEST(TensorBoardEventsTest, ChecksumsAreCastagnolis) {
  // RFC 3720, B.4.
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(Crc32c(std::string(32, '\xff')), 0x62A8AB43u);
  EXPECT_EQ(Crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(MaskedCrc32c("123456789"), (0xE3069283u >> 15 | 0xE3069283u << 17) + 0xA282EAD8u);
}

// The bytes of the next tests are those that the Python package of TensorBoard 2.20 makes of the
// same events.

TEST(TensorBoardEventsTest, FirstRecordTellsTheVersion) {
  EXPECT_EQ(Hex(VersionEvent(1.5)), "09000000000000f83f1a0d627261696e2e4576656e743a32");
  EXPECT_EQ(Hex(Frame(VersionEvent(1.5))),
            "1800000000000000a37f4b2209000000000000f83f1a0d627261696e2e4576656e743a322a28646c");
}

TEST(TensorBoardEventsTest, StartMakesReadersForgetLaterSteps) {
  EXPECT_EQ(Hex(StartEvent(1.5, 301)), "09000000000000f83f10ad023a020801");
}

TEST(TensorBoardEventsTest, ScalarsOfAStepAreOneEvent) {
  EXPECT_EQ(
      Hex(ScalarsEvent(1.5, 300, {{"train/loss", 2.5}, {"lr", 0.1}})),
      "09000000000000f83f10ac022a1e0a110a0a747261696e2f6c6f737315000020400a090a026c7215cdcccc3d");
}

TEST(TensorBoardEventsTest, MarkdownIsATensorOfThePluginForText) {
  std::string text;
  for (int i = 0; i < 200; ++i) {
    text += "78";
  }
  EXPECT_EQ(Hex(MarkdownEvent(1.5, "config", std::string(200, 'x'))),
            "09000000000000f83f2aeb010ae8010a06636f6e66696742d301080712041202080142c801" + text +
                "4a080a060a0474657874");
}

}  // namespace
}  // namespace fsdprun::worker::tensorboard
