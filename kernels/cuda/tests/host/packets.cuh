// csrc/comm/packets.cuh on a host. Words come one by one, and none may be written over one that is not taken.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "quire.cuh"

inline void put(uint4* packet, uint4 words) {
    const u32 inverted[4] = {~words.x, ~words.y, ~words.z, ~words.w};
    for (u32 i = 0; i < 4; i++) {
        u32 nothing = 0, *word = (u32*)packet + i;
        if (!__atomic_compare_exchange_n(word, &nothing, inverted[i], false, __ATOMIC_RELEASE, __ATOMIC_RELAXED)) {
            fputs("a word is sent to where one is not taken yet\n", stderr);
            abort();
        }
    }
}

inline uint4 look(uint4* packet) {
    u32 words[4];
    for (u32 i = 0; i < 4; i++) words[i] = __atomic_load_n((u32*)packet + i, __ATOMIC_ACQUIRE);
    // There are many more threads than cores.
    if (!words[0] || !words[1] || !words[2] || !words[3]) std::this_thread::yield();
    return {words[0], words[1], words[2], words[3]};
}

inline void empty(uint4* packet) {
    for (u32 i = 0; i < 4; i++) __atomic_store_n((u32*)packet + i, 0, __ATOMIC_RELEASE);
}
