#include <tapedeck/models/color.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

namespace tapedeck {

Rgb viridis(double t) {
  static constexpr std::array<Rgb, 17> steps = {{{68, 1, 84},
                                                 {72, 24, 106},
                                                 {71, 45, 123},
                                                 {66, 64, 134},
                                                 {59, 82, 139},
                                                 {51, 99, 141},
                                                 {44, 114, 142},
                                                 {38, 130, 142},
                                                 {33, 145, 140},
                                                 {31, 160, 136},
                                                 {40, 174, 128},
                                                 {63, 188, 115},
                                                 {94, 201, 98},
                                                 {132, 212, 75},
                                                 {173, 220, 48},
                                                 {216, 226, 25},
                                                 {253, 231, 37}}};
  const double place = std::clamp(t, 0.0, 1.0) * static_cast<double>(steps.size() - 1);
  const size_t i = std::min(static_cast<size_t>(place), steps.size() - 2);
  const double f = place - static_cast<double>(i);
  auto mix = [f](int a, int b) { return static_cast<int>(std::lround(a + f * (b - a))); };
  return {mix(steps[i].r, steps[i + 1].r), mix(steps[i].g, steps[i + 1].g), mix(steps[i].b, steps[i + 1].b)};
}

}  // namespace tapedeck
