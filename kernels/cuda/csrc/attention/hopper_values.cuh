// Products of Hopper whose left operand is in registers and whose right one has rows along n (`multiply_transposed` of
// hopper.cuh), for the heads that it has not: 80, 96, 112, 160, 192 and 256.
#pragma once
#include "hopper_registers.cuh"

#define VALUE_PRODUCTS_OF(T) \
    REGISTER_PRODUCT(multiply_transposed, T, 80, 40, 1, 40, 41, 42, 43, 44, 45) \
    REGISTER_PRODUCT(multiply_transposed, T, 96, 48, 1, 48, 49, 50, 51, 52, 53) \
    REGISTER_PRODUCT(multiply_transposed, T, 112, 56, 1, 56, 57, 58, 59, 60, 61) \
    REGISTER_PRODUCT(multiply_transposed, T, 160, 80, 1, 80, 81, 82, 83, 84, 85) \
    REGISTER_PRODUCT(multiply_transposed, T, 192, 96, 1, 96, 97, 98, 99, 100, 101) \
    REGISTER_PRODUCT(multiply_transposed, T, 256, 128, 1, 128, 129, 130, 131, 132, 133)
VALUE_PRODUCTS_OF(bf16)
VALUE_PRODUCTS_OF(f16)

// A tile of 192 keys: its queries are in registers, but the other product must compile.
SHARED_PRODUCT(bf16, 192, 96, 96, 97, 98)
SHARED_PRODUCT(f16, 192, 96, 96, 97, 98)
