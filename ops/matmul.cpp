#include <tapedeck/core/blas.h>
#include <tapedeck/core/kernels.h>
#include <tapedeck/ops/matmul.h>
#include <tapedeck/ops/reduce.h>
#include <tapedeck/ops/shape.h>

#include <algorithm>
#include <string>
#include <vector>

namespace tapedeck {
namespace {

template <class T>
blas::Matrix<T> matrix(const Tensor& x) {  // the last two axes
  int r = x.rank() - 2, c = x.rank() - 1;
  return {x.data<T>(), x.shape()[r], x.shape()[c], x.strides()[r], x.strides()[c]};
}

// x itself where CBLAS can read its matrices in place, else a dense copy.
Tensor readable(const Tensor& x) {
  bool ok = dispatch_floating("matmul", x.dtype(), [&]<class T> { return blas::readable(matrix<T>(x)); });
  return ok ? x : x.clone();
}

// (batch..., M, K) @ (batch..., K, N), leading axes broadcast.
Tensor batched_product(const char* op, const Tensor& a_in, const Tensor& b_in) {
  Tensor a = readable(a_in), b = readable(b_in);
  Shape batch_a, batch_b;
  for (int i = 0; i + 2 < a.rank(); ++i) batch_a.push_back(a.shape()[i]);
  for (int i = 0; i + 2 < b.rank(); ++i) batch_b.push_back(b.shape()[i]);
  Shape batch = broadcast_shapes(op, batch_a, batch_b), shape = batch;
  int64_t m = a.shape()[a.rank() - 2], n = b.shape()[b.rank() - 1];
  shape.push_back(m);
  shape.push_back(n);
  Tensor y = Tensor::empty(shape, a.dtype());
  auto batch_strides = [&](const Tensor& x) {  // of the leading axes, 0 along repeated ones
    Shape strides;
    int shift = batch.rank() - (x.rank() - 2);
    for (int i = 0; i < batch.rank(); ++i) {
      strides.push_back(i < shift || x.shape()[i - shift] != batch[i] ? 0 : x.strides()[i - shift]);
    }
    return strides;
  };
  kernels::Plan<2> plan(batch, {batch_strides(a), batch_strides(b)});
  dispatch_floating(op, a.dtype(), [&]<class T> {
    blas::Matrix<T> ma = matrix<T>(a), mb = matrix<T>(b);
    const T *start_a = ma.data, *start_b = mb.data;
    T* c = y.mutable_data<T>();
    plan.for_each_row([&](const auto& at) {
      for (int64_t i = 0; i < plan.inner_extent(); ++i) {
        ma.data = start_a + at[0] + i * plan.inner_stride(0);
        mb.data = start_b + at[1] + i * plan.inner_stride(1);
        blas::gemm<T>(ma, mb, T{0}, c);
        c += m * n;
      }
    });
  });
  return y;
}

void check_product(const char* op, const Operand& a, const Operand& b) {
  if (a.dtype() != b.dtype() || !is_floating(a.dtype())) {
    fail("{}: expected two floating tensors of one dtype, got {} {} and {} {}", op, a.dtype(), a.shape(), b.dtype(),
         b.shape());
  }
  int ra = a.rank(), rb = b.rank();
  int64_t inner_a = a.shape()[ra - 1], inner_b = b.shape()[rb >= 2 ? rb - 2 : 0];
  if (inner_a != inner_b) {
    bool transposed_fits = rb >= 2 && inner_a == b.shape()[rb - 1];
    fail("{}: inner sizes differ: a {}, b {}{}", op, a.shape(), b.shape(),
         transposed_fits ? fmt::format("; did you mean {}(a, transpose(b, {}, {}))?", op, rb - 2, rb - 1) : "");
  }
}

// (rows, last extent): all leading axes as one.
Var as_matrix(const Operand& x) {
  int64_t n = x.size(-1), rows = 1;
  for (int i = 0; i + 1 < x.rank(); ++i) rows *= x.shape()[i];
  return reshape(x, {rows, n});
}

// Both of rank >= 2.
Var product(const char* op, const Operand& a, const Operand& b) {
  return record(op, batched_product(op, a.value(), b.value()),
                Input{a, [b = b.var()](const Var& g) { return matmul(g, transpose(b)); }},
                Input{b, [a = a.var()](const Var& g) { return matmul(transpose(a), g); }});
}

}  // namespace

Var matmul(Operand a, Operand b) {
  if (a.rank() < 1 || b.rank() < 1) {
    fail("matmul: expected rank >= 1 on both sides, got a {}, b {}; multiply by a number with *", a.shape(), b.shape());
  }
  check_product("matmul", a, b);
  UserSite here(a.site().file ? a.site() : b.site());
  if (a.rank() == 1) return squeeze(matmul(unsqueeze(a, 0), b), b.rank() == 1 ? 0 : -2);
  if (b.rank() == 1) return squeeze(matmul(a, unsqueeze(b, 1)), -1);
  if (b.rank() == 2 && a.rank() > 2) {  // one product over all leading axes of a
    Shape shape = a.shape();
    shape[a.rank() - 1] = b.shape()[1];
    return reshape(product("matmul", as_matrix(a), b), shape);
  }
  return product("matmul", a, b);
}

Var bmm(Operand a, Operand b) {
  if (a.rank() != 3 || b.rank() != 3 || a.shape()[0] != b.shape()[0]) {
    fail("bmm: expected a (B, M, K) and b (B, K, N) with one B, got a {}, b {}{}", a.shape(), b.shape(),
         a.rank() == 3 && b.rank() == 3 ? "" : "; matmul broadcasts");
  }
  check_product("bmm", a, b);
  return product("bmm", a, b);
}

namespace {

void check_linear(const Operand& x, const Operand& weight, const Operand* bias) {
  if (weight.rank() != 2 || x.rank() < 1 || x.size(-1) != weight.shape()[1]) {
    fail("linear: expected x (..., in) and weight (out, in), got x {}, weight {}", x.shape(), weight.shape());
  }
  if (bias && (bias->rank() != 1 || bias->shape()[0] != weight.shape()[0])) {
    fail("linear: expected bias ({},) beside weight {}, got {}", weight.shape()[0], weight.shape(), bias->shape());
  }
  if (x.dtype() != weight.dtype() || (bias && bias->dtype() != weight.dtype()) || !is_floating(x.dtype())) {
    fail("linear: expected one floating dtype, got x {} {}, weight {} {}{}", x.dtype(), x.shape(), weight.dtype(),
         weight.shape(), bias ? fmt::format(", bias {}", bias->dtype()) : "");
  }
}

// y = x W^T, added to rows that hold the bias already.
Tensor linear_value(const Tensor& x, const Tensor& weight, const Tensor* bias) {
  Shape shape = x.shape();
  shape[x.rank() - 1] = weight.shape()[0];
  Tensor y = Tensor::empty(shape, x.dtype());
  if (bias) y.copy_(*bias);
  int64_t in = weight.shape()[1], rows = 1;
  for (int i = 0; i + 1 < x.rank(); ++i) rows *= x.shape()[i];
  Tensor a = readable(x.reshape({rows, in})), b = readable(weight.transpose());
  dispatch_floating("linear", x.dtype(),
                    [&]<class T> { blas::gemm<T>(matrix<T>(a), matrix<T>(b), T(bias ? 1 : 0), y.mutable_data<T>()); });
  return y;
}

}  // namespace

Var linear(Operand x, Operand weight, Operand bias) {
  check_linear(x, weight, &bias);
  return record("linear", linear_value(x.value(), weight.value(), &bias.value()),
                Input{x, [w = weight.var()](const Var& g) { return matmul(g, w); }},
                Input{weight, [x = x.var()](const Var& g) { return matmul(transpose(as_matrix(g)), as_matrix(x)); }},
                Input{bias, [](const Var& g) { return g; }});
}

Var linear(Operand x, Operand weight) {
  check_linear(x, weight, nullptr);
  return record("linear", linear_value(x.value(), weight.value(), nullptr),
                Input{x, [w = weight.var()](const Var& g) { return matmul(g, w); }},
                Input{weight, [x = x.var()](const Var& g) { return matmul(transpose(as_matrix(g)), as_matrix(x)); }});
}

namespace {

struct Equation {
  std::string a, b, out;
};

Equation parse_equation(std::string_view text) {
  Equation e;
  std::string* side = &e.a;
  bool arrow = false, comma = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == ' ') continue;
    if (c == ',' && !comma && !arrow) {
      comma = true;
      side = &e.b;
    } else if (c == '-' && i + 1 < text.size() && text[i + 1] == '>' && comma && !arrow) {
      arrow = true;
      side = &e.out;
      ++i;
    } else if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) {
      if (side->find(c) != std::string::npos) {
        fail("einsum: the letter {} occurs twice in one part of \"{}\": diagonals are not supported", c, text);
      }
      *side += c;
    } else {
      fail("einsum: unexpected '{}' in \"{}\"; expected letters, as in \"ij,jk->ik\"", c, text);
    }
  }
  if (!comma) fail("einsum: expected two operands, as in \"ij,jk->ik\", got \"{}\"", text);
  if (!arrow) {
    for (char c : e.a + e.b) {
      if ((e.a + e.b).find(c) == (e.a + e.b).rfind(c)) e.out += c;
    }
    std::sort(e.out.begin(), e.out.end());
  }
  for (char c : e.out) {
    if ((e.a + e.b).find(c) == std::string::npos)
      fail("einsum: no operand has the result's letter {} in \"{}\"", c, text);
  }
  return e;
}

bool has(const std::string& letters, char c) { return letters.find(c) != std::string::npos; }

// x with its axes in the order of `letters`, grouped into three.
Var grouped(const Var& x, const std::string& axes, const std::string (&groups)[3], const std::string& all) {
  std::vector<int64_t> order;
  for (char c : all) order.push_back(static_cast<int64_t>(axes.find(c)));
  Var y = permute(x, order);
  Shape shape;
  int axis = 0;
  for (const std::string& group : groups) {
    int64_t n = 1;
    for (size_t i = 0; i < group.size(); ++i) n *= y.shape()[axis++];
    shape.push_back(n);
  }
  return reshape(y, shape);
}

}  // namespace

Var einsum(std::string_view equation, Operand a, Operand b) {
  UserSite here(a.site().file ? a.site() : b.site());
  const Equation e = parse_equation(equation);
  if (a.dtype() != b.dtype() || !is_floating(a.dtype())) {
    fail("einsum: expected two floating tensors of one dtype, got {} {} and {} {}", a.dtype(), a.shape(), b.dtype(),
         b.shape());
  }
  if (static_cast<int>(e.a.size()) != a.rank() || static_cast<int>(e.b.size()) != b.rank()) {
    fail("einsum: \"{}\" does not name the axes of a {}, b {}", equation, a.shape(), b.shape());
  }
  for (size_t i = 0; i < e.a.size(); ++i) {
    size_t j = e.b.find(e.a[i]);
    if (j != std::string::npos && a.shape()[static_cast<int>(i)] != b.shape()[static_cast<int>(j)]) {
      fail("einsum: axis {} has {} in a {} and {} in b {}", e.a[i], a.shape()[static_cast<int>(i)], a.shape(),
           b.shape()[static_cast<int>(j)], b.shape());
    }
  }
  // Letters of one operand that the result lacks are summed first; the rest is a batched product.
  std::string only_a, only_b, batch, inner, free_a, free_b;
  for (char c : e.a) (has(e.b, c) ? (has(e.out, c) ? batch : inner) : has(e.out, c) ? free_a : only_a) += c;
  for (char c : e.b) {
    if (!has(e.a, c)) (has(e.out, c) ? free_b : only_b) += c;
  }
  auto sum_out = [](const Operand& x, std::string& letters, const std::string& gone) {
    Var y = x.var();
    for (char c : gone) {
      const size_t i = letters.find(c);
      y = sum(y, static_cast<int64_t>(i));
      letters.erase(i, 1);
    }
    return y;
  };
  std::string letters_a = e.a, letters_b = e.b;
  Var x = sum_out(a, letters_a, only_a), y = sum_out(b, letters_b, only_b);
  Var product = bmm(grouped(x, letters_a, {batch, free_a, inner}, batch + free_a + inner),
                    grouped(y, letters_b, {batch, inner, free_b}, batch + inner + free_b));
  const std::string have = batch + free_a + free_b;
  Shape shape;
  for (char c : have) {
    const size_t i = e.a.find(c);
    shape.push_back(i != std::string::npos ? a.shape()[static_cast<int>(i)] : b.shape()[static_cast<int>(e.b.find(c))]);
  }
  std::vector<int64_t> order;
  for (char c : e.out) order.push_back(static_cast<int64_t>(have.find(c)));
  return permute(reshape(product, shape), order);
}

}  // namespace tapedeck
