// Pictures: that they are well-formed XML, show what they were given, and refuse what does not fit.
#include "testing.h"

#include <tapedeck/models/svg.h>

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

using namespace tapedeck;
using namespace tapedeck::testing;

namespace {

using Labels = std::vector<std::string>;

struct Element {
  std::string name, text;  // text: of the element itself, entities resolved
  std::map<std::string, std::string> attributes;
  std::vector<size_t> children;

  double number(const std::string& key) const { return std::stod(attributes.at(key)); }
};

// A checker of the XML that the writer makes: nested elements with attributes and text. Fails the test on anything
// that is not well-formed.
class Xml {
 public:
  explicit Xml(const std::string& text) : text_(text) {
    std::vector<size_t> open;
    while (at_ < text_.size()) {
      if (text_[at_] != '<') {
        const std::string piece = resolved(text_.substr(at_, text_.find('<', at_) - at_));
        at_ = std::min(text_.find('<', at_), text_.size());
        if (!open.empty())
          elements[open.back()].text += piece;
        else
          REQUIRE(piece.find_first_not_of(" \n") == std::string::npos);
        continue;
      }
      ++at_;
      if (text_[at_] == '/') {
        ++at_;
        REQUIRE_FALSE(open.empty());
        REQUIRE(name() == elements[open.back()].name);
        REQUIRE(text_[at_++] == '>');
        open.pop_back();
        continue;
      }
      Element element;
      element.name = name();
      while (text_[at_] == ' ') {
        ++at_;
        const std::string key = name();
        REQUIRE(text_.substr(at_, 2) == "=\"");
        const size_t end = text_.find('"', at_ + 2);
        REQUIRE(end != std::string::npos);
        const std::string value = text_.substr(at_ + 2, end - at_ - 2);
        REQUIRE(value.find('<') == std::string::npos);
        REQUIRE(element.attributes.emplace(key, resolved(value)).second);
        at_ = end + 1;
      }
      const bool closed = text_[at_] == '/';
      at_ += closed;
      REQUIRE(text_[at_++] == '>');
      REQUIRE((elements.empty() || !open.empty()));  // one root
      if (!open.empty()) elements[open.back()].children.push_back(elements.size());
      if (!closed) open.push_back(elements.size());
      elements.push_back(element);
    }
    REQUIRE(open.empty());
    REQUIRE_FALSE(elements.empty());
    REQUIRE(elements[0].name == "svg");
    for (const Element& e : elements) {
      REQUIRE(e.name != "script");
      for (const auto& [key, value] : e.attributes) {
        REQUIRE_FALSE(key.starts_with("on"));
        REQUIRE(value.find("nan") == std::string::npos);
      }
    }
  }

  std::vector<Element> all(const std::string& name, const std::string& cls = "") const {
    std::vector<Element> found;
    for (const Element& e : elements) {
      if (e.name == name && (cls.empty() || (e.attributes.count("class") && e.attributes.at("class") == cls)))
        found.push_back(e);
    }
    return found;
  }
  std::set<std::string> texts() const {
    std::set<std::string> found;
    for (const Element& e : all("text")) found.insert(e.text);
    return found;
  }
  const Element& child(const Element& parent, size_t i) const { return elements.at(parent.children.at(i)); }

  std::vector<Element> elements;

 private:
  std::string name() {
    const size_t start = at_;
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) || text_[at_] == '-')) ++at_;
    REQUIRE(at_ > start);
    return text_.substr(start, at_ - start);
  }
  static std::string resolved(const std::string& text) {
    static const std::map<std::string, char> known = {
        {"&amp;", '&'}, {"&lt;", '<'}, {"&gt;", '>'}, {"&quot;", '"'}, {"&#39;", '\''}};
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
      REQUIRE(text[i] != '>');
      if (text[i] != '&') {
        out += text[i];
        continue;
      }
      const size_t end = text.find(';', i);
      REQUIRE(end != std::string::npos);
      REQUIRE(known.count(text.substr(i, end - i + 1)) == 1);
      out += known.at(text.substr(i, end - i + 1));
      i = end;
    }
    return out;
  }

  std::string text_;
  size_t at_ = 0;
};

std::vector<std::string> split(const std::string& text, char by) {
  std::vector<std::string> parts(1);
  for (char c : text) {
    if (c == by)
      parts.emplace_back();
    else
      parts.back() += c;
  }
  return parts;
}

HeatMap small() { return {2, 3, {0, .5, 1, .25, .75, .125}, {"row a", "b"}, {"x", "y", "end"}, "weights", 1}; }

}  // namespace

TEST_SUITE("svg") {
TEST_CASE("svg: escapes what XML keeps for itself and replaces what it forbids") {
  CHECK(xml_escaped("a<b> & \"c\" 'd'") == "a&lt;b&gt; &amp; &quot;c&quot; &#39;d&#39;");
  CHECK(xml_escaped("Grüße \xE2\x86\x92 \xF0\x9F\x8E\xB5\t\n") == "Grüße \xE2\x86\x92 \xF0\x9F\x8E\xB5\t\n");
  const std::string bad = "\xEF\xBF\xBD";
  CHECK(xml_escaped(std::string("a\0b\x1b", 4)) == "a" + bad + "b" + bad);
  CHECK(xml_escaped("\xC3") == bad);
  CHECK(xml_escaped("\xC0\xAF") == bad + bad);          // overlong
  CHECK(xml_escaped("\xED\xA0\x80").size() == 9);       // a surrogate
  CHECK(xml_escaped("\xF4\x90\x80\x80").size() == 12);  // above U+10FFFF
  CHECK(xml_escaped("\xE2\x86") == bad + bad);
  CHECK(xml_escaped("\xEF\xBF\xBE").size() == 9);  // U+FFFE
  CHECK(xml_escaped("").empty());
}

TEST_CASE("svg: a heat map has a square and a tooltip for each weight and all labels") {
  const Xml svg(svg_heat_map(small()));
  const std::vector<Element> cells = svg.all("rect", "cell");
  REQUIRE(cells.size() == 6);
  for (size_t k = 0; k < 6; ++k) {
    CHECK(cells[k].number("x") == cells[k % 3].number("x"));
    CHECK(cells[k].number("y") == cells[k / 3 * 3].number("y"));
    CHECK(cells[k].number("x") + cells[k].number("width") <= svg.elements[0].number("width"));
    CHECK(cells[k].number("y") + cells[k].number("height") <= svg.elements[0].number("height"));
  }
  CHECK(cells[0].number("x") < cells[1].number("x"));
  CHECK(cells[0].number("y") < cells[3].number("y"));
  CHECK(cells[0].attributes.at("fill") == "#440154");
  CHECK(cells[1].attributes.at("fill") == "#21918c");
  CHECK(cells[2].attributes.at("fill") == "#fde725");
  CHECK(svg.child(cells[2], 0).name == "title");
  CHECK(svg.child(cells[2], 0).text == "row a, end: 1");
  CHECK(svg.child(cells[5], 0).text == "b, end: 0.125");
  const std::set<std::string> texts = svg.texts();
  for (const char* text : {"weights", "row a", "b", "x", "y", "end", "0", "1"})
    CHECK_MESSAGE(texts.count(text) == 1, std::string(text));
}

TEST_CASE("svg: a heat map scales by its largest weight and greys NaN and needs no labels") {
  HeatMap map{1, 3, {.1, .2, not_a_number}};
  const Xml svg(svg_heat_map(map));
  const std::vector<Element> cells = svg.all("rect", "cell");
  REQUIRE(cells.size() == 3);
  CHECK(cells[0].attributes.at("fill") == "#21918c");
  CHECK(cells[1].attributes.at("fill") == "#fde725");
  CHECK(cells[2].attributes.at("fill") == "#bbb");
  CHECK(svg.child(cells[0], 0).text == "0.1");
  CHECK(svg.child(cells[2], 0).text == "nan");
  CHECK(svg.texts() == std::set<std::string>{"0", "0.2"});
  const Xml zeros(svg_heat_map({1, 1, {0}}));
  CHECK(zeros.all("rect", "cell")[0].attributes.at("fill") == "#440154");
}

TEST_CASE("svg: labels of any text stay inside the picture") {
  HeatMap map = small();
  map.row_labels = {"<a & \"b\">", "Straße"};
  map.col_labels = {"'quoted'", "a long label", "\x01"};
  map.title = "x < y && y > z: a title that is longer than the squares beneath it are wide";
  const Xml svg(svg_heat_map(map));
  CHECK(svg.texts().count("<a & \"b\">") == 1);
  CHECK(svg.texts().count(map.title) == 1);
  CHECK(svg.texts().count("\xEF\xBF\xBD") == 1);
  CHECK(svg.elements[0].number("width") > 8.0 * static_cast<double>(map.title.size()));
  CHECK(svg.all("rect", "cell")[0].number("y") > 8.0 * 12);  // the long column label stands above
  CHECK(svg.child(svg.all("rect", "cell")[0], 0).text == "<a & \"b\">, 'quoted': 0");
}

TEST_CASE("svg: a heat map names what does not fit") {
  auto with = [](auto change) {
    HeatMap map = small();
    change(map);
    return error_of([&] { svg_heat_map(map); });
  };
  CHECK(with([](HeatMap& m) { m.weights.pop_back(); }) == "svg_heat_map: expected 2 x 3 weights, got 5");
  CHECK(with([](HeatMap& m) { m.rows = 3; }) == "svg_heat_map: expected 3 x 3 weights, got 6");
  CHECK(with([](HeatMap& m) { m.rows = int64_t{1} << 62; }).starts_with("svg_heat_map: expected"));
  CHECK(with([](HeatMap& m) { m.rows = 0, m.weights = {}; }) ==
        "svg_heat_map: expected sizes of at least 1, got (0, 3)");
  CHECK(with([](HeatMap& m) { m.row_labels.pop_back(); }) == "svg_heat_map: expected 2 row labels, got 1");
  CHECK(with([](HeatMap& m) { m.col_labels.push_back("z"); }) == "svg_heat_map: expected 3 column labels, got 4");
  CHECK(with([](HeatMap& m) { m.weights[4] = -1; }) ==
        "svg_heat_map: expected weights of at least 0, got -1 at (1, 1)");
  CHECK(says(with([](HeatMap& m) { m.weights[2] = inf; }), {"got inf at (0, 2)"}));
}

TEST_CASE("svg: a film runs through its frames and rests on the last") {
  std::vector<HeatMap> frames(3, small());
  frames[0].weights = {1, 0, 0, 1, 0, 0};
  frames[1].weights = {.5, .5, 0, .5, .5, 0};
  frames[2].weights = {0, 0, 1, 0, not_a_number, 1};
  frames[0].title = "step 1", frames[1].title = "step <2>", frames[2].title = "step 10";
  const Xml svg(svg_film(frames, .5));
  const std::vector<Element> cells = svg.all("rect", "cell");
  REQUIRE(cells.size() == 6);
  CHECK(cells[0].attributes.at("fill") == "#440154");  // what print shows
  CHECK(cells[4].attributes.at("fill") == "#bbb");
  for (const Element& square : cells) {
    const Element& animate = svg.child(square, 1);
    REQUIRE(animate.name == "animate");
    CHECK(animate.attributes.at("attributeName") == "fill");
    CHECK(split(animate.attributes.at("values"), ';').size() == 3);
    CHECK(animate.attributes.at("keyTimes") == "0;0.25;0.5");
    CHECK(animate.attributes.at("dur") == "2s");
    CHECK(animate.attributes.at("calcMode") == "discrete");
  }
  CHECK(svg.child(cells[0], 1).attributes.at("values") == "#fde725;#21918c;#440154");
  std::vector<Element> titles;
  for (const Element& text : svg.all("text")) {
    if (text.attributes.count("visibility")) titles.push_back(text);
  }
  REQUIRE(titles.size() == 3);
  CHECK(titles[1].text == "step <2>");
  CHECK(titles[1].attributes.at("visibility") == "hidden");
  CHECK(titles[2].attributes.at("visibility") == "visible");
  const auto times = [&](size_t k) { return svg.child(titles[k], 0).attributes.at("keyTimes"); };
  const auto shown = [&](size_t k) { return svg.child(titles[k], 0).attributes.at("values"); };
  CHECK(shown(0) == "visible;hidden");
  CHECK(times(0) == "0;0.25");
  CHECK(shown(1) == "hidden;visible;hidden");
  CHECK(times(1) == "0;0.25;0.5");
  CHECK(shown(2) == "hidden;visible");
  CHECK(times(2) == "0;0.5");
  CHECK(Xml(svg_film(std::vector{small()})).all("animate").empty());
}

TEST_CASE("svg: a film as JSON holds labels and frames") {
  std::vector<HeatMap> frames(2, small());
  frames[1].title = "later";
  frames[1].weights[5] = not_a_number;
  const nlohmann::json film = nlohmann::json::parse(json_film(frames));
  CHECK(film["schema"] == "tapedeck-film/1");
  CHECK(film["rows"].get<Labels>() == frames[0].row_labels);
  CHECK(film["columns"].get<Labels>() == frames[0].col_labels);
  REQUIRE(film["frames"].size() == 2);
  CHECK(film["frames"][0]["title"] == "weights");
  CHECK(film["frames"][0]["weights"].get<std::vector<std::vector<double>>>() ==
        std::vector<std::vector<double>>{{0, .5, 1}, {.25, .75, .125}});
  CHECK(film["frames"][1]["title"] == "later");
  CHECK(film["frames"][1]["weights"][1][2].is_null());
}

TEST_CASE("svg: a film names what does not fit") {
  std::vector<HeatMap> frames(2, small());
  CHECK(error_of([&] { svg_film({}); }) == "svg_film: expected at least one frame");
  CHECK(error_of([&] { json_film({}); }) == "json_film: expected at least one frame");
  CHECK(says(error_of([&] { svg_film(frames, 0); }), {"svg_film", "above 0", "got 0"}));
  frames[1] = {3, 2, {1, 2, 3, 4, 5, 6}};
  CHECK(error_of([&] { svg_film(frames); }) == "svg_film: frame 1 has size (3, 2), frame 0 (2, 3)");
  frames[1] = small();
  frames[1].weights.pop_back();
  CHECK(says(error_of([&] { json_film(frames); }), {"json_film", "2 x 3 weights", "got 5"}));
}

TEST_CASE("svg: a line chart has axes and ticks and a line for each series") {
  const std::vector<Series> series{{"loss <train>", {0, 50, 100}, {3, 1, .5}}, {"held out", {0, 100}, {2.9, .75}}};
  const Xml svg(svg_line_chart(series, {.title = "a & b", .x_label = "step", .y_label = "loss"}));
  CHECK(svg.elements[0].number("width") == 640);
  CHECK(svg.elements[0].number("height") == 400);
  const std::set<std::string> texts = svg.texts();
  for (const char* text : {"a & b", "step", "loss", "loss <train>", "held out", "0", "20", "100", "0.5", "1", "3"}) {
    CHECK_MESSAGE(texts.count(text) == 1, std::string(text));
  }
  const std::vector<Element> lines = svg.all("path", "series");
  REQUIRE(lines.size() == 2);
  CHECK(lines[0].attributes.at("stroke") != lines[1].attributes.at("stroke"));
  CHECK(svg.child(lines[0], 0).text == "loss <train>");
  // (0, 3) is at the left and the top of the axes, (100, .5) at the right.
  const std::vector<std::string> points = split(lines[0].attributes.at("d"), 'L');
  REQUIRE(points.size() == 3);
  CHECK(points[0] == "M74.00 52.00h0");
  CHECK(points[2].starts_with("616.00 "));
  CHECK(std::stod(split(points[2], ' ')[1]) > std::stod(split(points[1], ' ')[1]));
}

TEST_CASE("svg: what a chart cannot show breaks its line") {
  const Series gap{"gap", {1, 2, 3, 4, 5}, {1, 2, not_a_number, 2, inf}};
  const Xml svg(svg_line_chart(std::vector{gap}));
  const std::string path = svg.all("path", "series")[0].attributes.at("d");
  CHECK(std::count(path.begin(), path.end(), 'M') == 2);
  CHECK(std::count(path.begin(), path.end(), 'L') == 1);
  Xml(svg_line_chart({}));
  Xml(svg_line_chart(std::vector<Series>{{"empty", {}, {}}}));
  Xml(svg_line_chart(std::vector<Series>{{"point", {3}, {0}}}));
  Xml(svg_line_chart(std::vector<Series>{{"level", {1, 2}, {7, 7}}}));
  Xml(svg_line_chart(std::vector<Series>{{"nothing", {1}, {not_a_number}}}, {.y_axis = Axis::logarithmic}));
  Xml(svg_line_chart(std::vector<Series>{{"huge", {-1e300, 1e300}, {-1e-300, 1e-300}}}));
}

TEST_CASE("svg: logarithmic axes place decades evenly and leave out what is not positive") {
  const Series powers{"p", {0, 1, 10, 100}, {5, 1, .1, .01}};
  const Xml svg(svg_line_chart(std::vector{powers}, {.x_axis = Axis::logarithmic, .y_axis = Axis::logarithmic}));
  const std::vector<std::string> points = split(svg.all("path", "series")[0].attributes.at("d"), 'L');
  REQUIRE(points.size() == 3);
  CHECK(points[0].starts_with("M74.00 "));
  CHECK(std::stod(points[1]) == doctest::Approx((74 + 616) / 2.0));
  CHECK(std::stod(points[2]) == doctest::Approx(616));
  for (const char* tick : {"1", "2", "5", "10", "100", "0.1", "0.01"})
    CHECK_MESSAGE(svg.texts().count(tick) == 1, std::string(tick));
}

TEST_CASE("svg: a line chart names what does not fit") {
  CHECK(error_of([] {
          svg_line_chart(std::vector<Series>{{"loss", {1, 2}, {1}}});
        }) == "svg_line_chart: series 'loss' has 2 x and 1 y");
  CHECK(says(error_of([] { svg_line_chart({}, {.width = 100}); }), {"at least 200 x 150", "100 x 400"}));
}
}
