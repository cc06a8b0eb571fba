#include "formats/tensors/safetensors_tensors.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "fsdp_runtime/archive/error.h"
#include "tests/unit/formats/checkpoint/path_fault.h"
#include "tests/unit/formats/checkpoint/temporary_directory.h"

namespace fsdprun {
namespace {

TEST(SafetensorsTensorsTest, FolderThatCannotBeLookedAtForNowMayBeTriedAgain) {
  const checkpoint::TemporaryDirectory dir;
  const checkpoint::PathFault fault(checkpoint::PathFault::kLook, "fsdprun-ckpt-", ESTALE, 1);
  try {
    SafetensorsTensors tensors(dir.path());
    ADD_FAILURE() << "it cannot be told what it is";
  } catch (const fsdp::archive::Error& error) {
    EXPECT_EQ(error.error_number(), ESTALE);
  }
  EXPECT_THROW(SafetensorsTensors(dir.path()), ConfigError);  // there are no weights
}

}  // namespace
}  // namespace fsdprun
