#include "eval/gpqa.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/file_map.h"
#include "eval/csv.h"
#include "eval/python_random.h"

namespace ingot::eval {
namespace {

constexpr size_t kMaxFile = size_t{1} << 28;
constexpr std::array<const char*, 5> kColumns = {"Question", "Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2",
                                                 "Incorrect Answer 3"};
using Row = std::array<std::string, kColumns.size()>;

Result<std::vector<Row>> read_rows(const std::filesystem::path& path) {
  INGOT_ASSIGN(const std::string text, read_file(path, kMaxFile));
  INGOT_ASSIGN(const auto table, parse_csv(text, path.string()));
  if (table.empty()) return fail("{} is empty", path.string());
  std::array<size_t, kColumns.size()> places{};
  for (size_t c = 0; c < kColumns.size(); ++c) {
    const auto found = std::find(table[0].begin(), table[0].end(), kColumns[c]);
    if (found == table[0].end())
      return fail_hint("give the authors' gpqa_diamond.csv", "{}: no column \"{}\" in the first row", path.string(), kColumns[c]);
    places[c] = static_cast<size_t>(found - table[0].begin());
  }
  std::vector<Row> rows;
  for (size_t r = 1; r < table.size(); ++r) {
    Row row;
    for (size_t c = 0; c < kColumns.size(); ++c) {
      if (places[c] >= table[r].size() || table[r][places[c]].empty())
        return fail("{}: row {}: \"{}\" is empty", path.string(), r + 1, kColumns[c]);
      row[c] = table[r][places[c]];
    }
    rows.push_back(std::move(row));
  }
  if (rows.empty()) return fail("{} has no questions", path.string());
  return rows;
}

std::string prompt_of(const Row& row, const std::vector<uint32_t>& order) {
  std::string prompt =
      "Answer the following multiple choice question. The last line of your response should be of the following format: 'Answer: $LETTER' "
      "(without quotes) where LETTER is one of ABCD. Think step by step before answering.\n\n" +
      row[0] + "\n\n";
  for (size_t place = 0; place < order.size(); ++place)
    prompt += fmt::format("{}{}) {}", place > 0 ? "\n" : "", static_cast<char>('A' + place), row[1 + order[place]]);
  return prompt;
}

char upper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c; }
size_t skip(std::string_view text, size_t at, std::string_view any) { return std::min(text.find_first_not_of(any, at), text.size()); }

}  // namespace

std::string gpqa_letter(std::string_view text) {
  constexpr std::string_view kWord = "ANSWER";
  for (size_t at = 0; at + kWord.size() < text.size(); ++at) {
    if (!std::equal(kWord.begin(), kWord.end(), text.begin() + static_cast<ptrdiff_t>(at), [](char a, char b) { return a == upper(b); }))
      continue;
    size_t next = skip(text, at + kWord.size(), " \t");
    if (next >= text.size() || text[next] != ':') continue;
    next = skip(text, next + 1, " \t");
    if (next < text.size() && text[next] == '$') ++next;
    if (next >= text.size()) continue;
    if (const char letter = upper(text[next]); letter >= 'A' && letter <= 'D') return {letter};
  }
  return {};
}

Result<Task> make_gpqa(const GpqaOptions& options) {
  if (options.repeats < 1) return fail("--repeats {} is out of range: expected 1 or more", options.repeats);
  INGOT_ASSIGN(const std::vector<Row> rows, read_rows(options.data));
  Task task;
  task.name = "gpqa", task.rule = "simple-evals", task.secret = true;
  task.about = fmt::format(
      "one user message with simple-evals' instruction; choices in the order that Python's Random({}) draws, {} times over all rows; the "
      "letter after the first `Answer:`",
      options.seed, options.repeats);
  PythonRandom random(options.seed);
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    for (size_t r = 0; r < rows.size(); ++r) {
      const std::vector<uint32_t> order = random.sample(4, 4);
      Question q;
      q.cluster = fmt::format("gpqa-{}", r);
      q.id = options.repeats == 1 ? q.cluster : fmt::format("{}/{}", q.cluster, repeat);
      q.path = "/v1/chat/completions";
      q.body["messages"] = Json::array({{{"role", "user"}, {"content", prompt_of(rows[r], order)}}});
      if (options.enable_thinking) q.body["chat_template_kwargs"] = {{"enable_thinking", *options.enable_thinking}};
      q.body["temperature"] = options.temperature;
      q.body["max_tokens"] = options.max_tokens;
      if (options.temperature > 0) q.body["seed"] = options.seed + static_cast<uint64_t>(repeat);
      const auto right = std::find(order.begin(), order.end(), 0U) - order.begin();
      q.key = std::string(1, static_cast<char>('A' + right));
      task.questions.push_back(std::move(q));
    }
  }
  task.score = [](const Question& q, const Answer& answer) {
    Score score;
    score.extracted = gpqa_letter(after_thoughts(answer.content));
    score.no_answer = score.extracted.empty();
    score.ok = score.extracted == q.key.get_ref<const std::string&>();
    return score;
  };
  return task;
}

}  // namespace ingot::eval
