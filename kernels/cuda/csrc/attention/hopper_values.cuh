// Products of Hopper whose left operand is in registers and whose right one has rows along n (`multiply_transposed` of
// hopper.cuh), for the heads that it has not: 80, 96, 112 and 256.
#pragma once
#include "hopper_rows.cuh"

#define VALUE_PRODUCTS_OF(T) \
    REGISTER_PRODUCT(multiply_transposed, T, 80, 40, 1, 40, 41, 42, 43, 44, 45) \
    REGISTER_PRODUCT(multiply_transposed, T, 96, 48, 1, 48, 49, 50, 51, 52, 53) \
    REGISTER_PRODUCT(multiply_transposed, T, 112, 56, 1, 56, 57, 58, 59, 60, 61) \
    REGISTER_PRODUCT(multiply_transposed, T, 256, 128, 1, 128, 129, 130, 131, 132, 133)
VALUE_PRODUCTS_OF(bf16)
VALUE_PRODUCTS_OF(f16)

// The product with queries from registers of a tile of 64 keys.
#define KEY_PRODUCTS_OF(T) REGISTER_PRODUCT(multiply_registers, T, 64, 32, 0, 32, 33, 34, 35, 36, 37)
KEY_PRODUCTS_OF(bf16)
KEY_PRODUCTS_OF(f16)
