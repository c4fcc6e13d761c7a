// The texts that calibration runs through the model: a file of JSON lines, {"text": "..."} (everything that the model is to read, special
// tokens included) or {"tokens": [1, 2, ...]}. Other fields are ignored. Called once, before a weight is read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace ingot::quant {

// Ids of a text; the text room's tokenizer, which this room does not know.
using Tokenize = std::function<Result<std::vector<int32_t>>(std::string_view text)>;

struct CalibrationDataOptions {
  int64_t max_tokens = 65536;          // over all documents; more are left out, chosen by `seed`
  int64_t max_document_tokens = 4096;  // a longer document is cut
  int64_t vocab_size = 0;
  uint64_t seed = 1;
};

// Documents of at least 2 tokens each, in the file's order. Errors: an unreadable or empty file; and with the number of the line: no JSON,
// neither or both of the fields, an id outside the vocabulary, a text that cannot be tokenised, fewer than 2 tokens.
Result<std::vector<std::vector<int32_t>>> load_calibration_data(const std::filesystem::path& file, const Tokenize& tokenize,
                                                                const CalibrationDataOptions& options);

}  // namespace ingot::quant
