// Native forms for the H200 of the router and of the sort by expert, alone and as one kernel: launch descriptions, no device code. The
// results are those of router.kernel.h and permute.kernel.h, bit for bit; they depend on nothing but the inputs.
#pragma once

#include <cstdint>

#include "kernels/params.h"

namespace ingot::kernels::sm90 {

inline constexpr int kRouteExperts = 256;  // at most: a lane has eight of them
inline constexpr int kRouteChoices = 32;   // at most: a lane has one
inline constexpr int kRouterWarps = 4;
inline constexpr int kSortBlocks = 8, kSortWarps = 32;  // of a cluster
inline constexpr int kRouteFewWarps = 8;

inline bool route_supported(int64_t num_tokens, int64_t num_experts, int64_t k) {
  return num_experts <= kRouteExperts && k <= kRouteChoices && num_tokens * k < (int64_t{1} << 31) - (1 << 20);
}

// ingot_Sm90Router: a warp a token.
struct Sm90RouterParams {
  RouterParams op;
  Grid grid() const { return {(op.num_tokens + kRouterWarps - 1) / kRouterWarps, kRouterWarps * 32}; }
};
inline bool router_supported(const RouterParams& p) { return route_supported(p.num_tokens, p.num_experts, p.k); }

// ingot_Sm90Permute: one cluster of blocks, each of which sorts its part and looks at how many pairs of each expert the others have.
struct Sm90PermuteParams {
  PermuteParams op;
  Grid grid() const { return {kSortBlocks, kSortWarps * 32}; }
};
inline bool permute_supported(const PermuteParams& p) { return route_supported(p.num_tokens, p.num_experts, p.k); }

// Both in one launch: ingot_Sm90RouteFew in one block, ingot_Sm90RouteMany in one cluster. The second takes any number of tokens, and
// pays up to kMaxTokens: beyond, a cluster is too little of the machine for the router's part.
struct Sm90RouteParams {
  static constexpr int64_t kFewTokens = 2 * kRouteFewWarps, kMaxTokens = kSortBlocks * kSortWarps;
  RouterParams router;
  PermuteParams permute;  // of router.experts
  bool few() const { return router.num_tokens <= kFewTokens; }
  Grid grid() const { return few() ? Grid{1, kRouteFewWarps * 32} : Grid{kSortBlocks, kSortWarps * 32}; }
};
inline bool route_supported(const RouterParams& router, const PermuteParams& permute) {
  return router_supported(router) && permute_supported(permute) && router.num_tokens <= Sm90RouteParams::kMaxTokens;
}

}  // namespace ingot::kernels::sm90
