// A tape as text for other tools, and answers about it. Values and gradients need Tape tape(Trace::on).
#pragma once

#include <tapedeck/core/tape.h>

#include <string>

namespace tapedeck {

// Graphviz' language: a box for each node with op and shape, clusters for scopes, parameters as chips beside the node
// that reads them. `fold` > 0 draws scopes at that depth and deeper as one box each, with the number of nodes inside.
std::string to_dot(const Tape& tape, int fold = 0);

// One JSON object:
//   {"schema": "tapedeck-tape/1",
//    "nodes": [{"id": 0, "op": "leaf", "scope": "encoder/layer[0]", "inputs": [..ids], "dtype": "f32", "shape": [..],
//               "site": {"file": "..", "line": 1}, "user_site": {...}            null where unknown
//               "strides": [..], "value": [..], "gradient": [..],                row-major; with Trace::on
//               "saved": [{"what": "output" or "input", "shape": [..], "bytes": 8}], "contributions": [[..], ..]},
//               ...]}
// Numbers that JSON lacks are the strings "nan", "inf", "-inf". Absent gradients and contributions are null.
std::string to_json(const Tape& tape);

// Why the gradient of a node in the last backward pass is what it is: absent (no path leads to the node that was
// differentiated, and where the paths end), zero or NaN or Inf (and the rules that made it out of a good gradient, with
// the ranges of values they saw), or plain. Needs Trace::on.
std::string explain_gradient(const Tape& tape, uint32_t id);

}  // namespace tapedeck
