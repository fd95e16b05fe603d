/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/cuda_ranges.h"

#include <cstdint>
#include <map>
#include <mutex>

/* By their first byte. */
struct range {
    size_t bytes;
    int kind;
};
static std::mutex mutex;
static std::map<uintptr_t, range> ranges;

enum { PAGE = 4096 };

/* Does it end before FIRST's page, or begin behind END's? */
static bool is_apart(uintptr_t at, const range *one, uintptr_t first,
                     uintptr_t end) {
    return (at + one->bytes - 1) / PAGE < first / PAGE ||
           at / PAGE > (end - 1) / PAGE;
}

bool cuda_ranges_add(const void *memory, size_t bytes, int kind) {
    std::lock_guard<std::mutex> lock(mutex);
    uintptr_t first = (uintptr_t)memory;
    for (const auto &[at, one] : ranges)
        if (kind == CUDA_RANGES_PINNED && one.kind == kind &&
            !is_apart(at, &one, first, first + bytes))
            return false;
    ranges[first] = range{bytes, kind};
    return true;
}

bool cuda_ranges_drop(const void *memory, bool pinned) {
    std::lock_guard<std::mutex> lock(mutex);
    auto found = ranges.find((uintptr_t)memory);
    if (found == ranges.end() ||
        (found->second.kind == CUDA_RANGES_PINNED) != pinned)
        return false;
    ranges.erase(found);
    return true;
}

bool cuda_ranges_kind(const void *memory, size_t bytes, int *kind) {
    std::lock_guard<std::mutex> lock(mutex);
    uintptr_t first = (uintptr_t)memory, end = first + bytes;
    *kind = CUDA_RANGES_ORDINARY;
    auto next = ranges.upper_bound(first);
    if (next != ranges.end() && next->first < end)
        return false;
    if (next == ranges.begin())
        return true;
    auto found = std::prev(next);
    uintptr_t behind = found->first + found->second.bytes;
    if (first >= behind)
        return true;
    *kind = found->second.kind;
    return end <= behind;
}
