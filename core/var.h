// Var: a value and its place on a tape. Operand: what public functions take. Parameter: a trained value with identity.
#pragma once

#include <tapedeck/core/tensor.h>

namespace tapedeck {

// A place in the source code.
struct Site {
  const char* file = nullptr;  // null: not known
  int line = 0;                // counted from 1
};

class Parameter;
class Tape;

namespace detail {
// While set, every copy of a Var on this thread adds its value: how a traced tape learns what a rule has captured.
extern constinit thread_local std::vector<Tensor>* copied_values;
}  // namespace detail

// A tensor that may be on a tape. A Tensor converts to a constant Var. Cheap to copy.
class Var {
 public:
  Var() = default;                  // undefined
  Var(Tensor value);                // a constant
  Var(const Parameter& parameter);  // its leaf on the recording tape; a constant where nothing records
  Var(const Var& other) : value_(other.value_), tape_(other.tape_), id_(other.id_), version_(other.version_) {
    if (detail::copied_values) [[unlikely]]
      note_copy();
  }
  Var(Var&& other) noexcept = default;
  Var& operator=(const Var& other) = default;
  Var& operator=(Var&& other) noexcept = default;
  ~Var() = default;

  bool defined() const { return value_.defined(); }  // it has a value
  // Throws if the value was changed in place since this Var was made: a gradient computed from it would be wrong.
  const Tensor& value() const {
    if (value_.version() != version_) changed_in_place();
    return value_;
  }

  // The tensor's.
  const Shape& shape() const { return value_.shape(); }
  int rank() const { return value_.rank(); }
  int64_t size(int64_t dim) const { return value_.size(dim); }
  int64_t numel() const { return value_.numel(); }
  DType dtype() const { return value_.dtype(); }

  double item() const { return value().item(); }  // the only element as a double, without history

  bool tracked() const { return tape_ != 0; }  // has a place on a tape
  // The same value as a constant. Shares memory: a later in-place write to either is noticed by the other's tape.
  Var detach() const { return Var(value()); }

 private:
  friend class Tape;
  friend class Gradients;
  Var(Tensor value, uint64_t tape, uint32_t id);
  [[noreturn]] void changed_in_place() const;
  void note_copy() const;

  Tensor value_;
  uint64_t tape_ = 0;  // serial number of the tape, never reused; 0: a constant
  uint32_t id_ = 0;
  uint32_t version_ = 0;
};

// A trained tensor with identity: a handle to one counted object. Copying the handle (or a module) shares the
// parameter, assignment ties it to another, clone(module) copies it. Tapes and gradients key on the identity.
class Parameter {
 public:
  Parameter() = default;  // absent
  explicit Parameter(Tensor value);
  Parameter(const Parameter& other);
  Parameter(Parameter&& other) noexcept : state_(std::exchange(other.state_, nullptr)) {}
  Parameter& operator=(Parameter other) noexcept {
    std::swap(state_, other.state_);
    return *this;
  }
  ~Parameter();

  bool defined() const { return state_ != nullptr; }  // not absent; everything below throws where it is

  // The tensor, and what it has.
  const Tensor& value() const { return state().value; }
  const Shape& shape() const { return value().shape(); }
  DType dtype() const { return value().dtype(); }

  // For initialisers and optimisers; every holder of the identity sees the change.
  Tensor& mutable_value() const { return state().value; }
  uint64_t id() const { return state().id; }  // never reused

 private:
  struct State {
    std::atomic<uint32_t> refs{1};
    uint64_t id;
    Tensor value;
  };
  State& state() const {
    if (!state_) absent();
    return *state_;
  }
  [[noreturn]] static void absent();

  State* state_ = nullptr;
};

// A parameter and its path in a module, as in PyTorch's state_dict: "decoder_cell.weight_ih".
struct NamedParameter {
  std::string name;     // the path
  Parameter parameter;  // the handle
};

// Identities of all live parameters, ascending: lets a test compare parameters made with parameters listed.
std::vector<uint64_t> live_parameters();

// An argument of an op: Var, Tensor, Parameter or number, and the line of code where it was written down.
class Operand {
 public:
  Operand(const Var& var, const char* file = __builtin_FILE(), int line = __builtin_LINE())
      : var_(&var), site_{file, line} {}
  Operand(const Tensor& value, const char* file = __builtin_FILE(), int line = __builtin_LINE())
      : own_(value), var_(&own_), site_{file, line} {}
  Operand(const Parameter& parameter, const char* file = __builtin_FILE(), int line = __builtin_LINE())
      : own_(parameter), var_(&own_), site_{file, line} {}
  template <Number T>
  Operand(T number, const char* file = __builtin_FILE(), int line = __builtin_LINE())
      : number_(number), site_{file, line} {}
  Operand(const Operand& other)
      : own_(other.own_),
        var_(other.var_ == &other.own_ ? &own_ : other.var_),
        number_(other.number_),
        site_(other.site_) {}
  Operand& operator=(const Operand&) = delete;

  bool is_number() const { return var_ == nullptr; }  // and not yet made a Var
  const Scalar& number() const { return number_; }    // what was written down; 0 for anything else
  const Var& var() const {                            // a lone number becomes a rank-0 f32 constant
    if (!var_) materialise(DType::f32);
    return *var_;
  }
  // A number takes the dtype of what it is combined with; a fractional number beside i64 throws, naming the op.
  const Var& var_like(const char* op, DType dtype) const;
  operator const Var&() const { return var(); }

  // Those of var().
  const Tensor& value() const { return var().value(); }
  const Shape& shape() const { return var().shape(); }
  int rank() const { return var().rank(); }
  int64_t size(int64_t dim) const { return var().size(dim); }
  int64_t numel() const { return var().numel(); }
  DType dtype() const { return var().dtype(); }

  Site site() const { return site_; }  // where it was written down

 private:
  void materialise(DType dtype) const;

  mutable Var own_;
  mutable const Var* var_ = nullptr;
  Scalar number_;
  Site site_;
};

// The vector-space ops that the engine itself needs; the others are in ops/.

// y = a + b with broadcasting. f32, f64 or i64, dtypes equal.
Var add(Operand a, Operand b);
inline Var operator+(Operand a, Operand b) { return add(a, b); }

// Sum of x over the axes along which `shape` was broadcast to x's shape. Throws if `shape` does not broadcast to it.
Var sum_to(Operand x, const Shape& shape);

// x repeated to `shape` (a view; NumPy broadcasting). Throws if x does not broadcast to it.
Var broadcast_to(Operand x, const Shape& shape);

// The two operands of an elementwise op: numbers take the other's dtype; mixed dtypes throw, naming both.
struct OperandPair {
  const Var& a;  // the first, ready to compute with
  const Var& b;  // the second
};
OperandPair same_dtype(const char* op, const Operand& a, const Operand& b);

}  // namespace tapedeck
