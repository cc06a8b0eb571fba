#include "agent/rpc/grpc_lifetime.h"

#include <gtest/gtest.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <unistd.h>

#include <cstdlib>

namespace fsdprun {
namespace {

constexpr int kCanHash = 7;

/// Runs after the handlers that were registered after it.
void EndAsLastHandler() { ::_exit(OPENSSL_init_crypto(0, nullptr) == 1 ? kCanHash : 1); }

[[noreturn]] void EndWithOpenSslInUse() {
  std::atexit(EndAsLastHandler);
  BeginGrpc();
  EVP_MD_free(EVP_MD_fetch(nullptr, "SHA256", nullptr));
  std::exit(0);
}

/// Note [OpenSSL stays]
TEST(GrpcLifetimeTest, ThreadsMayUseOpenSslWhileTheProcessEnds) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // OpenSSL may have been used in this process
  EXPECT_EXIT(EndWithOpenSslInUse(), ::testing::ExitedWithCode(kCanHash), "");
}

}  // namespace
}  // namespace fsdprun
