// Included ahead of every mlx-c source, and of its headers when bindgen reads them.
//
// mlx-c is written for Apple's compilers. Two things it takes for granted are
// missing on Linux x86-64 and are supplied here, so that its sources stay untouched.
#pragma once

// 1. The half-precision entry points. mlx-c declares them on ARM only, and mlx-rs
//    calls them everywhere. Both types are 16 bits wide and pass by pointer.
#define HAS_FLOAT16
#define HAS_BFLOAT16

#ifdef __cplusplus

#include "mlx/types/half_types.h"
using float16_t = mlx::core::float16_t;
using bfloat16_t = mlx::core::bfloat16_t;

// 2. std::format, which libstdc++ has from GCC 13 on. mlx-c uses it for four error
//    messages, all with plain `{}`: that much is what this one understands. Adding to
//    `std` is frowned upon, but the call sites are not ours to change.
#include <version>
#ifdef __cpp_lib_format
#include <format>
#else
#include <sstream>
#include <string>
#include <string_view>

namespace std {

inline string format(string_view pattern) {
  return string(pattern);
}

template <typename First, typename... Rest>
string format(string_view pattern, const First& first, const Rest&... rest) {
  const size_t hole = pattern.find("{}");
  if (hole == string_view::npos) {
    return string(pattern);
  }
  ostringstream text;
  text << pattern.substr(0, hole) << first << format(pattern.substr(hole + 2), rest...);
  return text.str();
}

} // namespace std
#endif // __cpp_lib_format

#else // C: only bindgen comes here

#include <stdint.h>
// bindgen turns __fp16 into `__BindgenFloat16`, the newtype that mlx-rs expects.
typedef __fp16 float16_t;
typedef uint16_t bfloat16_t;

#endif // __cplusplus
