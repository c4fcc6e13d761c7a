// Whether this test program runs under the address or the thread sanitizer, which make it some ten times slower.
#pragma once

namespace ingot::test_support {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kUnderSanitizer = true;
#else
inline constexpr bool kUnderSanitizer = false;
#endif

}  // namespace ingot::test_support
