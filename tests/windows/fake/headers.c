/* What the Windows headers of mingw say of slots, IIDs and layouts, so that mmswap's own can be held against them. */
#define COBJMACROS
#define CINTERFACE
#define INITGUID
#include <windows.h>
#include <dxgi1_6.h>
#include <pdh.h>
#include <stddef.h>
#include <string.h>
#define API __declspec(dllexport)

typedef struct { const char *name; unsigned value; } entry;
#define SLOT(I, m) { #I "." #m, offsetof(I##Vtbl, m) / sizeof(void *) }
#define AT(S, m) { #S "." #m, offsetof(S, m) }
#define SIZE(S) { #S, sizeof(S) }
static const entry entries[] = {
    SLOT(IDXGIAdapter3, QueryInterface), SLOT(IDXGIAdapter3, Release), SLOT(IDXGIAdapter3, GetDesc1),
    SLOT(IDXGIAdapter3, QueryVideoMemoryInfo), SLOT(IDXGIAdapter3, RegisterVideoMemoryBudgetChangeNotificationEvent),
    SLOT(IDXGIAdapter3, UnregisterVideoMemoryBudgetChangeNotification),
    SLOT(IDXGIFactory4, QueryInterface), SLOT(IDXGIFactory4, Release), SLOT(IDXGIFactory4, EnumAdapters1),
    SLOT(IDXGIFactory4, IsCurrent), SLOT(IDXGIFactory4, EnumAdapterByLuid),
    SIZE(DXGI_ADAPTER_DESC1), AT(DXGI_ADAPTER_DESC1, Description), AT(DXGI_ADAPTER_DESC1, VendorId),
    AT(DXGI_ADAPTER_DESC1, DedicatedVideoMemory), AT(DXGI_ADAPTER_DESC1, SharedSystemMemory),
    AT(DXGI_ADAPTER_DESC1, AdapterLuid), AT(DXGI_ADAPTER_DESC1, Flags),
    SIZE(DXGI_QUERY_VIDEO_MEMORY_INFO), AT(DXGI_QUERY_VIDEO_MEMORY_INFO, Budget),
    AT(DXGI_QUERY_VIDEO_MEMORY_INFO, CurrentUsage), AT(LUID, LowPart), AT(LUID, HighPart),
    SIZE(PDH_FMT_COUNTERVALUE_ITEM_W), AT(PDH_FMT_COUNTERVALUE_ITEM_W, FmtValue),
    AT(PDH_FMT_COUNTERVALUE, CStatus), AT(PDH_FMT_COUNTERVALUE, largeValue),
    { "DXGI_MEMORY_SEGMENT_GROUP_LOCAL", DXGI_MEMORY_SEGMENT_GROUP_LOCAL },
    { "DXGI_MEMORY_SEGMENT_GROUP_NON_LOCAL", DXGI_MEMORY_SEGMENT_GROUP_NON_LOCAL },
    { "DXGI_ADAPTER_FLAG_REMOTE", DXGI_ADAPTER_FLAG_REMOTE }, { "DXGI_ADAPTER_FLAG_SOFTWARE", DXGI_ADAPTER_FLAG_SOFTWARE },
    { "PDH_FMT_LARGE", PDH_FMT_LARGE },
};
API int header_value(const char *name)
{
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) if (!strcmp(entries[i].name, name)) return entries[i].value;
    return -1;
}
API const void *header_iid(const char *name)
{
    if (!strcmp(name, "IDXGIFactory4")) return &IID_IDXGIFactory4;
    if (!strcmp(name, "IDXGIAdapter3")) return &IID_IDXGIAdapter3;
    return NULL;
}
