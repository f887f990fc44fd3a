// What kernels and the executor share: threads as lanes of simdgroups, where they stop, and the tables of a module.
#pragma once
#pragma GCC system_header
#include <cstddef>
#include <cstdint>

namespace msl {
// Stacks are aligned to their size, so that a lane finds itself from its stack pointer, without thread-local storage.
constexpr size_t STACK_BYTES = 128 << 10;
constexpr unsigned LANES = 32;
constexpr unsigned EXCHANGE_BYTES = 16;  // largest value that simdgroup functions exchange

struct Lane;
struct Position { unsigned v[3]; };

// One dispatch.
struct Launch {
    void (*entry)(const Lane&);
    Position grid, threads;
    void* const* buffers;
    unsigned order;  // 0 forwards, 1 backwards, others shuffled with that seed
};

// One threadgroup.
struct Worker;
struct Group {
    const Launch* launch;
    Position position;
    Worker* worker;
};

enum class Stop : unsigned { Collective, Barrier, Return };

// A matrix operation that one lane has executed for all: the others only check that they ask for the same.
struct Operation {
    unsigned line;
    unsigned snapshot;       // index in Simdgroup::snapshots
    size_t target;           // which matrix
    const void* pointer;     // memory that it loads or stores
};
struct Snapshot { float values[64]; };

struct Simdgroup {
    alignas(64) char slot[2][LANES * EXCHANGE_BYTES];  // values exchanged; two, as a lane may be one call ahead
    alignas(64) char result[2][64];                    // what the first lane computed from them
    bool ready[2];
    // Where the lanes of this round stopped, and who comes next; the last is the scheduler.
    Stop kind;
    unsigned line, arrived;
    const char *what, *file;
    Lane* chain[LANES + 1];
    Lane* lanes[LANES];
    // Matrix operations since the lanes last met: `operations[done - base - 1]` is the newest.
    unsigned done, base, snapshots_used;
    Operation* operations;
    Snapshot* snapshots;
    unsigned operations_capacity, snapshots_capacity;
    float* matrices;  // by position of a matrix on the lanes' stacks
};

struct alignas(128) Lane {
    void* sp;
    Simdgroup* simdgroup;
    Group* group;
    char* stack_top;
    Position position;     // in the threadgroup
    unsigned index, lane;  // in the threadgroup, in the simdgroup
    unsigned parity, operations;
};
static_assert(sizeof(Lane) == 128, "lanes find themselves by this size");

// The header of a stack lies in its lowest page, at an offset that spreads lanes over the cache's sets.
inline __attribute__((always_inline)) Lane* lane_of(uintptr_t address) {
    const uintptr_t base = address & ~(uintptr_t(STACK_BYTES) - 1);
    return reinterpret_cast<Lane*>(base + base / STACK_BYTES % LANES * sizeof(Lane));
}
inline __attribute__((always_inline)) Lane* self() {
    return lane_of(reinterpret_cast<uintptr_t>(__builtin_frame_address(0)));
}

// ---- tables of a module
enum class Memory : unsigned { Read, Write, Constant };
struct Buffer { Memory memory; unsigned size, align; };
struct Kernel { const char* name; void (*entry)(const Lane&); const Buffer* buffers; unsigned buffer_count, max_threads; };
struct Constant { unsigned index; bool required; const char* name; void (*set)(const unsigned* value); };
struct Module { const Kernel* kernels; unsigned kernel_count; const Constant* constants; unsigned constant_count; void (*derive)(); };

extern "C" {
// Lets the other lanes get here too.
void msl_stop(Lane* me, Stop kind, const char* what, const char* file, unsigned line);
// Memory of a threadgroup variable, the same for all its threads; bytes 0xff, which read as NaN.
void* msl_threadgroup_block(const void* site, size_t bytes, const char* name);
void msl_grow_log(Simdgroup* simdgroup);
[[noreturn]] void msl_die(const char* format, ...) __attribute__((format(printf, 1, 2)));
}
}  // namespace msl
