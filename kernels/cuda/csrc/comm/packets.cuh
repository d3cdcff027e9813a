// Packets of four words in memory that other devices write or read. tests/host/packets.cuh has the same for a host.
#pragma once
#include "quire.cuh"

// Words travel inverted, so that none is 0. A 4-byte access at system scope is one access to every device (PTX ISA,
// memory consistency model), also as a part of a vector.
DEVICE void put(uint4* packet, uint4 words) {
    asm volatile("st.relaxed.sys.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(packet), "r"(~words.x), "r"(~words.y),
                 "r"(~words.z), "r"(~words.w)
                 : "memory");
}

DEVICE uint4 look(uint4* packet) {
    uint4 words;
    asm volatile("ld.relaxed.sys.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w) : "l"(packet) : "memory");
    return words;
}

DEVICE void empty(uint4* packet) {
    asm volatile("st.relaxed.sys.global.v4.b32 [%0], {%1, %1, %1, %1};" ::"l"(packet), "r"(0) : "memory");
}
