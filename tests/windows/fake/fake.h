/* What the fakes share: fixed-width COM types, the export mark, and calls that a test can make fail by name. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef _WIN32
# define API __declspec(dllexport)
#else
# define API __attribute__((visibility("default")))
#endif

typedef struct { uint32_t low; int32_t high; } luid_t;

static char failing[1024]; /* ",Name,Name," */
API void fake_fail(const char *names) { snprintf(failing, sizeof failing, ",%s,", names); }
static int fails(const char *name)
{
    char wanted[128];
    snprintf(wanted, sizeof wanted, ",%s,", name);
    return strstr(failing, wanted) != NULL;
}
