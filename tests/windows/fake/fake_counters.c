/* A stand-in for pdh.dll: wildcards over the two counter objects of GPU memory. */
#include "fake.h"

enum { MOST = 16 };
typedef struct { uint32_t pid, phys, status; uint64_t luid, dedicated, shared; int adapter; } row_t;
static row_t rows[MOST];
static int row_count, growing, queries;


API void fake_reset(void) { row_count = growing = 0; failing[0] = 0; }
API void fake_row(uint32_t pid, uint64_t luid, uint32_t phys, uint64_t dedicated, uint64_t shared, int adapter, uint32_t status)
{
    rows[row_count++] = (row_t){ pid, phys, status, luid, dedicated, shared, adapter };
}
API void fake_forget_rows(void) { row_count = 0; }
API void fake_growing(int times) { growing = times; }
API int fake_queries(void) { return queries; }

#define PDH_MORE_DATA_ 0x800007D2u
#define PDH_NO_DATA_ 0x800007D5u
#define PDH_INVALID_HANDLE_ 0xC0000BBCu
#define PDH_NO_COUNTER_ 0xC0000BB9u
#define PDH_FAILED 0xC0000BBBu

typedef struct { int collected; } query_t;
typedef struct counter { query_t *query; int adapter, shared; } counter_t;
typedef struct { uint16_t *name; struct { uint32_t status; int64_t value; } value; } item_t;

API uint32_t PdhOpenQueryW(const void *source, void *user, query_t **out)
{
    (void)source; (void)user;
    if (fails("PdhOpenQueryW")) return PDH_FAILED;
    *out = calloc(1, sizeof **out);
    queries++;
    return 0;
}
API uint32_t PdhCloseQuery(query_t *q) { free(q); queries--; return 0; }
API uint32_t PdhCollectQueryData(query_t *q)
{
    if (fails("PdhCollectQueryData") || !q) return PDH_INVALID_HANDLE_;
    q->collected = 1;
    return 0;
}
API uint32_t PdhAddEnglishCounterW(query_t *q, const uint16_t *path, void *user, counter_t **out)
{
    static counter_t counters[64];
    static int next;
    char text[128];
    int i = 0;
    (void)user;
    if (fails("PdhAddEnglishCounterW")) return PDH_NO_COUNTER_;
    for (; i < 127 && path[i]; i++) text[i] = (char)path[i];
    text[i] = 0;
    int adapter = !strncmp(text, "\\GPU Adapter Memory(*)\\", 23), process = !strncmp(text, "\\GPU Process Memory(*)\\", 23);
    int shared = !strcmp(text + 23, "Shared Usage"), dedicated = !strcmp(text + 23, "Dedicated Usage");
    if (!(adapter || process) || !(shared || dedicated)) return PDH_NO_COUNTER_;
    *out = &counters[next++ % 64];
    **out = (counter_t){ q, adapter, shared };
    return 0;
}
API uint32_t PdhGetFormattedCounterArrayW(counter_t *c, uint32_t format, uint32_t *size, uint32_t *count, item_t *items)
{
    enum { TEXT = 64 };
    char name[TEXT];
    uint32_t n = 0, need;
    if (fails("PdhGetFormattedCounterArrayW") || format != 0x400) return PDH_FAILED;
    if (!c->query->collected) return PDH_NO_DATA_;
    for (int i = 0; i < row_count; i++) n += rows[i].adapter == c->adapter;
    need = n * (sizeof(item_t) + TEXT * sizeof(uint16_t));
    if (items && growing > 0) { growing--; need += 64; *size = need; return PDH_MORE_DATA_; }
    if (n && (!items || *size < need)) { *size = need; *count = n; return PDH_MORE_DATA_; }
    uint16_t *text = (uint16_t *)(items + n);
    item_t *item = items;
    for (int i = 0; i < row_count; i++) {
        if (rows[i].adapter != c->adapter) continue;
        int at = c->adapter ? 0 : snprintf(name, TEXT, "pid_%u_", rows[i].pid);
        snprintf(name + at, TEXT - at, "luid_0x%08X_0x%08X_phys_%u",
                 (unsigned)(rows[i].luid >> 32), (unsigned)rows[i].luid, rows[i].phys);
        item->name = text;
        for (int k = 0; k == 0 || name[k - 1]; k++) text[k] = (uint8_t)name[k];
        item->value.status = rows[i].status;
        item->value.value = (int64_t)(c->shared ? rows[i].shared : rows[i].dedicated);
        text += TEXT; item++;
    }
    *count = n;
    return 0;
}
