/* Files with results, and pages with JSON in them. */
#include "tools/page.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char mark[] = "@RESULT@\n";

bool page_text_begin(struct page_text *text)
{
    *text = (struct page_text){.text = NULL};
    text->out = open_memstream(&text->text, &text->length);
    return text->out != NULL;
}

bool page_text_end(struct page_text *text)
{
    bool complete = !ferror(text->out);

    return fclose(text->out) == 0 && complete;
}

void page_print(FILE *out, const char *page, const char *json)
{
    const char *place = strstr(page, mark);

    errno = 0;
    fwrite(page, 1, (size_t)(place - page), out);
    for (; *json != '\0'; json++) {
        if (*json == '<')
            fputs("\\u003c", out);
        else
            fputc(*json, out);
    }
    fputs(place + strlen(mark), out);
}

int page_open(struct page_file *file)
{
    struct stat before;
    int fd;

    if (file->path == NULL)
        return TCPX_SUCCESS;
    file->is_new = lstat(file->path, &before) != 0;
    fd = open(file->path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0)
        return error_system(errno, "cannot write %s", file->path);
    file->out = fdopen(fd, "w");
    if (file->out != NULL)
        return TCPX_SUCCESS;
    error_keep_system(errno, "cannot write %s", file->path);
    close(fd);
    return TCPX_SYSTEM_ERROR;
}

void page_discard(struct page_file *file)
{
    if (file->out == NULL)
        return;
    fclose(file->out);
    file->out = NULL;
    if (file->is_new)
        (void)unlink(file->path);
}

/* If it is a file like others. */
static void page_remove(const char *path)
{
    struct stat found;

    if (lstat(path, &found) == 0 && S_ISREG(found.st_mode))
        (void)unlink(path);
}

int page_close(struct page_file *file)
{
    FILE *out = file->out;
    int problem = 0;

    if (out == NULL)
        return TCPX_SUCCESS;
    file->out = NULL;
    if (ferror(out)) /* of an earlier write, whose errno may be gone */
        problem = errno != 0 ? errno : EIO;
    if (fflush(out) != 0 && problem == 0)
        problem = errno;
    /* Of what an earlier run has left there. A device cannot be cut, and need not be. */
    (void)!ftruncate(fileno(out), ftello(out));
    if (fclose(out) != 0 && problem == 0)
        problem = errno;
    if (problem == 0)
        return TCPX_SUCCESS;
    page_remove(file->path);
    return error_system(problem, "cannot write %s", file->path);
}
