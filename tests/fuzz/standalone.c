/*
 * Runs a fuzz target over files, for a compiler without libFuzzer: every file named on the command
 * line and every file in the folders named there. Prints TAP: one test, that all of them came to an
 * end, and there was one at least.
 */
#include <ftw.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static unsigned int files_run;

/* A block of exactly the file's size, so that a sanitizer sees a read beyond it. */
static int run_file(const char *path, size_t size)
{
    uint8_t *data = malloc(size > 0 ? size : 1);
    FILE *file = fopen(path, "rb");
    int failed = data == NULL || file == NULL || fread(data, 1, size, file) != size;

    if (file != NULL)
        fclose(file);
    if (failed)
        fprintf(stderr, "%s: cannot be read\n", path);
    else
        LLVMFuzzerTestOneInput(data, size);
    free(data);
    files_run += !failed;
    return failed;
}

static int visit(const char *path, const struct stat *status, int type, struct FTW *where)
{
    (void)where;
    if (type == FTW_NS || type == FTW_DNR) {
        fprintf(stderr, "%s: cannot be read\n", path);
        return 1;
    }
    if (type != FTW_F || !S_ISREG(status->st_mode))
        return 0;
    return run_file(path, (size_t)status->st_size);
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (nftw(argv[i], visit, 16, FTW_PHYS) != 0) {
            perror(argv[i]);
            return 1;
        }
    }
    printf("%sok 1 - %u inputs\n1..1\n", files_run > 0 ? "" : "not ", files_run);
    return files_run == 0;
}
