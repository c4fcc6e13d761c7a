// What quantisation cost each tensor: numbers, and the file that --report writes (JSON, CSV or a self-contained HTML page).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/result.h"
#include "quant/plan.h"
#include "quant/recipe.h"
#include "tensor/quantize_rows.h"

namespace ingot::quant {

struct TensorReport {
  std::string module;
  spec::TensorKind kind = spec::TensorKind::attention;
  int64_t layer = -1;
  tensor::WeightFormat from = tensor::WeightFormat::bf16, to = tensor::WeightFormat::mxfp4;
  bool calibrated = false;  // decided by calibration, not by rounding to nearest
  tensor::QuantError error;
  uint64_t bytes_before = 0, bytes_after = 0;  // scales included
};

struct ReportHeader {
  std::string source, target, recipe, scale_mode;
  uint64_t bytes_before = 0, bytes_after = 0;  // of the whole checkpoint, copied tensors included
};

// Lowest SQNR first; equal ones by name.
void sort_worst_first(std::vector<TensorReport>& tensors);

std::string report_json_text(const ReportHeader& header, const std::vector<TensorReport>& sorted);
std::string report_csv_text(const std::vector<TensorReport>& sorted);
std::string report_html_text(const ReportHeader& header, const std::vector<TensorReport>& sorted);

// By the extension: .json, .csv or .html. Errors: another extension; a path that cannot be written.
Result<> check_report_path(const std::filesystem::path& path);
Result<> write_report(const std::filesystem::path& path, const ReportHeader& header, std::vector<TensorReport> tensors);

}  // namespace ingot::quant
