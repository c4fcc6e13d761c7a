// The `bench tokenizer` command: how fast one thread encodes a text file, and the ids for a script to compare.
#pragma once

#include <string>

namespace ingot::apps {

struct BenchTokenizerOptions {
  std::string tokenizer;  // a tokenizer.json
  std::string text_file;
  int runs = 5;
  std::string ids_out;  // when given: the ids as int32, little endian
};

// Returns the exit status. Figures go to standard output, errors to standard error.
int run_bench_tokenizer(const BenchTokenizerOptions& options);

}  // namespace ingot::apps
