// The safetensors file format: a header of names, dtypes, shapes and offsets in JSON, then the raw elements. PyTorch,
// NumPy and JAX read and write it.
//
// A file holds its own CRC-32 in the metadata and is read whole or not at all; writing replaces a file in one step.
#pragma once

#include <tapedeck/nn/module.h>

#include <map>
#include <string>

namespace tapedeck {

// A file's contents.
struct TensorFile {
  NamedTensors tensors;                         // in the file's order
  std::map<std::string, std::string> metadata;  // text by name
  bool has_crc = false;  // read: the file was written by this library, so that flipped bits would have been noticed
};

// Reads and checks the file before anything is returned: its length, the header, every name, dtype, shape and offset,
// and the checksum where there is one. dtypes F32, F64, I64 and BOOL. Throws, naming the file and the reason; for a
// dtype of another kind the tensor too.
TensorFile read_safetensors(const std::string& path);

// Writes the tensors (names and metadata in UTF-8, names different, f32, f64, i64 or boolean of any strides) with a
// checksum. The file is written beside `path` under another name, flushed to disk and renamed, so that after a crash at
// any moment `path` is the old file or the new one, whole. Metadata keys that begin with "tapedeck." are the library's.
// Throws, naming the step that failed and the system's reason; then the old file is as it was.
void write_safetensors(const std::string& path, const TensorFile& file);

}  // namespace tapedeck
