#include "launcher/etcd/etcd_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/unit/launcher/etcd/fake_etcd.h"

namespace fsdprun {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

// Nothing listens at port 1.
constexpr const char* kDeadMember = "127.0.0.1:1";

TEST(EtcdClientTest, AChangeIsMadeAsAWholeOrNotAtAll) {
  FakeEtcd etcd;
  const auto client = etcd.MakeClient();
  etcd.data().Put("a", "1");
  etcd.data().Put("b", "1");
  EXPECT_FALSE(
      client->Commit({.expects = {{"a", "1"}, {"b", "2"}}, .puts = {{"a", "9"}}, .deletes = {"b"}})
          .value());
  EXPECT_THAT(etcd.data().All(), ElementsAre(Pair("a", "1"), Pair("b", "1")));
  EXPECT_TRUE(client
                  ->Commit({.expects = {{"a", "1"}, {"c", std::nullopt}},
                            .puts = {{"a", "9"}, {"c", "3"}},
                            .deletes = {"b"}})
                  .value());
  EXPECT_THAT(etcd.data().All(), ElementsAre(Pair("a", "9"), Pair("c", "3")));
}

TEST(EtcdClientTest, WhatIsDeletedBelowAPrefixIsThatAlone) {
  FakeEtcd etcd;
  for (const char* key : {"p", "p.", "p/", "p/a", "p/zz/1", "p0", "q"}) {
    etcd.data().Put(key, "x");
  }
  EXPECT_TRUE(etcd.MakeClient()->Commit({.deletes_below = {"p/"}}).value());
  EXPECT_THAT(etcd.data().All(),
              ElementsAre(Pair("p", "x"), Pair("p.", "x"), Pair("p0", "x"), Pair("q", "x")));
}

TEST(EtcdClientTest, AnotherMemberIsAskedWhereOneIsAway) {
  FakeEtcd etcd;
  const auto client = etcd.MakeClient({kDeadMember, kDeadMember});
  const int64_t lease = client->Grant(10).value();
  EXPECT_TRUE(client->Commit({.puts = {{"a", "1", lease}}}).value());
  EXPECT_EQ(client->Read("a").value()->lease, lease);
  EXPECT_EQ(client->SecondsLeft(lease).value(), 10);
  EXPECT_TRUE(client->Renew(lease).value());
  EXPECT_TRUE(client->Revoke(lease).ok());
  EXPECT_LT(client->SecondsLeft(lease).value(), 0);
  EXPECT_FALSE(client->Renew(lease).value());
  EXPECT_FALSE(client->Get("a").value().has_value());
}

TEST(EtcdClientTest, AnErrorNamesAllMembersAndWhatToDo) {
  EtcdClient::Options options{.targets = {kDeadMember, "127.0.0.1:2"}};
  options.advice = "see there";
  const absl::Status away = EtcdClient::Make(std::move(options)).value()->Get("a").status();
  EXPECT_TRUE(absl::IsUnavailable(away));
  EXPECT_THAT(std::string(away.message()), HasSubstr("etcd at http://127.0.0.1:1,127.0.0.1:2: "));
  EXPECT_THAT(std::string(away.message()), HasSubstr("; see there"));
}

}  // namespace
}  // namespace fsdprun
