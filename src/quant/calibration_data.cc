#include "quant/calibration_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/file_map.h"
#include "base/json.h"
#include "base/rng.h"

namespace ingot::quant {
namespace {

Result<std::vector<int32_t>> parse_tokens(const Json& list, const std::string& where, int64_t vocab_size) {
  if (!list.is_array()) return fail("{}: \"tokens\" is not a list", where);
  std::vector<int32_t> tokens;
  for (const Json& id : list) {
    if (!id.is_number_integer() || id < 0 || id >= vocab_size)
      return fail("{}: token {} is {}, not an id from 0 to {}", where, tokens.size(), id.dump(), vocab_size - 1);
    tokens.push_back(id.get<int32_t>());
  }
  return tokens;
}

Result<std::vector<int32_t>> parse_line(const Json& json, const std::string& where, const Tokenize& tokenize, int64_t vocab_size) {
  if (!json.is_object() || json.contains("text") == json.contains("tokens"))
    return fail(R"({}: expected an object with either "text" or "tokens")", where);
  if (json.contains("tokens")) return parse_tokens(json["tokens"], where, vocab_size);
  if (!json["text"].is_string()) return fail("{}: \"text\" is not a string", where);
  auto tokens = tokenize(json["text"].get_ref<const std::string&>());
  if (!tokens) return fail("{}: {}", where, tokens.error().text());
  for (const int32_t id : *tokens)
    if (id < 0 || id >= vocab_size) return fail("{}: the tokenizer gives id {}, the model has {} tokens", where, id, vocab_size);
  return tokens;
}

}  // namespace

Result<std::vector<std::vector<int32_t>>> load_calibration_data(const std::filesystem::path& file, const Tokenize& tokenize,
                                                                const CalibrationDataOptions& options) {
  INGOT_ASSIGN(const FileMap map, FileMap::open(file));
  const std::string_view all(reinterpret_cast<const char*>(map.bytes().data()), map.size());
  std::vector<std::vector<int32_t>> documents;
  INGOT_TRY(for_each_json_line(all, file.string(), [&](const Json& line, const std::string& where) -> Result<bool> {
    INGOT_ASSIGN(std::vector<int32_t> tokens, parse_line(line, where, tokenize, options.vocab_size));
    if (tokens.size() < 2) return fail("{}: {} tokens; a document has at least 2", where, tokens.size());
    tokens.resize(std::min(tokens.size(), static_cast<size_t>(options.max_document_tokens)));
    documents.push_back(std::move(tokens));
    return true;
  }));
  if (documents.empty()) return fail("{}: no calibration documents", file.string());

  // A shuffled order, of which the documents that fit are kept; a document that does not fit leaves room for a shorter one.
  std::vector<size_t> order(documents.size());
  std::iota(order.begin(), order.end(), size_t{0});
  Rng rng(options.seed);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[rng.below(i)]);
  std::vector<size_t> kept;
  int64_t total = 0;
  for (const size_t i : order) {
    const auto length = static_cast<int64_t>(documents[i].size());
    if (total + length > options.max_tokens) continue;
    total += length;
    kept.push_back(i);
  }
  if (kept.empty()) return fail("{}: no document has at most {} tokens", file.string(), options.max_tokens);
  std::sort(kept.begin(), kept.end());
  std::vector<std::vector<int32_t>> chosen;
  for (const size_t i : kept) chosen.push_back(std::move(documents[i]));
  return chosen;
}

}  // namespace ingot::quant
