#include "fsdp_runtime/src/comm/c10d_store.h"

#include <gtest/gtest.h>

#include "tests/unit/fsdp_runtime/comm/ranks.h"

namespace fsdp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::serve_store;

TEST(C10dStoreTest, KeepsItsPrefix) {
  const auto server = serve_store();
  const auto client = std::make_shared<StoreClient>("127.0.0.1", server->getPort(), seconds(10));
  auto store = c10::make_intrusive<ClientStore>(client, "group");
  store->set("k", std::vector<uint8_t>{1, 2, 0, 255});
  EXPECT_EQ(store->get("k"), (std::vector<uint8_t>{1, 2, 0, 255}));
  EXPECT_EQ(server->get("group/k"), (std::vector<uint8_t>{1, 2, 0, 255}));
  EXPECT_EQ(store->clone()->add("count", 4), 4);
  EXPECT_EQ(store->multiGet({"k"})[0].size(), 4u);
  EXPECT_THROW(store->wait({"never"}, milliseconds(50)), StoreTimeout);
}

}  // namespace
}  // namespace fsdp
