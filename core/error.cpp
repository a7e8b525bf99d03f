#include <tapedeck/core/error.h>

namespace tapedeck::detail {

void throw_error(std::string message) { throw Error(std::move(message)); }

}  // namespace tapedeck::detail
