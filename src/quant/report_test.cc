#include "quant/report.h"

#include <gtest/gtest.h>

#include "base/json.h"

namespace ingot::quant {
namespace {

std::vector<TensorReport> three() {
  TensorReport a, b, c;
  a.module = "model.layers.3.a<b>";
  a.layer = 3;
  a.error = {100, 1, 0.5f, 10, 1, 2};
  b.module = "model.layers.4.b";
  b.layer = 4;
  b.error = {100, 10, 0.25f, 20, 0, 5};
  c.module = "model.layers.5.c";
  c.layer = 5;
  c.error = {100, 0, 0, 5, 0, 0};
  std::vector<TensorReport> out{a, c, b};
  sort_worst_first(out);
  return out;
}

TEST(Report, WorstComesFirstAndExactLast) {
  const auto rows = three();
  EXPECT_EQ(rows[0].module, "model.layers.4.b");
  EXPECT_EQ(rows[2].module, "model.layers.5.c");
  const Json json = Json::parse(report_json_text({}, rows));
  EXPECT_NEAR(json["tensors"][0]["sqnr_db"].get<double>(), 10, 1e-9);
  EXPECT_NEAR(json["tensors"][1]["saturated"].get<double>(), 0.1, 1e-12);
  EXPECT_NEAR(json["tensors"][0]["zeroed"].get<double>(), 0.25, 1e-12);
  EXPECT_TRUE(json["tensors"][2]["sqnr_db"].is_null()) << "JSON has no infinity";
}

TEST(Report, CsvHasALineForEachAndQuotesCommas) {
  auto rows = three();
  rows[0].module = "a,\"b";
  const std::string csv = report_csv_text(rows);
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 4);
  EXPECT_NE(csv.find("\n\"a,\"\"b\",attention,4,bf16,mxfp4,no,10,0.25,0,0.25,"), std::string::npos) << csv;
}

TEST(Report, HtmlEscapesNamesAndPlotsWhatIsFinite) {
  ReportHeader header;
  header.source = "<script>";
  const std::string html = report_html_text(header, three());
  EXPECT_EQ(html.find("<script>"), std::string::npos);
  EXPECT_NE(html.find("model.layers.3.a&lt;b&gt;"), std::string::npos);
  EXPECT_NE(html.find("attention, layer 3"), std::string::npos);
  EXPECT_EQ(html.find("attention, layer 5"), std::string::npos) << "an exact module has no place on a scale of decibels";
  EXPECT_NE(report_html_text(header, {}).find("No module"), std::string::npos);
}

TEST(Report, TheExtensionDecidesAndOthersAreRefused) {
  EXPECT_TRUE(check_report_path("report.json"));
  EXPECT_TRUE(check_report_path("report.csv"));
  EXPECT_TRUE(check_report_path("report.html"));
  EXPECT_FALSE(check_report_path("report.txt"));
  EXPECT_FALSE(check_report_path("/nonexistent/report.csv"));
}

}  // namespace
}  // namespace ingot::quant
