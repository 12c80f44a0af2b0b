/* A stand-in for dxgi.dll, the D3DKMT part of gdi32.dll and, off Windows, the events of kernel32.dll.
 *
 *   gcc -shared -fPIC -pthread -o fake_windows.so fake_windows.c
 *   x86_64-w64-mingw32-gcc -shared -o fake_windows.dll fake_windows.c
 *
 * The vtables have their full length; slots that nobody should call return E_NOTIMPL. The fake_* functions say what there
 * is. Slots, IIDs and layouts are written out here a second time, from Microsoft's headers, on purpose.
 */
#include "fake.h"
#ifdef _WIN32
# include <windows.h>
#else
# include <pthread.h>
#endif

#define E_NOTIMPL_ ((int32_t)0x80004001)
#define E_NOINTERFACE_ ((int32_t)0x80004002)
#define E_FAIL_ ((int32_t)0x80004005)
#define DXGI_INVALID_CALL ((int32_t)0x887A0001)
#define DXGI_NOT_FOUND ((int32_t)0x887A0002)
#define NT_INVALID_PARAMETER ((int32_t)0xC000000D)

enum { LOCAL, NON_LOCAL, GROUPS, NODES = 2, MOST = 16 };

typedef struct { uint64_t budget, usage, available, reservation; } memory_t;
typedef struct {
    char name[128];
    uint32_t vendor, flags, pci[3];
    uint64_t luid, dedicated, shared;
    memory_t memory[NODES][GROUPS];
} card_t;
typedef struct {
    uint16_t description[128];
    uint32_t vendor, device, subsystem, revision;
    uint64_t dedicated_video, dedicated_system, shared_system;
    luid_t luid;
    uint32_t flags;
} description_t;

static card_t cards[MOST];
static int card_count, old_windows, generation, live;
static void *events[MOST];

static uint64_t joined(luid_t luid) { return (uint64_t)(uint32_t)luid.high << 32 | luid.low; }
static card_t *card_of(uint64_t luid)
{
    for (int i = 0; i < card_count; i++) if (cards[i].luid == luid) return &cards[i];
    return NULL;
}

/* ---- what a test says ---- */
API void fake_reset(void)
{
    card_count = old_windows = 0;
    failing[0] = 0;
    memset(events, 0, sizeof events);
}
API void fake_card(const char *name, uint32_t vendor, uint64_t luid, uint64_t dedicated, uint64_t shared, uint32_t flags,
                   uint32_t bus, uint32_t slot, uint32_t function)
{
    card_t *c = &cards[card_count++];
    memset(c, 0, sizeof *c);
    snprintf(c->name, sizeof c->name, "%s", name);
    c->vendor = vendor; c->luid = luid; c->dedicated = dedicated; c->shared = shared; c->flags = flags;
    c->pci[0] = bus; c->pci[1] = slot; c->pci[2] = function;
    c->memory[0][LOCAL].budget = dedicated; c->memory[0][NON_LOCAL].budget = shared;
}
API void fake_memory(uint64_t luid, uint32_t node, uint32_t group, uint64_t budget, uint64_t usage)
{
    for (int i = 0; i < card_count; i++)
        if (cards[i].luid == luid) cards[i].memory[node][group] = (memory_t){ budget, usage, budget / 2, 0 };
}
API void fake_forget_cards(void) { card_count = 0; }
API void fake_old(int yes) { old_windows = yes; }
API void fake_outdate(void) { generation++; }
API int fake_live(void) { return live; }
API int fake_registered(void) { int n = 0; for (int i = 0; i < MOST; i++) n += events[i] != NULL; return n; }

/* ---- events ---- */
#ifdef _WIN32
static void set_event(void *event) { SetEvent(event); }
API int fake_handles(void) { return 0; } /* the real kernel32 has them */
#else
typedef struct { int manual, set; } event_t;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;
static int handles;
API void *CreateEventW(void *security, int manual, int set, const void *name)
{
    (void)security; (void)name;
    if (fails("CreateEventW")) return NULL;
    event_t *e = malloc(sizeof *e);
    *e = (event_t){ manual, set };
    __atomic_add_fetch(&handles, 1, __ATOMIC_SEQ_CST);
    return e;
}
API int SetEvent(event_t *e)
{
    pthread_mutex_lock(&mutex);
    e->set = 1;
    pthread_cond_broadcast(&moved);
    pthread_mutex_unlock(&mutex);
    return 1;
}
API int CloseHandle(event_t *e) { __atomic_sub_fetch(&handles, 1, __ATOMIC_SEQ_CST); free(e); return 1; }
API uint32_t WaitForMultipleObjects(uint32_t count, event_t **waited, int all, uint32_t milliseconds)
{
    if (fails("WaitForMultipleObjects") || all || milliseconds != 0xFFFFFFFFu) return 0xFFFFFFFFu; /* WAIT_FAILED */
    pthread_mutex_lock(&mutex);
    for (;;) {
        for (uint32_t i = 0; i < count; i++) if (waited[i]->set) {
            if (!waited[i]->manual) waited[i]->set = 0;
            pthread_mutex_unlock(&mutex);
            return i;
        }
        pthread_cond_wait(&moved, &mutex);
    }
}
static void set_event(void *event) { SetEvent(event); }
API int fake_handles(void) { return handles; }
#endif
API void fake_signal(void) { for (int i = 0; i < MOST; i++) if (events[i]) set_event(events[i]); }

/* ---- COM: an object begins with the address of its vtable ---- */
typedef struct object { void **vtable; int refs, generation; card_t card; } object;

static const uint8_t IUnknown_[16] = { 0,0,0,0, 0,0, 0,0, 0xc0,0,0,0,0,0,0,0x46 };
static const uint8_t Factory1_[16] = { 0x78,0xae,0x0a,0x77, 0x6f,0xf2, 0xba,0x4d, 0xa8,0x29,0x25,0x3c,0x83,0xd1,0xb3,0x87 };
static const uint8_t Factory4_[16] = { 0x02,0xea,0xc6,0x1b, 0x36,0xef, 0x4f,0x46, 0xbf,0x0c,0x21,0xca,0x39,0xe5,0x16,0x8a };
static const uint8_t Adapter1_[16] = { 0x61,0x8f,0x03,0x29, 0x39,0x38, 0x26,0x46, 0x91,0xfd,0x08,0x68,0x79,0x01,0x1a,0x05 };
static const uint8_t Adapter3_[16] = { 0xa4,0x67,0x59,0x64, 0x92,0x13, 0x10,0x43, 0xa7,0x98,0x80,0x53,0xce,0x3e,0x93,0xfd };

static uint32_t add_ref(object *o) { live++; return ++o->refs; }
static uint32_t release(object *o)
{
    uint32_t left = --o->refs;
    live--;
    if (!left) free(o);
    return left;
}
static int32_t unused(void) { return E_NOTIMPL_; }
static void *new_object(void **vtable, const card_t *card)
{
    object *o = calloc(1, sizeof *o);
    o->vtable = vtable; o->generation = generation;
    if (card) o->card = *card;
    add_ref(o);
    return o;
}
static int32_t become(object *o, const uint8_t *iid, const uint8_t *one, const uint8_t *newer, void **out)
{
    int known = !memcmp(iid, IUnknown_, 16) || !memcmp(iid, one, 16) || (!old_windows && !memcmp(iid, newer, 16));
    *out = known ? o : NULL;
    if (!known) return E_NOINTERFACE_;
    add_ref(o);
    return 0;
}

static int32_t adapter_query(object *o, const uint8_t *iid, void **out)
{
    if (fails("QueryInterface")) { *out = NULL; return E_FAIL_; }
    return become(o, iid, Adapter1_, Adapter3_, out);
}
static int32_t get_desc1(object *o, description_t *d)
{
    if (fails("GetDesc1")) return E_FAIL_;
    memset(d, 0, sizeof *d);
    for (int i = 0; i < 127 && o->card.name[i]; i++) d->description[i] = (uint8_t)o->card.name[i];
    d->vendor = o->card.vendor; d->device = 0x744c; d->subsystem = 0x11; d->revision = 0x22; d->flags = o->card.flags;
    d->dedicated_video = o->card.dedicated; d->dedicated_system = 0x33; d->shared_system = o->card.shared;
    d->luid.low = (uint32_t)o->card.luid; d->luid.high = (int32_t)(o->card.luid >> 32);
    return 0;
}
static int32_t query_memory(object *o, uint32_t node, uint32_t group, memory_t *out)
{
    card_t *now = card_of(o->card.luid);
    if (fails("QueryVideoMemoryInfo") || (group == NON_LOCAL && fails("NonLocal"))) return E_FAIL_;
    if (!now || node >= NODES || group >= GROUPS || !out) return DXGI_INVALID_CALL;
    *out = now->memory[node][group];
    return 0;
}
static int32_t register_event(object *o, void *event, uint32_t *cookie)
{
    (void)o;
    if (fails("Register") || !event) return E_FAIL_;
    for (int i = 0; i < MOST; i++) if (!events[i]) { events[i] = event; *cookie = i + 1; return 0; }
    return E_FAIL_;
}
static void unregister_event(object *o, uint32_t cookie) { (void)o; if (cookie && cookie <= MOST) events[cookie - 1] = NULL; }

#define U unused
static void *adapter_vtable[18] = {
    /* IUnknown */ adapter_query, add_ref, release, /* IDXGIObject */ U, U, U, U, /* IDXGIAdapter */ U, U, U,
    /* IDXGIAdapter1 */ get_desc1, /* IDXGIAdapter2 */ U,
    /* IDXGIAdapter3 */ U, U, query_memory, U, register_event, unregister_event };

static int32_t factory_query(object *o, const uint8_t *iid, void **out) { return become(o, iid, Factory1_, Factory4_, out); }
static int32_t enum_adapters1(object *o, uint32_t index, void **out)
{
    (void)o;
    *out = NULL;
    if (fails("EnumAdapters1")) return E_FAIL_;
    if (index >= (uint32_t)card_count) return DXGI_NOT_FOUND;
    *out = new_object(adapter_vtable, &cards[index]);
    return 0;
}
static int32_t is_current(object *o) { return o->generation == generation; }
static int32_t enum_adapter_by_luid(object *o, luid_t luid, const uint8_t *iid, void **out)
{
    card_t *card = card_of(joined(luid));
    (void)o;
    *out = NULL;
    if (fails("EnumAdapterByLuid")) return E_FAIL_;
    if (!card) return DXGI_NOT_FOUND;
    object *adapter = new_object(adapter_vtable, card);
    int32_t status = adapter_query(adapter, iid, out);
    release(adapter);
    return status;
}
static void *factory_vtable[28] = {
    /* IUnknown */ factory_query, add_ref, release, /* IDXGIObject */ U, U, U, U, /* IDXGIFactory */ U, U, U, U, U,
    /* IDXGIFactory1 */ enum_adapters1, is_current, /* IDXGIFactory2 */ U, U, U, U, U, U, U, U, U, U, U,
    /* IDXGIFactory3 */ U, /* IDXGIFactory4 */ enum_adapter_by_luid, U };

API int32_t CreateDXGIFactory1(const uint8_t *iid, void **out)
{
    *out = NULL;
    if (fails("CreateDXGIFactory1")) return E_FAIL_;
    object *factory = new_object(factory_vtable, NULL);
    int32_t status = factory_query(factory, iid, out);
    release(factory);
    return status;
}

/* ---- gdi32.dll: an adapter's place on the PCI bus ---- */
typedef struct { luid_t luid; uint32_t handle; } opening_t;
typedef struct { uint32_t handle, kind; void *data; uint32_t size; } adapter_query_t;
static int kernel_handles;
API int fake_kernel_handles(void) { return kernel_handles; }
API int32_t D3DKMTOpenAdapterFromLuid(opening_t *o)
{
    card_t *card = card_of(joined(o->luid));
    if (fails("D3DKMTOpenAdapterFromLuid") || !card) return NT_INVALID_PARAMETER;
    o->handle = 0x40000000u + (uint32_t)(card - cards);
    kernel_handles++;
    return 0;
}
API int32_t D3DKMTCloseAdapter(uint32_t *handle) { (void)handle; kernel_handles--; return 0; }
API int32_t D3DKMTQueryAdapterInfo(adapter_query_t *q)
{
    uint32_t index = q->handle - 0x40000000u;
    if (fails("D3DKMTQueryAdapterInfo") || q->kind != 6 || q->size != 12 || index >= (uint32_t)card_count)
        return NT_INVALID_PARAMETER;
    memcpy(q->data, cards[index].pci, 12);
    return 0;
}
