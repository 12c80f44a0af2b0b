/* A stand-in for amdhip64_7.dll and nvcuda.dll: the little of them that tells which card a device is. */
#include "fake.h"

typedef struct { char name[128], pci[32]; uint64_t luid; uint32_t nodes; } device_t;
static device_t devices[8];
static int device_count;

enum { NOT_SUPPORTED = 801, INVALID_DEVICE = 101, CUDA_HANDLES = 1000, PROPERTIES_SIZE = 1472 };

API void fake_reset(void) { device_count = 0; failing[0] = 0; }
API void fake_device(const char *name, uint64_t luid, uint32_t nodes, const char *pci)
{
    device_t *d = &devices[device_count++];
    memset(d, 0, sizeof *d);
    snprintf(d->name, sizeof d->name, "%s", name);
    snprintf(d->pci, sizeof d->pci, "%s", pci);
    d->luid = luid; d->nodes = nodes;
}
static device_t *at(int device) { return device >= 0 && device < device_count ? &devices[device] : NULL; }
static int tell_luid(device_t *d, char *luid, uint32_t *nodes)
{
    if (!d) return INVALID_DEVICE;
    memcpy(luid, &d->luid, 8);
    *nodes = d->nodes;
    return 0;
}
static int tell_pci(device_t *d, char *text, int size)
{
    if (!d || !d->pci[0] || size < 13) return INVALID_DEVICE;
    snprintf(text, size, "%s", d->pci);
    return 0;
}

API int hipDeviceGetLuid(char *luid, uint32_t *nodes, int device)
{
    return fails("hipDeviceGetLuid") ? NOT_SUPPORTED : tell_luid(at(device), luid, nodes);
}
API int hipGetDevicePropertiesR0600(char *properties, int device)
{
    device_t *d = at(device);
    if (fails("hipGetDevicePropertiesR0600") || !d) return INVALID_DEVICE;
    memset(properties, 0xAA, PROPERTIES_SIZE);
    memset(properties, 0, 256);
    snprintf(properties, 256, "%s", d->name);
    memcpy(properties + 272, &d->luid, 8);
    memcpy(properties + 280, &d->nodes, 4);
    return 0;
}
API int hipGetDeviceProperties(char *properties, int device) /* the old layout: no LUID in it */
{
    device_t *d = at(device);
    if (!d) return INVALID_DEVICE;
    memset(properties, 0xCC, 1024);
    memset(properties, 0, 256);
    snprintf(properties, 256, "%s", d->name);
    return 0;
}
API int hipDeviceGetPCIBusId(char *text, int size, int device)
{
    return fails("hipDeviceGetPCIBusId") ? INVALID_DEVICE : tell_pci(at(device), text, size);
}

API int cuDeviceGet(int *handle, int ordinal)
{
    if (fails("cuDeviceGet") || !at(ordinal)) return INVALID_DEVICE;
    *handle = CUDA_HANDLES + ordinal;
    return 0;
}
API int cuDeviceGetLuid(char *luid, uint32_t *nodes, int handle)
{
    return fails("cuDeviceGetLuid") ? NOT_SUPPORTED : tell_luid(at(handle - CUDA_HANDLES), luid, nodes);
}
API int cuDeviceGetPCIBusId(char *text, int size, int handle)
{
    return fails("cuDeviceGetPCIBusId") ? INVALID_DEVICE : tell_pci(at(handle - CUDA_HANDLES), text, size);
}
