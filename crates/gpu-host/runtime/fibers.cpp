// Lanes as fibers: a simdgroup's 32 lanes run one after the other, each to its next simdgroup function or barrier, and
// all have to stop at the same line.
#include "fibers.h"

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <numeric>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include <vector>
#ifdef MSL_SANITIZE
#include <sanitizer/asan_interface.h>
#endif

// Saves what a function has to keep, stores the stack pointer at `save`, and goes on where `to` was left. It jumps
// instead of returning: the processor would predict the return to go where this call came from.
extern "C" void msl_switch(void** save, void* to);
asm(R"(
.text
.globl msl_switch
.type msl_switch,@function
msl_switch:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp,(%rdi)
  mov %rsi,%rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  pop %rcx
  jmp *%rcx
)");

namespace msl {
namespace {
constexpr size_t PAGE = 4096;
constexpr size_t REDZONE = 64;
constexpr size_t ARENA_BYTES = THREADGROUP_BYTES_MAX * 2;
constexpr size_t MATRIX_BYTES = STACK_BYTES / 16 * sizeof(Snapshot);  // a matrix takes 16 bytes of a stack

void* map(size_t bytes) {
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) msl_die("cannot map %zu bytes for stacks", bytes);
    return p;
}

unsigned random(uint64_t& state) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return unsigned(state >> 33);
}
template <class T> void shuffle(T* v, unsigned n, uint64_t& state) {
    for (unsigned i = n; i > 1; i--) std::swap(v[i - 1], v[random(state) % i]);
}

struct Block { const void* site; char* memory; };
}  // namespace

// A thread of the processor with the fibers of one threadgroup, which it uses again for each.
struct Worker {
    char* stacks;
    std::vector<Lane*> lanes;
    std::vector<std::unique_ptr<Simdgroup>> simdgroups;
    Lane scheduler{};
    Group group{};
    char* arena;
    size_t arena_used = 0, declared = 0;
    std::vector<Block> blocks;

    Worker() {
        const size_t bytes = (THREADS_MAX + 1) * STACK_BYTES;
        const uintptr_t start = reinterpret_cast<uintptr_t>(map(bytes));
        stacks = reinterpret_cast<char*>((start + STACK_BYTES - 1) / STACK_BYTES * STACK_BYTES);
        arena = static_cast<char*>(map(ARENA_BYTES));
        group.worker = this;
    }
    void add_simdgroup();
    void prepare(const Launch& launch);
    void run_group(unsigned at, uint64_t seed);
    void order_lanes(Simdgroup& s, uint64_t& seed);
    void check_operations(Simdgroup& s);
};

namespace {
// Where a fiber starts, and where it waits for its next threadgroup.
void fiber_main() {
    Lane* me = self();
    for (;;) {
        me->group->launch->entry(*me);
        msl_stop(me, Stop::Return, "return", "", 0);
    }
}

Lane* new_lane(char* stack, unsigned index) {
    Lane* lane = lane_of(reinterpret_cast<uintptr_t>(stack));
    mprotect(stack + PAGE, PAGE, PROT_NONE);
    // Tops are spread over the cache's sets, by a multiple of the largest alignment of a frame.
    lane->stack_top = stack + STACK_BYTES - 64 - index * 832 % 16384;
    void** sp = reinterpret_cast<void**>(lane->stack_top);
    *--sp = nullptr;  // keeps the stack aligned as after a call
    *--sp = reinterpret_cast<void*>(&fiber_main);
    for (int i = 0; i < 6; i++) *--sp = nullptr;
    lane->sp = sp;
    lane->index = index;
    lane->lane = index % LANES;
    return lane;
}

[[noreturn]] void diverged(const char* who, const Simdgroup& a, const char* what, const char* file, unsigned line) {
    msl_die("%s diverge: one is at %s (%s:%u), another at %s (%s:%u)", who, a.what, a.file, a.line, what, file, line);
}
}  // namespace

void Worker::add_simdgroup() {
    auto s = std::make_unique<Simdgroup>();
    memset(static_cast<void*>(s.get()), 0, sizeof *s);
    s->matrices = static_cast<float*>(map(MATRIX_BYTES));
    msl_grow_log(s.get());
    for (unsigned i = 0; i < LANES; i++) {
        const unsigned index = unsigned(lanes.size());
        Lane* lane = new_lane(stacks + index * STACK_BYTES, index);
        lane->simdgroup = s.get();
        lane->group = &group;
        s->lanes[i] = lane;
        lanes.push_back(lane);
    }
    s->chain[LANES] = &scheduler;
    simdgroups.push_back(std::move(s));
}

void Worker::prepare(const Launch& launch) {
    const Position& n = launch.threads;
    const unsigned threads = n.v[0] * n.v[1] * n.v[2];
    while (lanes.size() < threads) add_simdgroup();
    group.launch = &launch;
    for (unsigned i = 0; i < threads; i++)
        lanes[i]->position = {{i % n.v[0], i / n.v[0] % n.v[1], i / (n.v[0] * n.v[1])}};
}

void Worker::order_lanes(Simdgroup& s, uint64_t& seed) {
    const unsigned order = group.launch->order;
    for (unsigned i = 0; i < LANES; i++) s.chain[i] = s.lanes[order == 1 ? LANES - 1 - i : i];
    if (order > 1) shuffle(s.chain, LANES, seed);
}

void Worker::check_operations(Simdgroup& s) {
    if (s.done == s.base) return;
    for (Lane* lane : s.lanes)
        if (lane->operations != s.done)
            msl_die("lanes of one simdgroup differ in their simdgroup_matrix operations before %s (%s:%u)", s.what, s.file, s.line);
    s.base = s.done;
    s.snapshots_used = 0;
}

void Worker::run_group(unsigned at, uint64_t seed) {
    const Launch& launch = *group.launch;
    const Position& n = launch.threads;
    const unsigned count = n.v[0] * n.v[1] * n.v[2] / LANES;
    group.position = {{at % launch.grid.v[0], at / launch.grid.v[0] % launch.grid.v[1], at / (launch.grid.v[0] * launch.grid.v[1])}};
    blocks.clear();
    arena_used = declared = 0;
#ifdef MSL_SANITIZE
    __asan_poison_memory_region(arena, ARENA_BYTES);
#endif
    unsigned turn[THREADS_MAX / LANES];
    for (unsigned i = 0; i < count; i++) {
        turn[i] = launch.order == 1 ? count - 1 - i : i;
        order_lanes(*simdgroups[i], seed);
    }
    for (;;) {
        if (launch.order > 1) shuffle(turn, count, seed);
        for (unsigned i = 0; i < count; i++) {
            Simdgroup& s = *simdgroups[turn[i]];
            do {
                if (launch.order > 1) shuffle(s.chain, LANES, seed);
                s.arrived = 0;
                msl_switch(&scheduler.sp, s.chain[0]->sp);
                check_operations(s);
            } while (s.kind == Stop::Collective);
        }
        const Simdgroup& first = *simdgroups[0];
        for (unsigned i = 1; i < count; i++) {
            const Simdgroup& s = *simdgroups[i];
            if (s.kind != first.kind || s.line != first.line)
                diverged("simdgroups of one threadgroup", first, s.what, s.file, s.line);
        }
        if (first.kind == Stop::Return) return;
    }
}

namespace {
// Threads that wait for dispatches.
class Pool {
public:
    void run(const Launch& launch, unsigned workers) {
        const Position& g = launch.grid;
        const unsigned total = g.v[0] * g.v[1] * g.v[2];
        order_.clear();
        if (launch.order > 1) {
            order_.resize(total);
            std::iota(order_.begin(), order_.end(), 0u);
            uint64_t seed = launch.order;
            shuffle(order_.data(), total, seed);
        }
        workers = std::max(1u, std::min(workers, total));
        while (workers_.size() < workers) {
            workers_.push_back(std::make_unique<Worker>());
            if (const size_t index = workers_.size() - 1) std::thread([this, index] { serve(index); }).detach();
        }
        {
            std::lock_guard lock(mutex_);
            launch_ = &launch;
            total_ = total;
            next_ = 0;
            helpers_ = running_ = workers - 1;
            round_++;
        }
        wake_.notify_all();
        work(0);
        std::unique_lock lock(mutex_);
        done_.wait(lock, [this] { return running_ == 0; });
    }

private:
    void serve(size_t index) {
        uint64_t seen = 0;
        for (;;) {
            {
                std::unique_lock lock(mutex_);
                wake_.wait(lock, [&] { return round_ != seen; });
                seen = round_;
                if (index > helpers_) continue;
            }
            work(index);
            std::lock_guard lock(mutex_);
            if (--running_ == 0) done_.notify_one();
        }
    }
    void work(size_t index) {
        Worker& worker = *workers_[index];
        const Launch& launch = *launch_;
        worker.prepare(launch);
        for (unsigned i; (i = next_++) < total_;) {
            const unsigned at = launch.order == 0 ? i : launch.order == 1 ? total_ - 1 - i : order_[i];
            worker.run_group(at, launch.order * 7919ull + at);
        }
    }
    std::vector<std::unique_ptr<Worker>> workers_;
    std::vector<unsigned> order_;
    std::mutex mutex_;
    std::condition_variable wake_, done_;
    const Launch* launch_ = nullptr;
    std::atomic<unsigned> next_{0};
    unsigned total_ = 0;
    size_t helpers_ = 0, running_ = 0;
    uint64_t round_ = 0;
};
}  // namespace

void run(const Launch& launch, unsigned workers) {
    static Pool* pool = new Pool;  // its threads live as long as the process
    pool->run(launch, workers);
}

extern "C" {
void msl_stop(Lane* me, Stop kind, const char* what, const char* file, unsigned line) {
    Simdgroup* s = me->simdgroup;
    if (s->arrived == 0) {
        s->kind = kind;
        s->what = what;
        s->file = file;
        s->line = line;
    } else if (s->kind != kind || s->line != line) {
        diverged("lanes of one simdgroup", *s, what, file, line);
    }
    Lane* next = s->chain[++s->arrived];
    msl_switch(&me->sp, next->sp);
}

void* msl_threadgroup_block(const void* site, size_t bytes, const char* name) {
    Worker* w = self()->group->worker;
    for (const Block& block : w->blocks)
        if (block.site == site) return block.memory;
    w->declared += bytes;
    if (w->declared > THREADGROUP_BYTES_MAX)
        msl_die("%zu bytes of threadgroup memory with %s, more than %zu", w->declared, name, THREADGROUP_BYTES_MAX);
    char* memory = w->arena + w->arena_used;
    w->arena_used += (bytes + REDZONE + 63) / 64 * 64;
    if (w->arena_used > ARENA_BYTES) msl_die("too many threadgroup variables");
#ifdef MSL_SANITIZE
    __asan_unpoison_memory_region(memory, bytes);
#endif
    memset(memory, 0xff, bytes);
    w->blocks.push_back({site, memory});
    return memory;
}

void msl_grow_log(Simdgroup* s) {
    const unsigned operations = std::max(64u, s->operations_capacity * 2), snapshots = std::max(16u, s->snapshots_capacity * 2);
    s->operations = static_cast<Operation*>(realloc(s->operations, operations * sizeof(Operation)));
    s->snapshots = static_cast<Snapshot*>(realloc(s->snapshots, snapshots * sizeof(Snapshot)));
    if (!s->operations || !s->snapshots) msl_die("no memory for %u matrix operations", operations);
    s->operations_capacity = operations;
    s->snapshots_capacity = snapshots;
}

void msl_die(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    fflush(stderr);
    _exit(3);
}
}
}  // namespace msl
