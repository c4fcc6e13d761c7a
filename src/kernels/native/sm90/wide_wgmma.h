// The warpgroup's matrix instruction with the left operand in registers, one function a width. Seen by nvcc alone.
// PTX ISA 9.0, wgmma.mma_async: d (64 x N, f32) += a (64 x 16, bf16, registers) b (16 x N, bf16, shared memory, K-major).
#pragma once

#include "kernels/native/sm90/ptx.h"

#if defined(__CUDACC__)

namespace ingot::kernels::sm90 {

// What wgmma has to know about N rows of 64 bf16 numbers (128 bytes each, 16-byte pieces exchanged as the 128-byte swizzle wants) that
// start at `address`, a multiple of 1024: eight rows are 1024 bytes. One k16 step further is 32 bytes, 2 in the descriptor.
SM90_FN uint64_t swizzled_rows(uint32_t address) {
  return (uint64_t{1} << 62) | (uint64_t{1024 >> 4} << 32) | (uint64_t{1} << 16) | ((address & 0x3ffffu) >> 4);
}

// c as MmaSyncBf16's fragment, 16 rows a warp: c[4j..4j+3] are (row l/4, columns 8j + l%4*2, +1), (row l/4 + 8, the same columns).
// With `keep` false the old c is taken as zero.
template <int N>
struct Wgmma;

// The text and the constraints of the first 8, 16, ... registers of c.
// clang-format off
#define INGOT_TEXT_1 "%0,%1,%2,%3,%4,%5,%6,%7"
#define INGOT_TEXT_2 INGOT_TEXT_1 "," "%8,%9,%10,%11,%12,%13,%14,%15"
#define INGOT_TEXT_3 INGOT_TEXT_2 "," "%16,%17,%18,%19,%20,%21,%22,%23"
#define INGOT_TEXT_4 INGOT_TEXT_3 "," "%24,%25,%26,%27,%28,%29,%30,%31"
#define INGOT_TEXT_5 INGOT_TEXT_4 "," "%32,%33,%34,%35,%36,%37,%38,%39"
#define INGOT_TEXT_6 INGOT_TEXT_5 "," "%40,%41,%42,%43,%44,%45,%46,%47"
#define INGOT_TEXT_7 INGOT_TEXT_6 "," "%48,%49,%50,%51,%52,%53,%54,%55"
#define INGOT_TEXT_8 INGOT_TEXT_7 "," "%56,%57,%58,%59,%60,%61,%62,%63"
#define INGOT_TEXT_9 INGOT_TEXT_8 "," "%64,%65,%66,%67,%68,%69,%70,%71"
#define INGOT_TEXT_10 INGOT_TEXT_9 "," "%72,%73,%74,%75,%76,%77,%78,%79"
#define INGOT_TEXT_11 INGOT_TEXT_10 "," "%80,%81,%82,%83,%84,%85,%86,%87"
#define INGOT_TEXT_12 INGOT_TEXT_11 "," "%88,%89,%90,%91,%92,%93,%94,%95"
#define INGOT_TEXT_13 INGOT_TEXT_12 "," "%96,%97,%98,%99,%100,%101,%102,%103"
#define INGOT_TEXT_14 INGOT_TEXT_13 "," "%104,%105,%106,%107,%108,%109,%110,%111"
#define INGOT_TEXT_15 INGOT_TEXT_14 "," "%112,%113,%114,%115,%116,%117,%118,%119"
#define INGOT_TEXT_16 INGOT_TEXT_15 "," "%120,%121,%122,%123,%124,%125,%126,%127"
// clang-format on
#define INGOT_EIGHT(i) \
  "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]), "+f"(c[i + 6]), "+f"(c[i + 7])
#define INGOT_REGISTERS_1 INGOT_EIGHT(0)
#define INGOT_REGISTERS_2 INGOT_REGISTERS_1, INGOT_EIGHT(8)
#define INGOT_REGISTERS_3 INGOT_REGISTERS_2, INGOT_EIGHT(16)
#define INGOT_REGISTERS_4 INGOT_REGISTERS_3, INGOT_EIGHT(24)
#define INGOT_REGISTERS_5 INGOT_REGISTERS_4, INGOT_EIGHT(32)
#define INGOT_REGISTERS_6 INGOT_REGISTERS_5, INGOT_EIGHT(40)
#define INGOT_REGISTERS_7 INGOT_REGISTERS_6, INGOT_EIGHT(48)
#define INGOT_REGISTERS_8 INGOT_REGISTERS_7, INGOT_EIGHT(56)
#define INGOT_REGISTERS_9 INGOT_REGISTERS_8, INGOT_EIGHT(64)
#define INGOT_REGISTERS_10 INGOT_REGISTERS_9, INGOT_EIGHT(72)
#define INGOT_REGISTERS_11 INGOT_REGISTERS_10, INGOT_EIGHT(80)
#define INGOT_REGISTERS_12 INGOT_REGISTERS_11, INGOT_EIGHT(88)
#define INGOT_REGISTERS_13 INGOT_REGISTERS_12, INGOT_EIGHT(96)
#define INGOT_REGISTERS_14 INGOT_REGISTERS_13, INGOT_EIGHT(104)
#define INGOT_REGISTERS_15 INGOT_REGISTERS_14, INGOT_EIGHT(112)
#define INGOT_REGISTERS_16 INGOT_REGISTERS_15, INGOT_EIGHT(120)
// N, N / 16, and the numbers of the operands behind c: a's four, the descriptor, keep.
#define INGOT_WGMMA(N, SIXTEENS, A0, A1, A2, A3, B, KEEP)                                              \
  template <>                                                                                          \
  struct Wgmma<N> {                                                                                    \
    SM90_FN static void run(float (&c)[N / 2], const uint32_t* a, uint64_t b, bool keep = true) {      \
      asm volatile("{\n.reg .pred keep;\nsetp.ne.b32 keep, %" #KEEP                                    \
                   ", 0;\n"                                                                            \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" INGOT_TEXT_##SIXTEENS  \
                   "}, {%" #A0 ",%" #A1 ",%" #A2 ",%" #A3 "}, %" #B ", keep, 1, 1, 0;\n}"              \
                   : INGOT_REGISTERS_##SIXTEENS                                                        \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(keep))); \
    }                                                                                                  \
  };
INGOT_WGMMA(16, 1, 8, 9, 10, 11, 12, 13)
INGOT_WGMMA(32, 2, 16, 17, 18, 19, 20, 21)
INGOT_WGMMA(48, 3, 24, 25, 26, 27, 28, 29)
INGOT_WGMMA(64, 4, 32, 33, 34, 35, 36, 37)
INGOT_WGMMA(96, 6, 48, 49, 50, 51, 52, 53)
INGOT_WGMMA(128, 8, 64, 65, 66, 67, 68, 69)
INGOT_WGMMA(144, 9, 72, 73, 74, 75, 76, 77)
INGOT_WGMMA(160, 10, 80, 81, 82, 83, 84, 85)
INGOT_WGMMA(192, 12, 96, 97, 98, 99, 100, 101)
INGOT_WGMMA(224, 14, 112, 113, 114, 115, 116, 117)
INGOT_WGMMA(256, 16, 128, 129, 130, 131, 132, 133)
#undef INGOT_WGMMA
#undef INGOT_EIGHT
#undef INGOT_TEXT_1
#undef INGOT_REGISTERS_1
#undef INGOT_TEXT_2
#undef INGOT_REGISTERS_2
#undef INGOT_TEXT_3
#undef INGOT_REGISTERS_3
#undef INGOT_TEXT_4
#undef INGOT_REGISTERS_4
#undef INGOT_TEXT_5
#undef INGOT_REGISTERS_5
#undef INGOT_TEXT_6
#undef INGOT_REGISTERS_6
#undef INGOT_TEXT_7
#undef INGOT_REGISTERS_7
#undef INGOT_TEXT_8
#undef INGOT_REGISTERS_8
#undef INGOT_TEXT_9
#undef INGOT_REGISTERS_9
#undef INGOT_TEXT_10
#undef INGOT_REGISTERS_10
#undef INGOT_TEXT_11
#undef INGOT_REGISTERS_11
#undef INGOT_TEXT_12
#undef INGOT_REGISTERS_12
#undef INGOT_TEXT_13
#undef INGOT_REGISTERS_13
#undef INGOT_TEXT_14
#undef INGOT_REGISTERS_14
#undef INGOT_TEXT_15
#undef INGOT_REGISTERS_15
#undef INGOT_TEXT_16
#undef INGOT_REGISTERS_16

}  // namespace ingot::kernels::sm90

#endif
