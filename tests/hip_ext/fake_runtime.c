// A HIP runtime, and its compiler, that only write down what they are asked for.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char told[65536];
static int answer = 0;  // of launches

const char* fake_told(void) { return told; }
void fake_forget(void) { told[0] = 0; }
void fake_answer(int status) { answer = status; }
static void tell(const char* text) { strncat(told, text, sizeof(told) - strlen(told) - 1); }

int hipRuntimeGetVersion(int* version) { return *version = 70226015, 0; }
const char* hipGetErrorString(int status) { return status == 98 ? "invalid device function" : "some error"; }
int hipModuleLoadData(void** module, const void* image) {
  if (memcmp(image, "CODE gfx1030", 12)) return 209;
  return *module = strdup(image), 0;
}
int hipModuleGetFunction(void** function, void* module, const char* name) {
  if (!module || !strcmp(name, "mms_k_rotary")) return 500;
  return *function = strdup(name), 0;
}
int hipModuleLaunchKernel(void* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                          unsigned shared, void* stream, void** values, void** extra) {
  char line[256];
  snprintf(line, sizeof(line), "%s %u %u %u %u %u %u %u stream %zu first %zu\n", (char*)f, gx, gy, gz, bx, by, bz, shared,
           (size_t)stream, *(size_t*)values[0]);
  tell(extra ? "extra\n" : line);
  return answer;
}

// What a library of launchers registers and calls.
typedef struct { unsigned x, y, z; } dim3;
static struct { const void* host; char name[64]; } registered[256];
static int count = 0;
void** __hipRegisterFatBinary(const void* wrapper) { static void* handle; return &handle; }
void __hipUnregisterFatBinary(void** handle) {}
void __hipRegisterFunction(void** handle, const void* host, char* device, const char* name, unsigned limit, void* tid,
                           void* bid, dim3* block, dim3* grid, int* size) {
  registered[count].host = host;
  snprintf(registered[count++].name, 64, "%s", name);
}
int fake_registered(void) { return count; }
int __hipPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void* stream) { return 0; }
int __hipPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void** stream) { return 0; }
int hipLaunchKernel(const void* host, dim3 grid, dim3 block, void** values, size_t shared, void* stream) {
  for (int i = 0; i < count; i++)
    if (registered[i].host == host)
      return hipModuleLaunchKernel(registered[i].name, grid.x, grid.y, grid.z, block.x, block.y, block.z, shared, stream, values, 0);
  return 98;
}

typedef struct { char* source; int headers; char** texts; char** names; char* log; char* code; } program;
int hiprtcCreateProgram(void** made, const char* source, const char* name, int count, const char** texts, const char** names) {
  program* p = calloc(1, sizeof(program));
  p->source = strdup(source), p->headers = count, p->names = calloc(count, sizeof(char*)), p->texts = calloc(count, sizeof(char*));
  for (int i = 0; i < count; i++) p->names[i] = strdup(names[i]), p->texts[i] = strdup(texts[i]);
  return *made = p, strcmp(name, "kernels.h") ? 7 : 0;
}
static int lacks(program* p, const char* text) {  // an include that is not among the headers
  for (const char* at = text; (at = strstr(at, "\n#include \"")); at++) {
    char name[64] = "";
    sscanf(at + 11, "%63[^\"]", name);
    int there = !strcmp(name, "shim.h") || !strcmp(name, "kernels.h");  // of processors alone; the program itself
    for (int i = 0; i < p->headers; i++) there |= !strcmp(name, p->names[i]);
    if (!there) return 1;
  }
  return 0;
}
int hiprtcCompileProgram(program* p, int count, const char** options) {
  const char* arch = "";
  int rtc = 0, missing = lacks(p, p->source);
  for (int i = 0; i < count; i++) {
    if (!strncmp(options[i], "--offload-arch=", 15)) arch = options[i] + 15;
    rtc |= !strcmp(options[i], "-DMMS_RTC");
  }
  for (int i = 0; i < p->headers; i++) missing |= lacks(p, p->texts[i]);
  p->log = "warning: slow\nkernels.h:3:1: error: no such card\n";
  if (missing || !rtc || !strcmp(arch, "gfx1031")) return 6;
  p->code = calloc(1, 64);
  snprintf(p->code, 64, "CODE %s", arch);
  return 0;
}
int hiprtcGetProgramLogSize(program* p, size_t* size) { return *size = strlen(p->log) + 1, 0; }
int hiprtcGetProgramLog(program* p, char* text) { return strcpy(text, p->log), 0; }
int hiprtcGetCodeSize(program* p, size_t* size) { return *size = 64, 0; }
int hiprtcGetCode(program* p, char* code) { return memcpy(code, p->code, 64), 0; }
int hiprtcDestroyProgram(void** p) { return *p = 0, 0; }
const char* hiprtcGetErrorString(int status) { return "HIPRTC_ERROR"; }
