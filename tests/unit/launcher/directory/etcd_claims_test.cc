#include "launcher/directory/etcd_claims.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "etcd/v3/etcd.grpc.pb.h"

namespace fsdprun {
namespace {

namespace pb = ::etcdserverpb;

using ::testing::HasSubstr;

/// What an etcd has.
class EtcdData {
 public:
  struct Entry {
    std::string value;
    int64_t lease = 0;
  };

  std::optional<Entry> Get(const std::string& key) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    const auto entry = entries_.find(key);
    return entry == entries_.end() ? std::nullopt : std::optional<Entry>(entry->second);
  }

  void Put(const std::string& key, const std::string& value) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    entries_[key] = {value, 0};
  }

  void Delete(const std::string& key) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    entries_.erase(key);
  }

  /// As long as it has no leader, for example.
  void RefuseWrites(bool refuses) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    refuses_writes_ = refuses;
  }

  grpc::Status Exchange(const pb::TxnRequest& request, bool* succeeded) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    const pb::Compare& compare = request.compare(0);
    const auto entry = entries_.find(compare.key());
    const bool is_there = entry != entries_.end();
    *succeeded = compare.target() == pb::Compare::CREATE
                     ? !is_there
                     : is_there && entry->second.value == compare.value();
    if (refuses_writes_) {
      return {grpc::StatusCode::UNAVAILABLE, "no leader"};
    }
    const pb::PutRequest& put = request.success(0).request_put();
    if (*succeeded && !leases_.contains(put.lease())) {
      return {grpc::StatusCode::NOT_FOUND, "requested lease not found"};
    }
    if (*succeeded) {
      entries_[put.key()] = {put.value(), put.lease()};
    }
    return grpc::Status::OK;
  }

  int64_t Grant() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    leases_.insert(++last_lease_);
    return last_lease_;
  }

  bool IsAlive(int64_t lease) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    return leases_.contains(lease);
  }

  /// Of all leases.
  void Expire() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    leases_.clear();
    entries_.clear();
  }

 private:
  Mutex mu_;
  std::map<std::string, Entry> entries_ ABSL_GUARDED_BY(mu_);
  std::set<int64_t> leases_ ABSL_GUARDED_BY(mu_);
  int64_t last_lease_ ABSL_GUARDED_BY(mu_) = 0;
  bool refuses_writes_ ABSL_GUARDED_BY(mu_) = false;
};

class FakeKv : public pb::KV::Service {
 public:
  explicit FakeKv(EtcdData& data) : data_(data) {}

  grpc::Status Range(grpc::ServerContext* /*context*/, const pb::RangeRequest* request,
                     pb::RangeResponse* response) override {
    if (const auto entry = data_.Get(request->key())) {
      response->add_kvs()->set_value(entry->value);
    }
    return grpc::Status::OK;
  }

  grpc::Status Txn(grpc::ServerContext* /*context*/, const pb::TxnRequest* request,
                   pb::TxnResponse* response) override {
    bool succeeded = false;
    const grpc::Status status = data_.Exchange(*request, &succeeded);
    response->set_succeeded(succeeded);
    return status;
  }

 private:
  EtcdData& data_;
};

class FakeLease : public pb::Lease::Service {
 public:
  explicit FakeLease(EtcdData& data) : data_(data) {}

  grpc::Status LeaseGrant(grpc::ServerContext* /*context*/,
                          const pb::LeaseGrantRequest* /*request*/,
                          pb::LeaseGrantResponse* response) override {
    response->set_id(data_.Grant());
    return grpc::Status::OK;
  }

  grpc::Status LeaseKeepAlive(
      grpc::ServerContext* /*context*/,
      grpc::ServerReaderWriter<pb::LeaseKeepAliveResponse, pb::LeaseKeepAliveRequest>* stream)
      override {
    pb::LeaseKeepAliveRequest request;
    while (stream->Read(&request)) {
      pb::LeaseKeepAliveResponse response;
      response.set_ttl(data_.IsAlive(request.id()) ? 40 : 0);
      stream->Write(response);
    }
    return grpc::Status::OK;
  }

 private:
  EtcdData& data_;
};

/// A launcher that has a claim.
class EtcdClaimsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&kv_);
    builder.RegisterService(&lease_);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
    EtcdClient::Options options{.target = absl::StrCat("127.0.0.1:", port)};
    options.timeout = std::chrono::seconds(60);
    claims_ =
        std::make_unique<EtcdClaims>(EtcdClient::Make(std::move(options)).value(), key_, nullptr);
    ASSERT_TRUE(claims_->Replace(std::nullopt, mine_).value());
  }

  bool IsHeld() {
    const auto entry = data_.Get(key_);
    return entry.has_value() && entry->value == EncodeClaim(mine_) && data_.IsAlive(entry->lease);
  }

  const std::string key_ = "torchelastic/run7/coordinator";
  const Claim mine_{.launch = "mine", .endpoints = {{"127.0.0.1", 1}}, .lease_seconds = 40};
  EtcdData data_;
  FakeKv kv_{data_};
  FakeLease lease_{data_};
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<EtcdClaims> claims_;
};

TEST_F(EtcdClaimsTest, AHolderPutsAKeyThatSomebodyHasDeletedThereAgain) {
  EXPECT_TRUE(claims_->Confirm(mine_).value());
  data_.Delete(key_);
  EXPECT_TRUE(claims_->Confirm(mine_).value());
  EXPECT_TRUE(IsHeld());
}

TEST_F(EtcdClaimsTest, AKeyThatCouldNotBePutAfterItsLeaseIsPutTheNextTime) {
  data_.RefuseWrites(true);
  data_.Expire();
  EXPECT_THAT(std::string(claims_->Confirm(mine_).status().message()), HasSubstr("no leader"));
  EXPECT_FALSE(IsHeld());
  data_.RefuseWrites(false);
  EXPECT_TRUE(claims_->Confirm(mine_).value());
  EXPECT_TRUE(IsHeld());
}

TEST_F(EtcdClaimsTest, WhatAnotherHasPutThereStays) {
  const Claim other{.launch = "other", .endpoints = {{"127.0.0.1", 2}}};
  data_.Put(key_, EncodeClaim(other));
  EXPECT_FALSE(claims_->Confirm(mine_).value());
}

TEST_F(EtcdClaimsTest, WhoHasLostTheClaimDoesNotTakeItBackWhenTheOtherLeaves) {
  data_.Put(key_, EncodeClaim({.launch = "other", .endpoints = {{"127.0.0.1", 2}}}));
  EXPECT_FALSE(claims_->Confirm(mine_).value());
  data_.Delete(key_);
  EXPECT_FALSE(claims_->Confirm(mine_).value());
  EXPECT_FALSE(data_.Get(key_).has_value());
}

TEST_F(EtcdClaimsTest, AValueThatIsNoClaimIsLeftAndNamed) {
  data_.Put(key_, "hello");
  const absl::Status odd = claims_->Confirm(mine_).status();
  EXPECT_THAT(std::string(odd.message()), HasSubstr("its value cannot be used"));
  EXPECT_EQ(data_.Get(key_)->value, "hello");
}

TEST_F(EtcdClaimsTest, AnEtcdThatIsAwayIsNamed) {
  server_->Shutdown();
  const absl::Status away = claims_->Confirm(mine_).status();
  EXPECT_TRUE(absl::IsUnavailable(away));
  EXPECT_THAT(std::string(away.message()), HasSubstr("etcd at http://127.0.0.1:"));
}

}  // namespace
}  // namespace fsdprun
