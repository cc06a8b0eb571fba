#include "agent/rpc/tls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdprun {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

const absl::Status kPlain = absl::UnavailableError(
    "failed to connect to all addresses; last error: UNAVAILABLE: ipv4:127.0.0.1:29500: Failed "
    "parsing HTTP/2");
const absl::Status kNoTls = absl::UnavailableError(
    "Ssl handshake failed: SSL_ERROR_SSL: error:0A00010B:SSL routines::wrong version number");

TEST(ExplainTlsTest, WhatIsWrongWithACertificateCountsFirst) {
  const absl::Status verdict = absl::PermissionDeniedError("expired");
  EXPECT_EQ(ExplainTls(absl::UnavailableError("handshake failed"), true, verdict), verdict);
}

TEST(ExplainTlsTest, EndsThatDoNotAgreeAboutTlsAreToldWhatToDo) {
  const absl::Status here = ExplainTls(kNoTls, true, absl::OkStatus());
  EXPECT_TRUE(absl::IsPermissionDenied(here));
  EXPECT_THAT(std::string(here.message()), HasSubstr("this node speaks TLS"));
  const absl::Status there = ExplainTls(kPlain, false, absl::OkStatus());
  EXPECT_TRUE(absl::IsPermissionDenied(there));
  EXPECT_THAT(std::string(there.message()), HasSubstr("give it --tls-ca"));
}

TEST(ExplainTlsTest, AnythingElseIsLeftAsItIs) {
  for (const absl::Status& status :
       {absl::UnavailableError("connection refused"), absl::UnauthenticatedError("token"),
        absl::NotFoundError(kPlain.message())}) {
    EXPECT_EQ(ExplainTls(status, true, absl::OkStatus()), status);
    EXPECT_EQ(ExplainTls(status, false, absl::OkStatus()), status);
  }
  EXPECT_EQ(ExplainTls(kNoTls, false, absl::OkStatus()), kNoTls);
  EXPECT_EQ(ExplainTls(kPlain, true, absl::OkStatus()), kPlain);
}

TEST(TlsClientHelloTest, IsAHandshakeRecord) {
  EXPECT_THAT(TlsClientHello(), StartsWith("\x16\x03"));
  EXPECT_GT(TlsClientHello().size(), 100u);
}

TEST(TlsTest, WithoutFilesNothingIsMadeButTheSystemsCAsCount) {
  const absl::StatusOr<TlsContent> content = LoadTls({});
  ASSERT_TRUE(content.ok());
  EXPECT_EQ(*content, TlsContent());
}

TEST(VerifyCertificateTest, NoneIsDenied) {
  for (const TlsPeer peer : {TlsPeer::kCoordinator, TlsPeer::kAgent}) {
    for (const char* chain : {"", "no PEM", "-----BEGIN CERTIFICATE-----\nAAAA\n"}) {
      const absl::Status status = VerifyCertificate({chain, chain}, "", peer, "");
      EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("has shown no certificate"));
    }
  }
}

}  // namespace
}  // namespace fsdprun
