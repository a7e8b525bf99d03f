// Every op.
#pragma once

#include <tapedeck/ops/dropout.h>
#include <tapedeck/ops/elementwise.h>
#include <tapedeck/ops/index.h>
#include <tapedeck/ops/loss.h>
#include <tapedeck/ops/matmul.h>
#include <tapedeck/ops/norm.h>
#include <tapedeck/ops/reduce.h>
#include <tapedeck/ops/shape.h>
#include <tapedeck/ops/softmax.h>
