// The zoo's models, quantized by its recipe; needs python3-numpy.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "core/engine.h"

namespace specd {

struct QuantizedSubject {
  std::string name, options;  // of the recipe
  KvDType kv_dtype;
};

inline bool has_numpy() {
  return std::system(SPECD_TEST_PYTHON " -c 'import numpy' 2> /dev/null") == 0;
}

// `options`: of the recipe. Returns the folder, which is made in `folder`.
inline std::string quantized(const std::string& model, const std::string& options,
                             const std::string& folder) {
  const std::string out = folder + "/" + model;
  const std::string command = SPECD_TEST_PYTHON " " SPECD_TEST_QUANTIZE " " SPECD_TEST_ZOO "/" +
                              model + " " + out + " --format " + options + " > " + folder +
                              "/quantize.log 2>&1";
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
  return out;
}

}  // namespace specd
