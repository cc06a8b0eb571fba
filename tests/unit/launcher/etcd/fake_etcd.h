#pragma once

// An etcd in this process, with what is used of its API and its semantics: transactions, leases,
// and what goes wrong.

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "etcd/v3/etcd.grpc.pb.h"
#include "launcher/etcd/etcd_client.h"

namespace fsdprun {

/// What an etcd has. A lease is over when a test says so.
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

  void Put(const std::string& key, const std::string& value, int64_t lease = 0)
      ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    entries_[key] = {value, lease};
  }

  void Delete(const std::string& key) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    entries_.erase(key);
  }

  std::map<std::string, std::string> All() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    std::map<std::string, std::string> all;
    for (const auto& [key, entry] : entries_) {
      all[key] = entry.value;
    }
    return all;
  }

  /// As long as it has no leader, for example.
  void RefuseWrites(bool refuses) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    refuses_writes_ = refuses;
  }
  /// Does the next change, and then says that it cannot tell.
  void HideNextSuccess() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    hides_success_ = true;
  }
  /// Says of the next change that it cannot tell, and does it when it is told to, or never.
  void DelayNextChange() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    delays_change_ = true;
  }
  /// Whether what it expects was so.
  bool DoDelayed() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    bool succeeded = false;
    EXPECT_TRUE(delayed_.has_value());
    EXPECT_TRUE(Do(*std::exchange(delayed_, std::nullopt), &succeeded).ok());
    return succeeded;
  }

  grpc::Status Change(const etcdserverpb::TxnRequest& request, bool* succeeded)
      ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    if (refuses_writes_) {
      return {grpc::StatusCode::UNAVAILABLE, "no leader"};
    }
    if (std::exchange(delays_change_, false)) {
      delayed_ = request;
      return {grpc::StatusCode::UNAVAILABLE, "connection reset"};
    }
    const grpc::Status status = Do(request, succeeded);
    return status.ok() && std::exchange(hides_success_, false)
               ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "connection reset")
               : status;
  }

  int64_t Grant(int64_t seconds) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    leases_[++last_lease_] = seconds;
    return last_lease_;
  }
  void Revoke(int64_t lease) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    End(lease);
  }
  /// -1 if it is over.
  int64_t SecondsLeft(int64_t lease) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    const auto found = leases_.find(lease);
    if (found == leases_.end() || shown_.empty()) {
      return found == leases_.end() ? -1 : found->second;
    }
    const int64_t seconds = shown_.front();
    shown_.pop_front();
    return seconds;
  }
  /// What leases have left at the next looks.
  void ShowSecondsLeft(std::deque<int64_t> shown) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    shown_ = std::move(shown);
  }
  bool IsAlive(int64_t lease) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    return leases_.contains(lease);
  }
  /// Of all leases, and of what was put with them.
  void Expire() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    while (!leases_.empty()) {
      End(leases_.begin()->first);
    }
  }

 private:
  /// As etcd's own limit.
  static constexpr size_t kMaxRequestBytes = 1536u << 10;

  grpc::Status Do(const etcdserverpb::TxnRequest& request, bool* succeeded)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (request.ByteSizeLong() > kMaxRequestBytes) {
      return {grpc::StatusCode::INVALID_ARGUMENT, "etcdserver: request is too large"};
    }
    *succeeded = true;
    for (const etcdserverpb::Compare& compare : request.compare()) {
      const auto entry = entries_.find(compare.key());
      const bool is_there = entry != entries_.end();
      *succeeded = *succeeded && (compare.target() == etcdserverpb::Compare::CREATE
                                      ? !is_there
                                      : is_there && entry->second.value == compare.value());
    }
    for (const etcdserverpb::RequestOp& op : request.success()) {
      const etcdserverpb::PutRequest& put = op.request_put();
      if (*succeeded && op.has_request_put() && put.lease() != 0 &&
          !leases_.contains(put.lease())) {
        return {grpc::StatusCode::NOT_FOUND, "requested lease not found"};
      }
    }
    for (int i = 0; *succeeded && i < request.success_size(); ++i) {
      Carry(request.success(i));
    }
    return grpc::Status::OK;
  }

  void Carry(const etcdserverpb::RequestOp& op) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (op.has_request_put()) {
      entries_[op.request_put().key()] = {op.request_put().value(), op.request_put().lease()};
      return;
    }
    const etcdserverpb::DeleteRangeRequest& range = op.request_delete_range();
    std::erase_if(entries_, [&range](const auto& entry) {
      return range.range_end().empty()
                 ? entry.first == range.key()
                 : entry.first >= range.key() && entry.first < range.range_end();
    });
  }

  void End(int64_t lease) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    leases_.erase(lease);
    std::erase_if(entries_, [lease](const auto& entry) { return entry.second.lease == lease; });
  }

  Mutex mu_;
  std::map<std::string, Entry> entries_ ABSL_GUARDED_BY(mu_);
  std::map<int64_t, int64_t> leases_ ABSL_GUARDED_BY(mu_);
  std::deque<int64_t> shown_ ABSL_GUARDED_BY(mu_);
  int64_t last_lease_ ABSL_GUARDED_BY(mu_) = 0;
  bool refuses_writes_ ABSL_GUARDED_BY(mu_) = false;
  bool hides_success_ ABSL_GUARDED_BY(mu_) = false;
  bool delays_change_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<etcdserverpb::TxnRequest> delayed_ ABSL_GUARDED_BY(mu_);
};

/// Serves it on a port of its own.
class FakeEtcd {
 public:
  FakeEtcd() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(&kv_);
    builder.RegisterService(&lease_);
    server_ = builder.BuildAndStart();
    EXPECT_NE(server_, nullptr);
  }

  EtcdData& data() { return data_; }
  std::string target() const { return absl::StrCat("127.0.0.1:", port_); }
  void Shutdown() { server_->Shutdown(); }

  /// `before`: members that are tried before it.
  std::unique_ptr<EtcdClient> MakeClient(std::vector<std::string> before = {}) const {
    EtcdClient::Options options{.targets = std::move(before)};
    options.targets.push_back(target());
    options.timeout = std::chrono::seconds(60);
    return EtcdClient::Make(std::move(options)).value();
  }

 private:
  class Kv : public etcdserverpb::KV::Service {
   public:
    explicit Kv(EtcdData& data) : data_(data) {}

    grpc::Status Range(grpc::ServerContext* /*context*/, const etcdserverpb::RangeRequest* request,
                       etcdserverpb::RangeResponse* response) override {
      if (const auto entry = data_.Get(request->key())) {
        etcdserverpb::KeyValue* found = response->add_kvs();
        found->set_value(entry->value);
        found->set_lease(entry->lease);
      }
      return grpc::Status::OK;
    }

    grpc::Status Txn(grpc::ServerContext* /*context*/, const etcdserverpb::TxnRequest* request,
                     etcdserverpb::TxnResponse* response) override {
      bool succeeded = false;
      const grpc::Status status = data_.Change(*request, &succeeded);
      response->set_succeeded(succeeded);
      return status;
    }

   private:
    EtcdData& data_;
  };

  class Lease : public etcdserverpb::Lease::Service {
   public:
    explicit Lease(EtcdData& data) : data_(data) {}

    grpc::Status LeaseGrant(grpc::ServerContext* /*context*/,
                            const etcdserverpb::LeaseGrantRequest* request,
                            etcdserverpb::LeaseGrantResponse* response) override {
      response->set_id(data_.Grant(request->ttl()));
      return grpc::Status::OK;
    }

    grpc::Status LeaseRevoke(grpc::ServerContext* /*context*/,
                             const etcdserverpb::LeaseRevokeRequest* request,
                             etcdserverpb::LeaseRevokeResponse* /*response*/) override {
      data_.Revoke(request->id());
      return grpc::Status::OK;
    }

    grpc::Status LeaseTimeToLive(grpc::ServerContext* /*context*/,
                                 const etcdserverpb::LeaseTimeToLiveRequest* request,
                                 etcdserverpb::LeaseTimeToLiveResponse* response) override {
      response->set_ttl(data_.SecondsLeft(request->id()));
      return grpc::Status::OK;
    }

    grpc::Status LeaseKeepAlive(
        grpc::ServerContext* /*context*/,
        grpc::ServerReaderWriter<etcdserverpb::LeaseKeepAliveResponse,
                                 etcdserverpb::LeaseKeepAliveRequest>* stream) override {
      etcdserverpb::LeaseKeepAliveRequest request;
      while (stream->Read(&request)) {
        etcdserverpb::LeaseKeepAliveResponse response;
        response.set_ttl(data_.IsAlive(request.id()) ? 40 : 0);
        stream->Write(response);
      }
      return grpc::Status::OK;
    }

   private:
    EtcdData& data_;
  };

  EtcdData data_;
  Kv kv_{data_};
  Lease lease_{data_};
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace fsdprun
