// Pictures as SVG text, without scripts: heat maps, films of them, line charts.
#pragma once

#include <tapedeck/core/error.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tapedeck {

// A (rows, cols) matrix of weights in row-major order, with a label for each row and column (or none at all). 0 is
// viridis' dark end, the largest weight (but at least `full`) its bright end; NaN is grey.
struct HeatMap {
  int64_t rows, cols;                                         // at least 1
  std::vector<double> weights;                                // rows * cols
  std::vector<std::string> row_labels = {}, col_labels = {};  // at the left, above
  std::string title = {};                                     // above all; not drawn where empty
  double full = 0;                                            // the bright end, unless a weight is larger
};

// One square a weight; its tooltip has its labels and its value, a bar at the right the scale. Throws unless
// weights.size() = rows * cols, both at least 1, the labels fit, and no weight is negative or infinite.
std::string svg_heat_map(const HeatMap& map);

// Maps of one size, with the labels of the first and their own titles, shown one after the other, the last one for
// longer, again and again (SMIL). Where nothing moves (print, a viewer without SMIL) the last one is seen. One scale
// for all. Throws as above, without any frame, and unless the sizes agree.
std::string svg_film(std::span<const HeatMap> frames, double seconds_per_frame = 0.2);

// The same frames as data:
//   {"schema": "tapedeck-film/1", "rows": [labels], "columns": [labels],
//    "frames": [{"title": "step 1", "weights": [[..], ..]}, ...]}         NaN is null
std::string json_film(std::span<const HeatMap> frames);

// One line of a chart.
struct Series {
  std::string name;          // in the legend
  std::vector<double> x, y;  // its points, as many of each
};

// The scale of an axis.
enum class Axis { linear, logarithmic };

// Settings of svg_line_chart.
struct ChartOptions {
  std::string title = {}, x_label = {}, y_label = {};  // not drawn where empty
  Axis x_axis = Axis::linear, y_axis = Axis::linear;   // scales
  int width = 640, height = 400;                       // in pixels
};

// Lines through the points of each series in their order, axes with round ticks, a legend. A point that is not finite,
// or not positive on a logarithmic axis, breaks its line. Throws where x and y differ in size, or on a picture smaller
// than 200 x 150.
std::string svg_line_chart(std::span<const Series> series, const ChartOptions& options = {});

// Text between tags or in quotes: & < > " ' are escaped, what XML 1.0 forbids becomes U+FFFD.
std::string xml_escaped(std::string_view text);

}  // namespace tapedeck
