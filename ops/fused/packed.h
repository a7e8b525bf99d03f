// Rows of unequal length laid out step by step, without their pads: what recurrent kernels run over. Internal.
//
//   order    rows by falling length; equal lengths keep their order
//   active   rows that have a token at step t: the first active[t] of `order`
//   first    where step t begins; step t of row order[k] is packed row first[t] + k
#pragma once

#include <tapedeck/core/storage.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>

namespace tapedeck::fused {

struct Packed {
  CachedVector<int64_t> order, active, first;
  int64_t total = 0;  // valid (row, step) pairs

  Packed(std::span<const int64_t> lengths, int64_t T)
      : order(lengths.size()), active(static_cast<size_t>(T), 0), first(static_cast<size_t>(T), 0) {
    std::iota(order.begin(), order.end(), int64_t{0});
    auto length = [&](int64_t row) { return lengths[static_cast<size_t>(row)]; };
    std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {  // stable_sort would ask for memory
      return length(a) != length(b) ? length(a) > length(b) : a < b;
    });
    for (int64_t n : lengths) {
      for (int64_t t = 0; t < n; ++t) ++active[static_cast<size_t>(t)];
    }
    for (size_t t = 0; t < active.size(); ++t) {
      first[t] = total;
      total += active[t];
    }
  }

  int64_t steps() const { return static_cast<int64_t>(active.size()); }
  int64_t rows_at(int64_t t) const { return t < 0 || t >= steps() ? 0 : active[static_cast<size_t>(t)]; }
  int64_t row(int64_t k) const { return order[static_cast<size_t>(k)]; }
  int64_t begin_of(int64_t t) const { return first[static_cast<size_t>(t)]; }

  // f(packed row, row, step) for all valid pairs, in packed order.
  template <class F>
  void for_each(F&& f) const {
    int64_t at = 0;
    for (int64_t t = 0; t < steps(); ++t) {
      for (int64_t k = 0; k < active[static_cast<size_t>(t)]; ++k) f(at++, order[static_cast<size_t>(k)], t);
    }
  }
};

}  // namespace tapedeck::fused
