// The file that keeps a run's answers: a first line that says what was asked of whom, then a line an answer. What was written before a kill
// is there afterwards; a last line that was cut is dropped.
#pragma once

#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "eval/runner.h"

namespace ingot::eval {

class ItemsFile {
 public:
  // Reads what is there and opens for more. Errors: another head (names the field that differs), no items file, can't be written.
  static Result<ItemsFile> open(const std::filesystem::path& path, const Json& head);

  std::map<std::string, Item> take_earlier() { return std::move(earlier_); }
  Result<> append(const Item& item);

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::filesystem::path path_;
  std::map<std::string, Item> earlier_;  // by id
  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace ingot::eval
