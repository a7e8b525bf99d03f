#include <tapedeck/core/error.h>

namespace tapedeck::detail {

void throw_error(const std::string& message) { throw Error(message); }

}  // namespace tapedeck::detail
