// Products of Hopper whose left operand is in registers, with 16 to 256 columns: `multiply_registers` of hopper.cuh in
// the sizes that it has not.
#pragma once
#include "hopper_rows.cuh"

#define NAMES_96 \
    NAMES_80 ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define REGISTERS_96(c) REGISTERS_80(c), REGISTERS_8(c, 80), REGISTERS_8(c, 88)

#define REGISTER_PRODUCTS(T) \
    REGISTER_PRODUCT(multiply_registers, T, 32, 16, 0, 16, 17, 18, 19, 20, 21) \
    REGISTER_PRODUCT(multiply_registers, T, 64, 32, 0, 32, 33, 34, 35, 36, 37) \
    REGISTER_PRODUCT(multiply_registers, T, 96, 48, 0, 48, 49, 50, 51, 52, 53) \
    REGISTER_PRODUCT(multiply_registers, T, 160, 80, 0, 80, 81, 82, 83, 84, 85) \
    REGISTER_PRODUCT(multiply_registers, T, 192, 96, 0, 96, 97, 98, 99, 100, 101) \
    REGISTER_PRODUCT(multiply_registers, T, 256, 128, 0, 128, 129, 130, 131, 132, 133)
REGISTER_PRODUCTS(bf16)
REGISTER_PRODUCTS(f16)
