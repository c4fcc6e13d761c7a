// GPQA-Diamond (Rein et al., 2023) from the user's own copy, asked and scored as OpenAI's simple-evals does. Its authors ask that the
// questions appear nowhere in plain text: a task made here is `secret`, errors name rows by number alone.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "eval/task.h"

namespace ingot::eval {

struct GpqaOptions {
  std::filesystem::path data;  // gpqa_diamond.csv
  int repeats = 4;             // of every question, each with its own order of the choices
  uint64_t seed = 0;           // of the orders; simple-evals' is 0
  int64_t max_tokens = 32768;
  double temperature = 0.5;  // simple-evals'; repeats then differ by their seeds, too
  std::optional<bool> enable_thinking;
};

Result<Task> make_gpqa(const GpqaOptions& options);

// The letter after the first "Answer:", upper case; "" without one.
std::string gpqa_letter(std::string_view text);

}  // namespace ingot::eval
