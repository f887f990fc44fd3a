// The process that runs kernels: reads requests from its standard input, a socket, and answers there.
//
// A request is its length, then u32s, u64s and strings (length, bytes) as `src/executor.rs` writes them. An answer is a
// length and text. What goes wrong ends the process; the last lines on standard error say why.
#include "fibers.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <memory>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>
#ifdef MSL_SANITIZE
#include <sanitizer/asan_interface.h>
#endif

namespace {
using msl::msl_die;

enum Command : uint32_t { LOAD = 1, RUN = 2 };
enum Access : uint32_t { READ = 0, WRITE = 1, READ_WRITE = 2 };

bool receive(void* to, size_t bytes) {
    for (char* p = static_cast<char*>(to); bytes;) {
        const ssize_t n = read(0, p, bytes);
        if (n <= 0) return false;
        p += n;
        bytes -= size_t(n);
    }
    return true;
}

void answer(const std::string& text) {
    const uint32_t length = uint32_t(text.size());
    std::string all(reinterpret_cast<const char*>(&length), 4);
    all += text;
    for (size_t sent = 0; sent < all.size();) {
        const ssize_t n = write(0, all.data() + sent, all.size() - sent);
        if (n <= 0) _exit(0);
        sent += size_t(n);
    }
}

// Takes a request apart.
class Reader {
public:
    explicit Reader(const std::vector<char>& bytes) : at_(bytes.data()), end_(bytes.data() + bytes.size()) {}
    template <class T> T take() {
        T v;
        memcpy(&v, skip(sizeof v), sizeof v);
        return v;
    }
    uint32_t u32() { return take<uint32_t>(); }
    uint64_t u64() { return take<uint64_t>(); }
    std::string string() {
        const uint32_t n = u32();
        return std::string(skip(n), n);
    }

private:
    const char* skip(size_t n) {
        if (size_t(end_ - at_) < n) msl_die("a request is too short");
        const char* p = at_;
        at_ += n;
        return p;
    }
    const char *at_, *end_;
};

class Executor {
public:
    Executor(int fd, size_t reserve) {
        void* p = mmap(nullptr, reserve, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
        if (p == MAP_FAILED) msl_die("cannot map the buffers");
        memory_ = static_cast<char*>(p);
    }

    void load(Reader& request) {
        const std::string path = request.string();
        void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
        if (!library) msl_die("%s", dlerror());
        const auto* module = static_cast<const msl::Module*>(dlsym(library, "msl_module"));
        if (!module) msl_die("%s has no kernels", path.c_str());
        modules_.push_back(module);
        std::string text;
        for (unsigned i = 0; i < module->kernel_count; i++) {
            const msl::Kernel& k = module->kernels[i];
            text += std::string("kernel ") + k.name + " " + std::to_string(k.max_threads);
            for (unsigned b = 0; b < k.buffer_count; b++) {
                const msl::Buffer& buffer = k.buffers[b];
                text += " " + std::to_string(unsigned(buffer.memory)) + ":" + std::to_string(buffer.size) + ":" + std::to_string(buffer.align);
            }
            text += "\n";
        }
        answer(text);
    }

    void run(Reader& request) {
        const msl::Module& module = *modules_.at(request.u32());
        const msl::Kernel& kernel = module.kernels[request.u32()];
        const uint32_t workers = request.u32();
        const bool forget = request.u32() != 0;
        const uint64_t used = request.u64();
        msl::Launch launch{};
        launch.entry = kernel.entry;
        launch.order = request.u32();
        launch.grid = request.take<msl::Position>();
        launch.threads = request.take<msl::Position>();
        set_constants(module, request);
        hide(used);
        struct Bound { char* start; uint64_t len; };
        std::vector<Bound> bound;
        std::vector<void*> buffers;
        for (uint32_t n = request.u32(); n; n--) {
            const uint64_t start = request.u64(), len = request.u64();
            const uint32_t access = request.u32();
            char* p = memory_ + start;
            show(p, len);
            if (forget && access == WRITE) memset(p, 0xff, len);
            bound.push_back({p, len});
            buffers.push_back(p);
        }
        // A block of its own, so that the sanitizer knows its end.
        const std::string params = request.string();
        std::unique_ptr<void, void (*)(void*)> block(nullptr, free);
        if (!params.empty()) {
            block.reset(aligned_alloc(16, (params.size() + 15) / 16 * 16));
            memcpy(block.get(), params.data(), params.size());
            buffers.push_back(block.get());
        }
        launch.buffers = buffers.data();
        msl::run(launch, workers);
        for (const Bound& b : bound) conceal(b.start, b.len);
        answer("");
    }

private:
    static void set_constants(const msl::Module& module, Reader& request) {
        std::vector<std::pair<uint32_t, uint32_t>> given;
        for (uint32_t n = request.u32(); n; n--) {
            const uint32_t index = request.u32();
            given.emplace_back(index, request.u32());
        }
        for (unsigned i = 0; i < module.constant_count; i++) {
            const msl::Constant& constant = module.constants[i];
            const auto at = std::find_if(given.begin(), given.end(), [&](auto& g) { return g.first == constant.index; });
            constant.set(at == given.end() ? nullptr : &at->second);
        }
        module.derive();
    }

    // With the sanitizer, only what a dispatch declares can be touched.
    void hide(uint64_t used) {
#ifdef MSL_SANITIZE
        if (used > hidden_) __asan_poison_memory_region(memory_ + hidden_, used - hidden_);
#endif
        hidden_ = std::max(hidden_, used);
    }
    static void show([[maybe_unused]] char* p, [[maybe_unused]] uint64_t n) {
#ifdef MSL_SANITIZE
        __asan_unpoison_memory_region(p, n);
#endif
    }
    static void conceal([[maybe_unused]] char* p, [[maybe_unused]] uint64_t n) {
#ifdef MSL_SANITIZE
        __asan_poison_memory_region(p, n);
#endif
    }

    char* memory_;
    uint64_t hidden_ = 0;
    std::vector<const msl::Module*> modules_;
};
}  // namespace

// Arguments: descriptor of the memory that buffers lie in, bytes of address space to map it at.
int main(int argc, char** argv) {
    if (argc != 3) msl_die("usage: executor DESCRIPTOR BYTES");
    Executor executor(atoi(argv[1]), strtoull(argv[2], nullptr, 10));
    uint32_t length;
    while (receive(&length, 4)) {
        std::vector<char> bytes(length);
        if (!receive(bytes.data(), length)) break;
        Reader request(bytes);
        switch (request.u32()) {
        case LOAD: executor.load(request); break;
        case RUN: executor.run(request); break;
        default: msl_die("an unknown request");
        }
    }
    _exit(0);
}
