// A fake NVRTC, libnvrtc.so.12: compiles a codec's CUDA C++ when a program runs, for the fake driver beside it.
//
// It asks the host's compiler, as `../build` does for .cu files, and loads what that makes, so that the kernels are known
// to the fake driver; what is PTX elsewhere is a line that says so. `build` tells where the compiler and the headers are.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <unistd.h>
#include <vector>

#define API extern "C" __attribute__((visibility("default"))) int

enum { SUCCESS = 0, INVALID_INPUT = 3, INVALID_OPTION = 5, COMPILATION = 6 };

struct Program {
    std::string source, name, log, ptx;
    std::vector<std::pair<std::string, std::string>> headers;
};

static void write_file(const std::string &path, const std::string &text) { std::ofstream(path) << text; }

static std::string read_file(const std::string &path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
}

// Returns the source with an entry for each kernel, which NVRTC does without.
static std::string with_entries(const std::string &source) {
    if (source.find("ENTRY(") != std::string::npos) return source;
    std::string entries;
    std::regex kernel("__global__\\s+void\\s+(\\w+)\\s*\\(");
    for (std::sregex_iterator found(source.begin(), source.end(), kernel), end; found != end; ++found) {
        entries += "\nENTRY(" + (*found)[1].str() + ")";
    }
    return source + entries + "\n";
}

// Compiles and loads a program in a folder of its own. Returns false with a log if it is wrong.
static bool compile_in(const std::string &folder, Program &program) {
    for (auto &[name, text] : program.headers) write_file(folder + "/" + name, text);
    write_file(folder + "/" + program.name, with_entries(program.source));
    write_file(folder + "/all.cpp", "namespace {\n#include \"" + program.name + "\"\n}\n");
    std::string command = COMPILE " -I " + folder + " -o " + folder + "/kernels.so " + folder + "/all.cpp 2>" + folder + "/log";
    int status = system(command.c_str());
    program.log = read_file(folder + "/log");
    if (status != 0) return false;
    // It stays loaded, as the driver keeps its kernels.
    if (dlopen((folder + "/kernels.so").c_str(), RTLD_NOW | RTLD_LOCAL)) return true;
    program.log = dlerror();
    return false;
}

API nvrtcVersion(int *major, int *minor) {
    *major = 12;
    *minor = 0;
    return SUCCESS;
}

API nvrtcCreateProgram(Program **to, const char *source, const char *name, int count, const char *const *headers,
                       const char *const *names) {
    if (to == nullptr || source == nullptr || count < 0) return INVALID_INPUT;
    *to = new Program{source, name ? name : "default_program", "", "", {}};
    for (int i = 0; i < count; i++) (*to)->headers.emplace_back(names[i], headers[i]);
    return SUCCESS;
}

API nvrtcCompileProgram(Program *program, int count, const char *const *options) {
    std::set<std::string> given(options, options + count);
    if (!given.count("-fmad=false") && !given.count("--fmad=false")) {
        program->log = "without -fmad=false, kernels have other bits than the host's";
        return INVALID_OPTION;
    }
    char folder[] = "/tmp/fake-nvrtc-XXXXXX";
    if (mkdtemp(folder) == nullptr) return COMPILATION;
    bool is_fine = compile_in(folder, *program);
    for (auto &header : program->headers) unlink((std::string(folder) + "/" + header.first).c_str());
    for (std::string name : {program->name.c_str(), "all.cpp", "kernels.so", "log"}) {
        unlink((std::string(folder) + "/" + name).c_str());
    }
    rmdir(folder);
    program->ptx = ".version 8.0 // compiled for the fake driver\n";
    return is_fine ? SUCCESS : COMPILATION;
}

API nvrtcGetPTXSize(Program *program, size_t *bytes) {
    *bytes = program->ptx.size() + 1;
    return SUCCESS;
}
API nvrtcGetPTX(Program *program, char *to) {
    strcpy(to, program->ptx.c_str());
    return SUCCESS;
}
API nvrtcGetProgramLogSize(Program *program, size_t *bytes) {
    *bytes = program->log.size() + 1;
    return SUCCESS;
}
API nvrtcGetProgramLog(Program *program, char *to) {
    strcpy(to, program->log.c_str());
    return SUCCESS;
}
API nvrtcDestroyProgram(Program **program) {
    delete *program;
    *program = nullptr;
    return SUCCESS;
}
