// Modules and launches: finds a kernel by its name, and runs it.
//
// What a module has is what its PTX says; what runs is the .cu file's code, compiled for the host (kernel.h). PTX whose
// parameters are not those of the .cu file is refused: it is of another version.
#include "../fake.h"
#include "../memory/memory.h"
#include "../stream/context.h"
#include "block.h"
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <unistd.h>
#include <vector>

struct Function {
    const fake::Entry *entry;
    Module *module;
};

// Stays when it is unloaded, so that a launch of one of its functions is found out instead of wild.
struct Module {
    Context *context;
    bool is_loaded = true;
    std::string text = {};
    std::map<std::string, Function> functions = {};
};

namespace fake {
static Entry *entries;
// True once all kernels of the library are known.
static bool is_complete;
static auto &modules = *new std::set<Module *>();

Entry::Entry(const char *name, void (*thread)(const unsigned char *), const Parameter *parameters, size_t count)
    : name(name), thread(thread), parameters(parameters), count(count), next(entries) {
    // What is compiled while the program runs may be compiled again.
    for (Entry *entry = entries; entry && !is_complete; entry = entry->next) {
        if (strcmp(entry->name, name) == 0) die("two kernels are called %s", name);
    }
    entries = this;
}

static const Entry *find(const std::string &name) {
    for (const Entry *entry = entries; entry; entry = entry->next) {
        if (name == entry->name) return entry;
    }
    return nullptr;
}

// Returns the bytes of a parameter as PTX declares it: `.param .u64 x` or `.param .align 8 .b8 x[24]`.
static size_t size_of(const std::string &declaration) {
    size_t bracket = declaration.find('[');
    if (bracket != std::string::npos) return strtoul(declaration.c_str() + bracket + 1, nullptr, 10);
    for (const char *type : {".u", ".s", ".b", ".f"}) {
        for (size_t at = 0; (at = declaration.find(type, at)) != std::string::npos; at++) {
            size_t bits = strtoul(declaration.c_str() + at + 2, nullptr, 10);
            if (bits) return bits / 8;
        }
    }
    return 0;
}

// Returns the sizes of a kernel's parameters by its PTX.
static std::vector<size_t> declared(const std::string &text, size_t name_end) {
    std::vector<size_t> sizes;
    size_t close = text.find(')', name_end);
    if (text[name_end] != '(' || close == std::string::npos) return sizes;
    for (size_t at = name_end; (at = text.find(".param", at)) < close; at++) {
        size_t end = std::min(text.find(',', at), close);
        sizes.push_back(size_of(text.substr(at + 6, end - at - 6)));
    }
    return sizes;
}

// Returns whether a module's PTX has a kernel with these parameters.
static CUresult look_up(const Module &module, const Entry *entry, const std::string &name) {
    if (module.text.find("// compiled for the fake driver") != std::string::npos) return entry ? SUCCESS : NOT_FOUND;
    size_t at = module.text.find(".entry " + name + "(");
    if (at == std::string::npos) return NOT_FOUND;
    if (entry == nullptr) die("%s is in PTX, but no .cu file of this library has it", name.c_str());
    std::vector<size_t> sizes = declared(module.text, at + 7 + name.size());
    bool is_same = sizes.size() == entry->count;
    for (size_t i = 0; is_same && i < sizes.size(); i++) is_same = sizes[i] == entry->parameters[i].size;
    if (!is_same) die("the PTX of %s has other parameters than its .cu file", name.c_str());
    return SUCCESS;
}

// A launch, as the driver keeps it until the kernel runs.
struct Launch {
    const Entry *entry;
    Context *context;
    unsigned blocks, threads;
    uint64_t order;
    CUresult fault = SUCCESS;
    alignas(16) std::vector<unsigned char> parameters = {};
};

// Puts addresses that the host's compiler understands in the place of the device's.
static void translate(Launch &launch) {
    for (size_t i = 0; i < launch.entry->count; i++) {
        const Parameter &parameter = launch.entry->parameters[i];
        if (!parameter.has_pointers) continue;
        for (size_t at = 0; at + 8 <= parameter.size; at += 8) {
            unsigned char *place = launch.parameters.data() + i * PLACE + at;
            uint64_t value;
            memcpy(&value, place, 8);
            value = fake::parameter(value, parameter.size == 8, launch.context, launch.entry->name);
            memcpy(place, &value, 8);
        }
    }
}

static bool is_loaded(Module *module) { return modules.count(module) && module->is_loaded; }

void forget_modules(Context *context) {
    for (Module *module : modules) {
        if (module->context == context) module->is_loaded = false;
    }
}

static CUresult run(Launch &launch) {
    if (launch.fault != SUCCESS) return launch.fault;
    translate(launch);
    run_grid(*launch.entry, launch.blocks, launch.threads, launch.parameters.data(), launch.order);
    return SUCCESS;
}
} // namespace fake

using namespace fake;

API cuModuleLoadData(CUmodule *to, const void *image) {
    ENTER(context);
    if (to == nullptr || image == nullptr) return INVALID_VALUE;
    if (settings.module) return CUresult(settings.module);
    while (__atomic_load_n(&settings.compiling, __ATOMIC_RELAXED)) usleep(100);
    if (__atomic_fetch_add(&counts.loads, 1, __ATOMIC_RELAXED) == settings.load.number) return CUresult(settings.load.code);
    std::string text = static_cast<const char *>(image);
    if (text.find(".version") == std::string::npos) return INVALID_PTX;
    Lock lock(mutex);
    is_complete = true;
    Module *module = new Module{context};
    module->text = text;
    modules.insert(module);
    *to = module;
    return SUCCESS;
}

API cuModuleLoadDataEx(CUmodule *to, const void *image, unsigned, int *, void **) {
    return cuModuleLoadData(to, image);
}

API cuModuleUnload(CUmodule module) {
    ENTER(context);
    Lock lock(mutex);
    if (!is_loaded(module)) return INVALID_HANDLE;
    module->is_loaded = false;
    return SUCCESS;
}

API cuModuleGetFunction(CUfunction *to, CUmodule module, const char *name) {
    ENTER(context);
    Lock lock(mutex);
    if (to == nullptr || name == nullptr) return INVALID_VALUE;
    if (!is_loaded(module)) return INVALID_HANDLE;
    const Entry *entry = find(name);
    CUresult result = look_up(*module, entry, name);
    if (result != SUCCESS) return result;
    *to = &(module->functions[name] = {entry, module});
    return SUCCESS;
}

API cuFuncGetAttribute(int *value, int attribute, CUfunction function) {
    ENTER(context);
    if (function == nullptr) return INVALID_HANDLE;
    // Threads of a block; registers.
    *value = attribute == 0 ? 1024 : attribute == 4 ? 32 : 0;
    return SUCCESS;
}

API cuLaunchKernel(CUfunction function, unsigned blocks, unsigned blocks_y, unsigned blocks_z, unsigned threads,
                   unsigned threads_y, unsigned threads_z, unsigned shared, CUstream handle, void **parameters,
                   void **extra) {
    ENTER(context);
    Lock lock(mutex);
    auto stream = stream_of(handle, context);
    if (!stream || function == nullptr || !is_loaded(function->module)) return INVALID_HANDLE;
    if (function->module->context != context) return INVALID_CONTEXT;
    bool is_flat = blocks_y == 1 && blocks_z == 1 && threads_y == 1 && threads_z == 1;
    if (!is_flat || blocks == 0 || blocks > INT32_MAX || threads == 0 || threads > 1024) return INVALID_VALUE;
    if (shared || extra || (parameters == nullptr && function->entry->count)) return INVALID_VALUE;
    uint64_t number = counts.launches++;
    if (number == settings.launch.number) return CUresult(settings.launch.code);
    Launch launch{function->entry, context, blocks, threads, draw()};
    if (number == settings.fault.number) launch.fault = CUresult(settings.fault.code);
    launch.parameters.resize(function->entry->count * PLACE);
    for (size_t i = 0; i < function->entry->count; i++) {
        memcpy(launch.parameters.data() + i * PLACE, parameters[i], function->entry->parameters[i].size);
    }
    Step step;
    step.work = [launch = std::move(launch)]() mutable { return run(launch); };
    step.never = number == settings.hang;
    enqueue(stream, std::move(step));
    return SUCCESS;
}
