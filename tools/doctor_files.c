/* Small files that the kernel writes. What is missing or makes no sense is unknown. */
#include "base/parse.h"
#include "tools/doctor.h"

#include <dlfcn.h>
#include <limits.h>
#include <string.h>

bool doctor_read_line(const struct doctor *doctor, const char *path, char *line, size_t room)
{
    char whole[PATH_MAX];
    FILE *file;
    bool got;

    if ((size_t)snprintf(whole, sizeof whole, "%s%s", doctor->root, path) >= sizeof whole)
        return false;
    file = fopen(whole, "re");
    if (file == NULL)
        return false;
    got = fgets(line, (int)room, file) != NULL;
    fclose(file);
    if (got)
        line[strcspn(line, "\n")] = '\0';
    return got;
}

bool doctor_read_number(const struct doctor *doctor, const char *path, uint64_t *number)
{
    char line[64];

    return doctor_read_line(doctor, path, line, sizeof line) && parse_number(line, number);
}

/* --- lines of a file that may be compressed ------------------------------------------------ */

/* zlib, if it is there; it reads plain files just as well. */
struct zlib {
    void *library;
    void *(*open)(const char *path, const char *mode);
    char *(*gets)(void *file, char *line, int room);
    int (*close)(void *file);
};

static bool zlib_load(struct zlib *zlib)
{
    zlib->library = dlopen("libz.so.1", RTLD_NOW | RTLD_LOCAL);
    if (zlib->library == NULL)
        return false;
    *(void **)&zlib->open = dlsym(zlib->library, "gzopen");
    *(void **)&zlib->gets = dlsym(zlib->library, "gzgets");
    *(void **)&zlib->close = dlsym(zlib->library, "gzclose");
    if (zlib->open != NULL && zlib->gets != NULL && zlib->close != NULL)
        return true;
    dlclose(zlib->library);
    return false;
}

static bool line_sets(const char *line, const char *name)
{
    size_t length = strlen(name);

    return strncmp(line, name, length) == 0 && line[length] == '=' && line[length + 1] != 'n';
}

static enum doctor_option find_compressed(const char *path, const char *name)
{
    enum doctor_option found = DOCTOR_OPTION_NOT_SET;
    struct zlib zlib;
    char line[256];
    void *file;

    if (!zlib_load(&zlib))
        return DOCTOR_OPTION_UNKNOWN;
    file = zlib.open(path, "rb");
    if (file == NULL) {
        dlclose(zlib.library);
        return DOCTOR_OPTION_UNKNOWN;
    }
    while (found == DOCTOR_OPTION_NOT_SET && zlib.gets(file, line, sizeof line) != NULL)
        if (line_sets(line, name))
            found = DOCTOR_OPTION_SET;
    zlib.close(file);
    dlclose(zlib.library);
    return found;
}

static enum doctor_option find_plain(const char *path, const char *name)
{
    enum doctor_option found = DOCTOR_OPTION_NOT_SET;
    FILE *file = fopen(path, "re");
    char line[256];

    if (file == NULL)
        return DOCTOR_OPTION_UNKNOWN;
    while (found == DOCTOR_OPTION_NOT_SET && fgets(line, sizeof line, file) != NULL)
        if (line_sets(line, name))
            found = DOCTOR_OPTION_SET;
    fclose(file);
    return found;
}

enum doctor_option doctor_read_option(const struct doctor *doctor, const char *path,
                                      const char *name)
{
    char whole[PATH_MAX];
    size_t length = strlen(path);

    if ((size_t)snprintf(whole, sizeof whole, "%s%s", doctor->root, path) >= sizeof whole)
        return DOCTOR_OPTION_UNKNOWN;
    return length > 3 && strcmp(path + length - 3, ".gz") == 0 ? find_compressed(whole, name)
                                                               : find_plain(whole, name);
}
