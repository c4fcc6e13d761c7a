#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "base/file_io.h"
#include "base/file_map.h"
#include "base/json.h"
#include "base/queue.h"
#include "base/rng.h"
#include "base/thread_pool.h"

namespace ingot {
namespace {

TEST(ThreadPool, every_index_is_visited_once_over_many_short_loops) {
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    for (int round = 0; round < 3000; ++round) {
      const int64_t count = round % 37;
      std::vector<int> hits(static_cast<size_t>(count), 0);
      pool.parallel_for(count, 1 + round % 4, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) ++hits[static_cast<size_t>(i)];
      });
      for (int h : hits) ASSERT_EQ(h, 1) << "threads " << threads << " round " << round;
    }
  }
}

TEST(ThreadPool, wakes_workers_that_went_to_sleep) {
  ThreadPool pool(3);
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    std::atomic<int64_t> sum{0};
    pool.parallel_for(1000, 7, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) sum.fetch_add(i, std::memory_order_relaxed);
    });
    EXPECT_EQ(sum.load(), 999 * 1000 / 2);
  }
}

TEST(Json, hostile_nesting_is_refused_without_a_crash) {
  const std::string deep(1'000'000, '[');
  auto result = parse_json(deep, "request body");
  ASSERT_FALSE(result);
  EXPECT_NE(result.error().message.find("nested deeper than 128"), std::string::npos) << result.error().message;
}

TEST(Json, errors_say_where) {
  auto result = parse_json("{\"a\": 1,}", "config.json");
  ASSERT_FALSE(result);
  EXPECT_NE(result.error().message.find("config.json"), std::string::npos);
  EXPECT_NE(result.error().message.find("column 9"), std::string::npos) << result.error().message;
  EXPECT_FALSE(parse_json("{} {}", "x"));
  EXPECT_FALSE(parse_json("\"\xff\"", "x"));
  EXPECT_FALSE(parse_json("", "x"));
}

// Found by fuzzing: what followed a zero byte was ignored.
TEST(Json, a_zero_byte_does_not_hide_what_follows_it) {
  auto result = parse_json(std::string_view("{\"tokens\":[1]}\0garbage", 22), "the request body");
  ASSERT_FALSE(result);
  EXPECT_NE(result.error().message.find("zero byte at 14"), std::string::npos) << result.error().message;
  EXPECT_FALSE(parse_json(std::string_view("1\0", 2), "x"));
}

TEST(Json, duplicate_keys_are_refused_where_asked) {
  EXPECT_TRUE(parse_json(R"({"a":1,"a":2})", "x"));
  auto result = parse_json(R"({"a":{"b":1},"c":{"b":1,"b":2}})", "x", {.reject_duplicate_keys = true});
  ASSERT_FALSE(result);
  EXPECT_NE(result.error().message.find("duplicate key \"b\""), std::string::npos);
  EXPECT_TRUE(parse_json(R"([{"b":1},{"b":1}])", "x", {.reject_duplicate_keys = true}));
}

TEST(Json, lines_are_numbered_from_one_and_empty_ones_count) {
  std::vector<std::string> seen;
  const auto visit = [&](const Json& line, const std::string& where) -> Result<bool> {
    seen.push_back(where + " " + line.dump());
    return line != 3;
  };
  ASSERT_TRUE(for_each_json_line("1\n\n \r\n2\n3\nnot read", "f", visit));
  EXPECT_EQ(seen, (std::vector<std::string>{"f:1 1", "f:4 2", "f:5 3"}));
  const auto bad = for_each_json_line("1\n{", "f", visit);
  ASSERT_FALSE(bad);
  EXPECT_NE(bad.error().message.find("f:2"), std::string::npos) << bad.error().message;
  EXPECT_FALSE(for_each_json_line("1", "f", [](const Json&, const std::string&) -> Result<bool> { return fail("no"); }));
}

TEST(FileIo, a_read_behind_the_end_and_a_full_device_are_told) {
  const int file = ::memfd_create("t", 0);
  ASSERT_GE(file, 0);
  const std::string text(100'000, 'x');
  EXPECT_EQ(write_fully(file, text.data(), text.size()), 0);
  EXPECT_EQ(write_fully_at(file, "abc", 3, 50'000), 0);
  std::string back(3, ' ');
  EXPECT_EQ(read_fully_at(file, back.data(), 3, 50'000), 0);
  EXPECT_EQ(back, "abc");
  EXPECT_EQ(read_fully_at(file, back.data(), 3, text.size() - 2), kEndOfFile);
  ::close(file);
  EXPECT_EQ(read_fully_at(file, back.data(), 3, 0), EBADF);
  const int full = ::open("/dev/full", O_WRONLY);
  ASSERT_GE(full, 0);
  EXPECT_EQ(write_fully(full, text.data(), text.size()), ENOSPC);
  ::close(full);
}

TEST(Json, key_order_is_kept) { EXPECT_EQ(parse_json(R"({"z":1,"a":2})", "x")->dump(), R"({"z":1,"a":2})"); }

// Every key was compared with all before it: a body of 64,000 held a worker for half a minute.
TEST(Json, an_object_of_many_members_is_read_in_linear_time) {
  constexpr int kMembers = 400'000;
  std::string text = "{";
  for (int i = 0; i < kMembers; ++i) text += fmt::format("\"{}\":{},", i, i);
  const auto json = parse_json(text + R"("7":"again","last":{"7":8}})", "x");
  ASSERT_TRUE(json.has_value()) << json.error().message;
  ASSERT_EQ(json->size(), kMembers + 1u);
  EXPECT_EQ(json->begin().key(), "0");
  EXPECT_EQ(std::prev(json->end())->dump(), R"({"7":8})");
  const auto seventh = std::next(json->begin(), 7);
  EXPECT_EQ(seventh.key(), "7");
  EXPECT_EQ(seventh.value(), "again");
  EXPECT_FALSE(parse_json(text + R"("399999":0})", "x", {.reject_duplicate_keys = true}).has_value());
}

// Members are found one by one in a small object and by a table in a large one.
TEST(Json, the_last_of_equal_keys_counts_however_many_there_are) {
  for (const int members : {1, 15, 16, 17, 40}) {
    std::string text = "{";
    for (int i = 0; i < members; ++i) text += fmt::format("\"k{}\":[{}],", i, i);
    for (int i = 0; i < members; ++i) {
      const std::string again = fmt::format("{}\"k{}\":{{\"x\":null}}}}", text, i);
      const auto json = parse_json(again, "x");
      ASSERT_TRUE(json.has_value()) << again;
      ASSERT_EQ(json->size(), static_cast<size_t>(members)) << again;
      for (int m = 0; m < members; ++m) {
        const auto member = std::next(json->begin(), m);
        EXPECT_EQ(member.key(), fmt::format("k{}", m));
        EXPECT_EQ(member.value().dump(), m == i ? R"({"x":null})" : fmt::format("[{}]", m)) << again;
      }
      const auto refused = parse_json(again, "x", {.reject_duplicate_keys = true});
      ASSERT_FALSE(refused.has_value());
      EXPECT_NE(refused.error().message.find(fmt::format("duplicate key \"k{}\"", i)), std::string::npos) << refused.error().message;
    }
  }
}

TEST(FileMap, missing_file_and_directory_are_named) {
  auto missing = FileMap::open("/nonexistent/file");
  ASSERT_FALSE(missing);
  EXPECT_NE(missing.error().message.find("/nonexistent/file"), std::string::npos);
  EXPECT_FALSE(FileMap::open("/tmp"));
}

TEST(FileMap, maps_bytes_and_survives_a_move) {
  const auto path = std::filesystem::temp_directory_path() / "ingot_file_map_test";
  std::ofstream(path) << "hello";
  auto map = FileMap::open(path);
  ASSERT_TRUE(map);
  FileMap moved = std::move(*map);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(moved.bytes().data()), moved.size()), "hello");
  EXPECT_EQ(*read_file(path, 5), "hello");
  EXPECT_FALSE(read_file(path, 4));
  std::filesystem::remove(path);
}

TEST(BoundedQueue, refuses_when_full_or_closed) {
  BoundedQueue<int> queue(2);
  int value = 7;
  EXPECT_TRUE(queue.try_push(value));
  EXPECT_TRUE(queue.try_push(value));
  EXPECT_FALSE(queue.try_push(value));
  EXPECT_EQ(queue.drain().size(), 2u);
  queue.close();
  EXPECT_FALSE(queue.try_push(value));
  EXPECT_FALSE(queue.wait_pop(std::chrono::milliseconds(1)));
}

TEST(Rng, a_draw_depends_on_seed_and_counter_alone) {
  EXPECT_EQ(random_bits(1, 5), random_bits(1, 5));
  EXPECT_NE(random_bits(1, 5), random_bits(1, 6));
  EXPECT_NE(random_bits(1, 5), random_bits(2, 5));
  double sum = 0;
  for (int i = 0; i < 100000; ++i) sum += random_uniform(42, static_cast<uint64_t>(i));
  EXPECT_NEAR(sum / 100000, 0.5, 0.005);
}

}  // namespace
}  // namespace ingot
