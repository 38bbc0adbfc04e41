// One quantized matrix of a checkpoint: its tensors, checked, and its rows as codes, whatever the layout
// of the file.
//
// weight[n][k] = (code[n][k] - zero[n][group of k]) * scale[n][group of k]; with x_bits 32 the code is an
// E4M3 number instead, and there are no zeros.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/model/checkpoint.h"
#include "core/model/code_order.h"
#include "core/model/quantization.h"

namespace specd {

class QuantizedMatrix {
 public:
  // Finds the tensors of `module` in the checkpoint, which must outlive it, and checks names, types and
  // shapes, and the groups. `on_tensor` gets each name that it uses. kDataLoss with file, tensor, expected
  // and found; kUnsupported for more k than sums of 32 bits hold.
  static Result<QuantizedMatrix> open(const Checkpoint& checkpoint, const std::string& module,
                                      int32_t n_out, int32_t n_in, const MatrixFormat& format,
                                      const std::function<void(const std::string&)>& on_tensor);

  // Of a matrix that a plugin's head has, so that rows of x fit into the scratch memory of a device (kernels/cuda.h).
  static constexpr int64_t kInputsMax = int64_t{1} << 18;
  // Outputs and inputs of a module, as the shape of its codes and its weight_shape say. kDataLoss without such
  // codes, or with more than kInputsMax inputs.
  static Result<std::pair<int32_t, int32_t>> shape_of(const Checkpoint& checkpoint,
                                                      const std::string& module,
                                                      const MatrixFormat& format);

  // What decides the order of its k.
  const CodeKind& kind() const { return kind_; }
  int32_t n_out() const { return n_out_; }
  int32_t n_in() const { return n_in_; }

  // Rows [begin, begin + n): codes [n, n_in], scale and zero [n, n_groups], zero only if has_zeros.
  // kDataLoss for a scale that is zero, not finite or, where no maker writes such, negative, and for a NaN.
  Status read(int32_t begin, int32_t n, uint8_t* codes, float* scale, uint8_t* zero) const;
  // Packs rows [begin, begin + n), of which `into` has the k from `k` on, as its columns from `column` on.
  // REQUIRES that its order is of this kind.
  Status pack(Device& device, int32_t begin, int32_t n, int32_t k,
              const kernels::PackedMatrix& into, int32_t column) const;

 private:
  QuantizedMatrix() = default;
  Result<const TensorView*> need(const char* name, const std::vector<int64_t>& shape,
                                 std::initializer_list<TensorType> types);
  Status open_scales(const MatrixFormat& format);
  Status open_codes(const MatrixFormat& format);
  Status open_zeros(const MatrixFormat& format);
  Status open_groups(const MatrixFormat& format);
  Result<uint8_t> gptq_zero(int64_t row, int64_t group) const;
  std::string place() const;  // file and tensor of the codes
  // `index`: of the number in the tensor `name` of the module.
  Status bad_value(const std::string& name, int64_t index, const std::string& expected,
                   const std::string& found) const;

  const Checkpoint* checkpoint_ = nullptr;
  std::function<void(const std::string&)> on_tensor_;
  std::string module_, scale_name_;
  int32_t n_out_ = 0, n_in_ = 0;
  MatrixFormat format_;
  CodeKind kind_;
  const TensorView *codes_ = nullptr, *scales_ = nullptr, *zeros_ = nullptr;
};

}  // namespace specd
