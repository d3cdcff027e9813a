// What the cache keeps, and what products of attention take: with NARROW 8-bit floats, which f16 holds exactly. For
// files that say TYPE.
#pragma once
#include "quire.cuh"

#ifdef NARROW
typedef e4m3 Cached;
typedef f16 Operand;
#else
typedef TYPE Cached;
typedef TYPE Operand;
#endif
