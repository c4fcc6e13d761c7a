// Symptoms: a response is gone although it was just given; a store that grows for ever; a restart that forgets; two threads in one
// database.
#include "serve/response_store.h"

#include <gtest/gtest.h>
#include <sqlite3.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

namespace ingot::serve {
namespace {

StoredResponse response(const std::string& id, size_t bytes = 10) {
  return {id, "resp_before", {{"id", id}, {"output", std::string(bytes, 'x')}}, Json::array({{{"id", "msg_1"}}})};
}

struct Folder {
  Folder() : path(std::filesystem::temp_directory_path() / fmt::format("response_store_{}", getpid())) {
    std::filesystem::create_directories(path);
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::filesystem::path path;
};

bool has(ResponseStore& store, const std::string& id) { return store.get(id).value().has_value(); }

TEST(ResponseStore, WhatWasPutIsThereAtOnceAndAfterARestart) {
  const Folder folder;
  {
    auto store = ResponseStore::open(folder.path / "r.db", {}).value();
    store->put(response("resp_1"));
    const auto found = store->get("resp_1").value();
    ASSERT_TRUE(found);
    EXPECT_EQ(found->response, response("resp_1").response);
    EXPECT_EQ(found->previous, "resp_before");
    EXPECT_EQ(found->input.size(), 1u);
    EXPECT_FALSE(has(*store, "resp_2"));
  }
  auto store = ResponseStore::open(folder.path / "r.db", {}).value();
  EXPECT_TRUE(has(*store, "resp_1"));
  EXPECT_TRUE(store->erase("resp_1").value());
  EXPECT_FALSE(store->erase("resp_1").value());
  EXPECT_FALSE(has(*store, "resp_1"));
}

TEST(ResponseStore, TheLeastUsedGoFirst) {
  const Folder folder;
  {
    auto store = ResponseStore::open(folder.path / "r.db", {.max_responses = 2, .max_bytes = 1 << 20}).value();
    store->put(response("a"));
    store->put(response("b"));
  }
  auto store = ResponseStore::open(folder.path / "r.db", {.max_responses = 2, .max_bytes = 1 << 20}).value();
  EXPECT_TRUE(has(*store, "a"));  // now used later than b
  store->put(response("c"));
  store = nullptr;
  store = ResponseStore::open(folder.path / "r.db", {.max_responses = 2, .max_bytes = 1 << 20}).value();
  EXPECT_TRUE(has(*store, "a"));
  EXPECT_FALSE(has(*store, "b"));
  EXPECT_TRUE(has(*store, "c"));
}

TEST(ResponseStore, BytesAreBoundedToo) {
  const Folder folder;
  {
    auto store = ResponseStore::open(folder.path / "r.db", {.max_responses = 100, .max_bytes = 5000}).value();
    for (int i = 0; i < 10; ++i) store->put(response(std::to_string(i), 1000));
    store->put(response("large", 6000));
    store->put(response("small"));
  }
  auto store = ResponseStore::open(folder.path / "r.db", {}).value();
  EXPECT_FALSE(has(*store, "large"));
  EXPECT_TRUE(has(*store, "small"));
  EXPECT_TRUE(has(*store, "9")) << "one that is too large takes nobody's place";
  EXPECT_FALSE(has(*store, "0"));
  EXPECT_LE(store->count(), 5);
}

TEST(ResponseStore, ThreadsWriteReadAndDelete) {
  auto store = ResponseStore::open({}, {.max_responses = 1000, .max_bytes = 1 << 24}).value();
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        const std::string id = fmt::format("{}-{}", t, i);
        store->put(response(id));
        if (!has(*store, id)) ++wrong;
        if (i % 2 == 0 && !store->erase(id).value()) ++wrong;
        if (i % 2 == 0 && has(*store, id)) ++wrong;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(store->count(), 200);
}

TEST(ResponseStore, FilesThatAreNotOursAreLeftAlone) {
  const Folder folder;
  const auto error_of = [](const std::filesystem::path& path) { return ResponseStore::open(path, {}).error().text(); };
  const auto other = folder.path / "other.db";
  sqlite3* database = nullptr;
  ASSERT_EQ(sqlite3_open(other.c_str(), &database), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(database, "CREATE TABLE secrets (x)", nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(database);
  EXPECT_NE(error_of(other).find("another program"), std::string::npos);
  std::ofstream(folder.path / "text.db") << std::string(5000, 'x');
  EXPECT_NE(error_of(folder.path / "text.db").find("--response-store"), std::string::npos);
  EXPECT_NE(error_of("/nowhere/r.db").find("/nowhere/r.db"), std::string::npos);
}

}  // namespace
}  // namespace ingot::serve
