#include "spec/hardware.h"

#include <algorithm>
#include <cctype>

namespace ingot::spec {
namespace {

// clang-format off
constexpr Hardware kHardware[] = {
  //  name      fp4       fp8     bf16    f32     memory  bytes  units
  {"H200",   0,        1979e12, 989e12,  67e12,  4.8e12, 141e9, 132},
  {"B200",   9000e12,  4500e12, 2250e12, 75e12,  8.0e12, 180e9, 148},
  {"MI300X", 0,        2615e12, 1307e12, 163e12, 5.3e12, 192e9, 304},
  {"MI355X", 10066e12, 5033e12, 2516e12, 157e12, 8.0e12, 288e9, 256},
};
// clang-format on

// Whether `text` has `word` with no letter or digit beside it: an "NVIDIA GB200" is not a B200.
bool has_word(std::string_view text, std::string_view word) {
  const auto inside = [&](size_t i) { return i < text.size() && std::isalnum(static_cast<unsigned char>(text[i])) != 0; };
  for (size_t at = text.find(word); at != std::string_view::npos; at = text.find(word, at + 1))
    if ((at == 0 || !inside(at - 1)) && !inside(at + word.size())) return true;
  return false;
}

}  // namespace

double Hardware::flops(Arithmetic arithmetic) const {
  switch (arithmetic) {
    case Arithmetic::fp4:
      if (fp4 > 0) return fp4;
      [[fallthrough]];
    case Arithmetic::fp8:
      if (fp8 > 0) return fp8;
      [[fallthrough]];
    case Arithmetic::bf16: return bf16;
    case Arithmetic::f32: break;
  }
  return f32;
}

std::optional<Hardware> hardware_of(std::string_view device_name) {
  const auto* found = std::ranges::find_if(kHardware, [&](const Hardware& h) { return has_word(device_name, h.name); });
  if (found == std::end(kHardware)) return std::nullopt;
  return *found;
}

}  // namespace ingot::spec
