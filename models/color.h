// The colours of heat maps. Internal: for .cpp files.
#pragma once

namespace tapedeck {

struct Rgb {
  int r, g, b;  // 0..255
};

// matplotlib's viridis at t in [0, 1], from dark to bright: sixteen even steps, mixed linearly.
Rgb viridis(double t);

}  // namespace tapedeck
