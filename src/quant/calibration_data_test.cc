// The calibration file: what it may hold, and errors that name the line.
#include "quant/calibration_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "support/checkpoint_writer.h"

namespace ingot::quant {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A letter is a token; anything else cannot be read.
Result<std::vector<int32_t>> letters(std::string_view text) {
  std::vector<int32_t> tokens;
  for (const char c : text) {
    if (c < 'a' || c > 'z') return fail("no letter: '{}'", c);
    tokens.push_back(c - 'a');
  }
  return tokens;
}

class CalibrationData : public testing::Test {
 protected:
  auto load(const std::string& text, CalibrationDataOptions options = {}) {
    std::ofstream(dir_.path() / "data.jsonl") << text;
    options.vocab_size = 20;
    return load_calibration_data(dir_.path() / "data.jsonl", letters, options);
  }
  test_support::TempDir dir_;
};

TEST_F(CalibrationData, TakesTextsAndTokensAndIgnoresOtherFieldsAndEmptyLines) {
  const auto data = load("{\"text\": \"abc\", \"kind\": \"word\"}\n\n{\"tokens\": [5, 19]}\r\n{\"text\": \"de\"}");
  ASSERT_TRUE(data) << data.error().text();
  EXPECT_THAT(*data, ElementsAre(ElementsAre(0, 1, 2), ElementsAre(5, 19), ElementsAre(3, 4)));
}

TEST_F(CalibrationData, ErrorsNameTheLine) {
  const std::pair<const char*, const char*> cases[] = {
      {"{\"text\": ", "data.jsonl:2"},
      {"[1, 2]", "data.jsonl:2: expected an object"},
      {"{\"id\": 1}", "data.jsonl:2: expected an object"},
      {"{\"text\": \"ab\", \"tokens\": [1, 2]}", "data.jsonl:2: expected an object"},
      {"{\"text\": 7}", "data.jsonl:2: \"text\" is not a string"},
      {"{\"text\": \"a!\"}", "data.jsonl:2: no letter: '!'"},
      {"{\"text\": \"az\"}", "data.jsonl:2: the tokenizer gives id 25, the model has 20 tokens"},
      {"{\"text\": \"a\"}", "data.jsonl:2: 1 tokens"},
      {"{\"tokens\": 3}", "data.jsonl:2: \"tokens\" is not a list"},
      {"{\"tokens\": [1, 20]}", "data.jsonl:2: token 1 is 20, not an id from 0 to 19"},
      {"{\"tokens\": [-1, 2]}", "data.jsonl:2: token 0 is -1"},
      {"{\"tokens\": [1.5, 2]}", "data.jsonl:2: token 0 is 1.5"},
      {"{\"tokens\": []}", "data.jsonl:2: 0 tokens"},
  };
  for (const auto& [line, expected] : cases) {
    const auto data = load(std::string("{\"text\": \"ab\"}\n") + line + "\n");
    ASSERT_FALSE(data) << line;
    EXPECT_THAT(data.error().message, HasSubstr(expected));
  }
}

TEST_F(CalibrationData, AFileWithNothingInItOrThatIsAbsentIsAnError) {
  EXPECT_THAT(load("\n \n").error().message, HasSubstr("no calibration documents"));
  EXPECT_THAT(load_calibration_data(dir_.path() / "absent", letters, {}).error().message, HasSubstr("absent"));
  EXPECT_THAT(load("{\"text\": \"abcd\"}", {.max_tokens = 3}).error().message, HasSubstr("no document has at most 3 tokens"));
}

TEST_F(CalibrationData, KeepsWhatFitsChosenBySeedAndCutsLongDocuments) {
  std::string text;
  for (int i = 0; i < 10; ++i) text += fmt::format("{{\"tokens\": [{}, 0, 0, 0, 0, 0]}}\n", i);
  std::set<std::vector<std::vector<int32_t>>> choices;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    const CalibrationDataOptions options{.max_tokens = 14, .max_document_tokens = 4, .seed = seed};
    const auto data = load(text, options), again = load(text, options);
    ASSERT_TRUE(data) << data.error().text();
    ASSERT_EQ(data->size(), 3u);
    EXPECT_EQ(*data, *again);
    EXPECT_LT((*data)[0][0], (*data)[1][0]) << "the file's order";
    for (const auto& tokens : *data) EXPECT_EQ(tokens.size(), 4u);
    choices.insert(*data);
  }
  EXPECT_GT(choices.size(), 4u);
}

}  // namespace
}  // namespace ingot::quant
