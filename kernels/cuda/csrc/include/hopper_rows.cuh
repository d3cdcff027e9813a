// Products of Hopper with any multiple of 16 columns from 32 to 160: `multiply_shared` of hopper.cuh in the sizes that
// it has not.
#pragma once
#include "hopper.cuh"

#define NAMES_24 NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define NAMES_40 NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define NAMES_48 NAMES_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define NAMES_56 NAMES_48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define NAMES_72 NAMES_64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define NAMES_80 NAMES_72 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define REGISTERS_24(c) REGISTERS_16(c), REGISTERS_8(c, 16)
#define REGISTERS_40(c) REGISTERS_32(c), REGISTERS_8(c, 32)
#define REGISTERS_48(c) REGISTERS_40(c), REGISTERS_8(c, 40)
#define REGISTERS_56(c) REGISTERS_48(c), REGISTERS_8(c, 48)
#define REGISTERS_72(c) REGISTERS_64(c), REGISTERS_8(c, 64)
#define REGISTERS_80(c) REGISTERS_72(c), REGISTERS_8(c, 72)

#define FURTHER_PRODUCTS_OF(T) \
    SHARED_PRODUCT(T, 48, 24, 24, 25, 26) \
    SHARED_PRODUCT(T, 80, 40, 40, 41, 42) \
    SHARED_PRODUCT(T, 96, 48, 48, 49, 50) \
    SHARED_PRODUCT(T, 112, 56, 56, 57, 58) \
    SHARED_PRODUCT(T, 144, 72, 72, 73, 74) \
    SHARED_PRODUCT(T, 160, 80, 80, 81, 82)
FURTHER_PRODUCTS_OF(bf16)
FURTHER_PRODUCTS_OF(f16)
