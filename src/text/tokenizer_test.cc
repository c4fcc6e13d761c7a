// Symptoms: ids that differ from Hugging Face, a hostile tokenizer.json that crashes the server, a megabyte of one letter that hangs it.
#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <map>

#include "base/file_map.h"
#include "base/json.h"
#include "base/rng.h"
#include "text/detokenizer.h"
#include "text/pretokenizer_regex.h"
#include "text/pretokenizer_scan.h"
#include "text/stop_matcher.h"
#include "text/utf8_text.h"

namespace ingot::text {
namespace {

const std::string kDemo = INGOT_SOURCE_DIR "/models/demo/tokenizer.json";
const std::string kGoldens = INGOT_SOURCE_DIR "/tests/golden/tokenizer/";

std::shared_ptr<const Tokenizer> load(const std::string& path) {
  auto tokenizer = Tokenizer::load(path);
  EXPECT_TRUE(tokenizer) << tokenizer.error().text();
  return tokenizer ? *tokenizer : nullptr;
}

std::shared_ptr<const Tokenizer> demo() {
  static const auto tokenizer = load(kDemo);
  return tokenizer;
}

void expect_ids(const Tokenizer& tokenizer, const Json& row) {
  const auto text = row["text"].get<std::string>();
  const auto ids = tokenizer.encode(text);
  ASSERT_TRUE(ids) << ids.error().text();
  EXPECT_EQ(*ids, row["ids"].get<std::vector<int32_t>>()) << text;
  if (row.value("roundtrip", false)) {
    EXPECT_EQ(tokenizer.decode(*ids, false), text);
  }
}

std::string random_text(Rng& rng, size_t num_chars) {
  static const std::vector<uint32_t> kTaste = {'\'',   's',    'S',    't',  'r',   'E',    'v',    'm',     'l',   'L',    'd',  ' ',
                                               ' ',    '\t',   '\n',   '\r', '0',   '9',    '.',    '<',     0x17f, 0x212a, 0xa0, 0x85,
                                               0x180e, 0x2028, 0x3000, 0xe9, 0x301, 0x4e2d, 0xd55c, 0x1f600, 0xb2,  0x661};
  std::string text;
  for (size_t i = 0; i < num_chars; ++i) {
    uint32_t c = kTaste[rng.below(kTaste.size())];
    if (rng.below(4) == 0) c = static_cast<uint32_t>(rng.below(rng.below(2) ? 0x110000 : 0x3000));
    append_code_point(c >= 0xd800 && c <= 0xdfff ? 'x' : c, text);
  }
  return text;
}

TEST(Tokenizer, DemoIdsEqualHuggingFace) {
  const auto cases = parse_json(*read_file(kGoldens + "demo_cases.json", 1 << 20), "demo_cases.json");
  ASSERT_TRUE(cases);
  ASSERT_GE(cases->size(), 50u);
  for (const Json& row : *cases) expect_ids(*demo(), row);
  std::ifstream chats(kGoldens + "demo_chat_ids.jsonl");
  int rows = 0;
  for (std::string line; std::getline(chats, line); ++rows) expect_ids(*demo(), *parse_json(line, "demo_chat_ids.jsonl"));
  EXPECT_GE(rows, 20);
}

TEST(Tokenizer, SharedGoldensEqualHuggingFace) {
  const std::string folder = INGOT_SHARED_DIR "/data/tokenizers/";
  std::ifstream goldens(folder + "goldens.jsonl");
  if (!goldens) GTEST_SKIP() << "no ../shared";
  std::map<std::string, std::shared_ptr<const Tokenizer>> tokenizers;
  int rows = 0;
  for (std::string line; std::getline(goldens, line); ++rows) {
    const Json row = *parse_json(line, "goldens.jsonl");
    auto& tokenizer = tokenizers[row["tokenizer"].get<std::string>()];
    if (!tokenizer) tokenizer = load(folder + row["tokenizer"].get<std::string>() + "/tokenizer.json");
    ASSERT_TRUE(tokenizer);
    expect_ids(*tokenizer, row);
  }
  EXPECT_EQ(rows, 273);
  const auto word_piece = Tokenizer::load(folder + "llm-d-test-model/tokenizer.json");
  ASSERT_FALSE(word_piece);
}

TEST(Pretokenizer, ScannersCutAsPcre2Does) {
  const auto classes = UnicodeClasses::get();
  ASSERT_TRUE(classes);
  for (const std::string_view pattern : {kGpt2Pattern, kCl100kPattern, kQwenPattern}) {
    auto regex = PretokenizerRegex::compile(pattern);
    ASSERT_TRUE(regex) << regex.error().text();
    for (uint64_t seed = 1; seed <= 1500; ++seed) {
      Rng rng(seed);
      const std::string text = random_text(rng, 1 + rng.below(60));
      std::vector<std::string_view> fast, slow;
      PretokenizerScan(**classes, text).run(known_pattern(pattern), [&](std::string_view piece) {
        fast.push_back(piece);
        return true;
      });
      PretokenizerRegex::Walk walk(*regex, text);
      PretokenizerRegex::Match match;
      while (*walk.next(match)) slow.push_back(std::string_view(text).substr(match.begin, match.end - match.begin));
      ASSERT_EQ(fast, slow) << "seed " << seed << " text " << text;
    }
  }
}

TEST(Tokenizer, MegabyteOfOneLetterDoesNotHang) {
  const auto start = std::chrono::steady_clock::now();
  const std::string text(1 << 20, 'a');
  const auto ids = demo()->encode(text);
  ASSERT_TRUE(ids);
  EXPECT_EQ(demo()->decode(*ids, false), text);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

TEST(Tokenizer, BrokenTextAndTooManyTokensAreErrors) {
  const auto broken = demo()->encode("ab\xff");
  ASSERT_FALSE(broken);
  EXPECT_NE(broken.error().text().find("byte 2"), std::string::npos);
  EXPECT_TRUE(demo()->encode("Hello, world!", 4));
  EXPECT_FALSE(demo()->encode("Hello, world!", 3));
}

TEST(Tokenizer, MutatedFilesGiveErrorsAndNeverCrash) {
  const std::string good = *read_file(kDemo, 1 << 24);
  const std::string path = testing::TempDir() + "/mutated_tokenizer.json";
  const size_t vocab = good.find("\"vocab\""), merges = good.find("\"merges\"");
  int refused = 0;
  for (uint64_t seed = 1; seed <= 120; ++seed) {
    Rng rng(seed);
    std::string bad = good;
    const size_t around[] = {rng.below(vocab), vocab + rng.below(2000), merges + rng.below(2000), rng.below(good.size())};
    const size_t at = std::min(around[rng.below(4)], bad.size() - 1);
    switch (rng.below(4)) {
      case 0: bad[at] = static_cast<char>(rng.bits()); break;
      case 1: bad.resize(at); break;
      case 2: bad.erase(at, 1 + rng.below(40)); break;
      default: bad.insert(at, std::vector<std::string>{"[", "}", "null", "99999999999999999999", "\"", "2147483647,"}[rng.below(6)]); break;
    }
    std::ofstream(path, std::ios::binary) << bad;
    const auto tokenizer = Tokenizer::load(path);
    if (!tokenizer) {
      ++refused;
      EXPECT_NE(tokenizer.error().message.find("mutated_tokenizer.json"), std::string::npos)
          << tokenizer.error().text() << " seed " << seed;
    } else {
      (void)(*tokenizer)->encode("Hello 123 <|user|>");
    }
  }
  EXPECT_GT(refused, 60);
}

std::string small_file(const std::string& vocab, const std::string& merges, const std::string& added = "[]") {
  return R"({"added_tokens":)" + added + R"(,"normalizer":null,"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false},)" +
         R"("decoder":{"type":"ByteLevel"},"model":{"type":"BPE","vocab":)" + vocab + R"(,"merges":)" + merges + "}}";
}

TEST(Tokenizer, FaultsAreNamed) {
  const std::string path = testing::TempDir() + "/small_tokenizer.json";
  const auto error = [&](const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
    const auto tokenizer = Tokenizer::load(path);
    return tokenizer ? std::string("loaded") : tokenizer.error().text();
  };
  EXPECT_EQ(error(small_file(R"({"a":0,"b":1,"ab":2})", R"(["a b"])")), "loaded");
  EXPECT_NE(error(small_file(R"({"a":0,"b":1})", R"([["a","b"]])")).find("\"ab\" is not in the vocabulary"), std::string::npos);
  EXPECT_NE(error(small_file(R"({"a":0,"b":0})", "[]")).find("share id 0"), std::string::npos);
  EXPECT_NE(error(small_file(R"({"a":0,"b":2000000000})", "[]")).find("2000000000"), std::string::npos);
  EXPECT_NE(error(small_file(R"({"a":"x"})", "[]")).find("whole number"), std::string::npos);
  EXPECT_NE(error(small_file(R"({"a":0})", "[]", R"([{"id":1,"content":"<x>","single_word":true}])")).find("single_word"),
            std::string::npos);
  EXPECT_NE(error(small_file(R"({"a":0})", "[]", R"([{"id":0,"content":"<x>"}])")).find("vocabulary's"), std::string::npos);
}

TEST(Tokenizer, AddedTokensTakeTheSpaceTheyAskFor) {
  const std::string path = testing::TempDir() + "/strip_tokenizer.json";
  std::ofstream(path, std::ios::binary) << small_file(
      R"({"a":0,"Ġ":1})", "[]",
      R"([{"id":2,"content":"<l>","lstrip":true},{"id":3,"content":"<r>","rstrip":true},{"id":4,"content":"<r>a"}])");
  const auto tokenizer = load(path);
  ASSERT_TRUE(tokenizer);
  EXPECT_EQ(*tokenizer->encode("a  <l> a"), (std::vector<int32_t>{0, 2, 1, 0}));
  EXPECT_EQ(*tokenizer->encode("a <r>  a"), (std::vector<int32_t>{0, 1, 3, 0}));
  EXPECT_EQ(*tokenizer->encode("<r>aa"), (std::vector<int32_t>{4, 0})) << "the longest added token wins";
  EXPECT_FALSE(tokenizer->encode("b")) << "a byte without a token must not vanish";
}

TEST(Detokenizer, StreamedTextEqualsTheWholeWhateverTheTokens) {
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    Rng rng(seed);
    std::vector<int32_t> ids;
    for (int i = 0; i < 60; ++i)
      ids.push_back(static_cast<int32_t>(rng.below(rng.below(2) ? 256 : static_cast<uint64_t>(demo()->vocab_size()))));
    const bool skip = rng.below(2) == 0;
    Detokenizer detokenizer(demo(), skip);
    std::string streamed;
    for (const int32_t id : ids) {
      const std::string piece = detokenizer.push(id);
      EXPECT_EQ(find_invalid_utf8(piece), kValidUtf8);
      streamed += piece;
    }
    streamed += detokenizer.finish();
    ASSERT_EQ(streamed, demo()->decode(ids, skip)) << "seed " << seed;
  }
}

// Bug B18.
TEST(Detokenizer, EmojiInSeveralTokensComesWholeAndACutOneGivesOneReplacement) {
  const auto ids = *demo()->encode("a😀");
  ASSERT_GT(ids.size(), 2u) << "the demo vocabulary has no single token for it";
  Detokenizer whole(demo(), true), cut(demo(), true);
  std::string text;
  for (size_t i = 0; i < ids.size(); ++i) {
    text += whole.push(ids[i]);
    if (i + 1 < ids.size()) {
      EXPECT_EQ(text, "a");
      cut.push(ids[i]);
    }
  }
  EXPECT_EQ(text, "a😀");
  EXPECT_EQ(cut.finish(), "\xef\xbf\xbd");
}

// The rows are Python's bytes.decode("utf-8", errors="replace").
TEST(Detokenizer, BrokenBytesBecomeWhatPythonMakesOfThem) {
  const std::string r = "\xef\xbf\xbd";
  const std::pair<std::string, std::string> rows[] = {{"\xf0\x9f\x98", r},
                                                      {"\xf0\x9f"
                                                       "A",
                                                       r + "A"},
                                                      {"\xc0\x80", r + r},
                                                      {"\xed\xa0\x80", r + r + r},
                                                      {"\xf4\x90", r + r},
                                                      {"\xe4\xb8\xe4\xb8\xad", r + "中"}};
  for (const auto& [bytes, expected] : rows) {
    std::string out;
    append_replacing(bytes, true, out);
    EXPECT_EQ(out, expected);
  }
}

TEST(StopMatcher, EverySplitGivesTheSameTextAndStop) {
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    Rng rng(seed);
    const auto word = [&](size_t len) {
      std::string s;
      for (size_t i = 0; i < len; ++i) s.push_back(static_cast<char>('a' + rng.below(2)));
      return s;
    };
    std::vector<std::string> stops;
    for (uint64_t i = rng.below(4); i > 0; --i) stops.push_back(word(1 + rng.below(5)));
    const std::string text = word(rng.below(14));
    // The plain twin: the shortest prefix that ends in a stop string, and of several the longest of them.
    std::string expected = text;
    bool expect_stop = false;
    for (size_t end = 1; end <= text.size() && !expect_stop; ++end) {
      for (const std::string& stop : stops) {
        if (!std::string_view(text).substr(0, end).ends_with(stop)) continue;
        if (!expect_stop || end - stop.size() < expected.size()) expected = text.substr(0, end - stop.size());
        expect_stop = true;
      }
    }
    StopMatcher matcher(stops);
    std::string shown;
    bool stopped = false;
    for (size_t at = 0; at < text.size() && !stopped;) {
      const size_t len = 1 + rng.below(4);
      const auto piece = matcher.push(std::string_view(text).substr(at, len));
      shown += piece.text;
      ASSERT_TRUE(expected.starts_with(shown)) << "seed " << seed << ": shown text that belongs to a stop string";
      stopped = piece.stopped;
      EXPECT_EQ(piece.stop_index >= 0, stopped);
      at += len;
    }
    shown += matcher.finish();
    ASSERT_EQ(shown, expected) << "seed " << seed;
    ASSERT_EQ(stopped, expect_stop) << "seed " << seed;
  }
}

TEST(StopMatcherDeathTest, EmptyStopStringIsTheCallersFault) { EXPECT_DEATH(StopMatcher({""}), "empty stop string"); }

}  // namespace
}  // namespace ingot::text
