/*
 * Is the NIXL that loads this plugin one whose interface is known? Its number of the interface says
 * nothing: it was the same before and after the functions of a backend became others. But the
 * backends that come with NIXL, beside its library, have the table of virtual functions of the
 * class that all backends derive from, as a symbol, and the linker's list of which function goes to
 * which place of it. Both are read from a file and compared with what this plugin is compiled for.
 */
#include "nixl_plugin/agent.h"

#include "base/checked.h"

#include <dirent.h>
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const char table_name[] = "_ZTV17nixlBackendEngine";

#define STRING "NSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
#define CLASS  "17nixlBackendEngine"

/*
 * Behind two words for the class and two destructors, the functions in their order; NULL: each
 * backend has its own, and the table of this class has none. The names include the types of all
 * arguments.
 */
static const char *const functions[] = {
    NULL, /* supportsRemote */
    NULL, /* supportsLocal */
    NULL, /* supportsNotif */
    NULL, /* getSupportedMems */
    NULL, /* registerMem */
    NULL, /* deregisterMem */
    NULL, /* connect */
    NULL, /* disconnect */
    NULL, /* unloadMD */
    NULL, /* prepXfer */
    NULL, /* postXfer */
    NULL, /* checkXfer */
    NULL, /* releaseReqH */
    "_ZNK" CLASS
    "11prepMemViewERK12nixlDescListI18nixlRemoteMetaDescERPvPK23nixlBackendOptionalArgs",
    "_ZNK" CLASS "11prepMemViewERK12nixlDescListI12nixlMetaDescERPvPK23nixlBackendOptionalArgs",
    "_ZNK" CLASS "14releaseMemViewEPv",
    "_ZNK" CLASS "13getPublicDataEPK13nixlBackendMDR" STRING,
    "_ZNK" CLASS "11getConnInfoER" STRING,
    "_ZN" CLASS "18loadRemoteConnInfoERK" STRING "S7_",
    "_ZN" CLASS "12loadRemoteMDERK12nixlBlobDescRK10nixl_mem_tRK" STRING "RP13nixlBackendMD",
    "_ZN" CLASS "11loadLocalMDEP13nixlBackendMDRS1_",
    "_ZN" CLASS "9getNotifsERSt6vectorISt4pairI" STRING "S7_ESaIS8_EE",
    "_ZNK" CLASS "8genNotifERK" STRING "S7_",
    "_ZNK" CLASS "8queryMem",
    "_ZNK" CLASS "16estimateXferCost",
};

enum { FUNCTIONS = sizeof functions / sizeof *functions, FIRST_FUNCTION = 4 };
enum { TABLE_BYTES = (FIRST_FUNCTION + FUNCTIONS) * 8 };

#ifdef __aarch64__
enum { POINTER_RELOCATION = R_AARCH64_ABS64 };
#else
enum { POINTER_RELOCATION = R_X86_64_64 };
#endif

/* --- a file -------------------------------------------------------------------------------- */

struct elf {
    const char *path;
    const uint8_t *bytes;
    size_t size;
    const Elf64_Sym *symbols;
    size_t symbol_count;
    const char *names;
    size_t names_size;
};

/* A file may be anything: nothing of it is used that does not lie inside. */
static const void *elf_range(const struct elf *elf, uint64_t offset, uint64_t size)
{
    return range_inside(offset, size, elf->size) ? elf->bytes + offset : NULL;
}

static const Elf64_Shdr *elf_section(const struct elf *elf, size_t index)
{
    const Elf64_Ehdr *header = (const void *)elf->bytes;

    if (index >= header->e_shnum)
        return NULL;
    return elf_range(elf, header->e_shoff + index * sizeof(Elf64_Shdr), sizeof(Elf64_Shdr));
}

static bool elf_read_symbols(struct elf *elf)
{
    const Elf64_Ehdr *header = elf_range(elf, 0, sizeof *header);
    const Elf64_Shdr *section = NULL;
    const Elf64_Shdr *names;

    if (header == NULL || memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 ||
        header->e_ident[EI_CLASS] != ELFCLASS64 || header->e_shoff % 8 != 0)
        return false;
    for (size_t i = 0; i < header->e_shnum; i++) {
        section = elf_section(elf, i);
        if (section == NULL || section->sh_type == SHT_DYNSYM)
            break;
        section = NULL;
    }
    names = section != NULL ? elf_section(elf, section->sh_link) : NULL;
    if (names == NULL || section->sh_offset % 8 != 0)
        return false;
    elf->symbols = elf_range(elf, section->sh_offset, section->sh_size);
    elf->symbol_count = section->sh_size / sizeof(Elf64_Sym);
    elf->names = elf_range(elf, names->sh_offset, names->sh_size);
    elf->names_size = names->sh_size;
    return elf->symbols != NULL && elf->names != NULL && elf->names_size > 0 &&
           elf->names[elf->names_size - 1] == '\0';
}

static bool elf_open(struct elf *elf, const char *path)
{
    struct stat facts;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    void *bytes = MAP_FAILED;

    if (fd < 0)
        return false;
    if (fstat(fd, &facts) == 0 && facts.st_size > 0)
        bytes = mmap(NULL, (size_t)facts.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (bytes == MAP_FAILED)
        return false;
    *elf = (struct elf){.path = path, .bytes = bytes, .size = (size_t)facts.st_size};
    if (elf_read_symbols(elf))
        return true;
    munmap(bytes, elf->size);
    return false;
}

static void elf_close(struct elf *elf)
{
    munmap((void *)(uintptr_t)elf->bytes, elf->size);
}

static const char *elf_name(const struct elf *elf, size_t symbol)
{
    if (symbol >= elf->symbol_count || elf->symbols[symbol].st_name >= elf->names_size)
        return "";
    return elf->names + elf->symbols[symbol].st_name;
}

static const Elf64_Sym *elf_find(const struct elf *elf, const char *name)
{
    for (size_t i = 0; i < elf->symbol_count; i++)
        if (elf->symbols[i].st_shndx != SHN_UNDEF && strcmp(elf_name(elf, i), name) == 0)
            return &elf->symbols[i];
    return NULL;
}

/* --- the table ----------------------------------------------------------------------------- */

/* Which function goes to which place of the table; "": none that the file names. */
struct table {
    const char *functions[FUNCTIONS];
};

static void table_take(struct table *table, const struct elf *elf, uint64_t at,
                       const Elf64_Shdr *section)
{
    const Elf64_Rela *relocations = elf_range(elf, section->sh_offset, section->sh_size);

    if (relocations == NULL || section->sh_offset % 8 != 0)
        return;
    for (size_t i = 0; i < section->sh_size / sizeof *relocations; i++) {
        uint64_t place = (relocations[i].r_offset - at) / 8 - FIRST_FUNCTION;

        if (relocations[i].r_offset >= at + (uint64_t)FIRST_FUNCTION * 8 && place < FUNCTIONS &&
            ELF64_R_TYPE(relocations[i].r_info) == POINTER_RELOCATION)
            table->functions[place] = elf_name(elf, ELF64_R_SYM(relocations[i].r_info));
    }
}

static void table_read(struct table *table, const struct elf *elf, uint64_t at)
{
    const Elf64_Shdr *section;

    for (size_t i = 0; i < FUNCTIONS; i++)
        table->functions[i] = "";
    for (size_t i = 0; (section = elf_section(elf, i)) != NULL; i++)
        if (section->sh_type == SHT_RELA)
            table_take(table, elf, at, section);
}

static bool function_fits(const char *expected, const char *found)
{
    if (expected == NULL)
        return strcmp(found, "__cxa_pure_virtual") == 0;
    return strncmp(found, expected, strlen(expected)) == 0;
}

static int table_judge(const struct elf *elf, const Elf64_Sym *symbol)
{
    struct table table;

    if (symbol->st_size != TABLE_BYTES)
        return error_set(TCPX_INVALID_USAGE,
                         "a backend has %llu virtual functions there, and %d are known",
                         (unsigned long long)symbol->st_size / 8 - 2, FUNCTIONS + 2);
    table_read(&table, elf, symbol->st_value);
    for (size_t i = 0; i < FUNCTIONS; i++)
        if (!function_fits(functions[i], table.functions[i]))
            return error_set(TCPX_INVALID_USAGE,
                             "virtual function %zu of a backend is %.100s there, and not %.100s", i,
                             table.functions[i], functions[i] != NULL ? functions[i] : "pure");
    return TCPX_SUCCESS;
}

/* *found: whether the file has such a table; the result is about that. */
static int interface_judge_file(const char *path, bool *found)
{
    const Elf64_Sym *symbol;
    struct elf elf;
    int result = TCPX_SUCCESS;

    *found = false;
    if (!elf_open(&elf, path))
        return TCPX_SUCCESS;
    symbol = elf_find(&elf, table_name);
    *found = symbol != NULL;
    if (*found)
        result = table_judge(&elf, symbol);
    elf_close(&elf);
    return result;
}

/* --- which file ---------------------------------------------------------------------------- */

static bool is_backend(const char *name)
{
    return strncmp(name, "libplugin_", 10) == 0 && strcmp(name, "libplugin_TCPX.so") != 0;
}

static int interface_judge_folder(const char *folder, bool *found)
{
    DIR *open = opendir(folder);
    const struct dirent *entry;
    char path[2048];
    int result = TCPX_SUCCESS;

    while (open != NULL && !*found && (entry = readdir(open)) != NULL)
        if (is_backend(entry->d_name) &&
            snprintf(path, sizeof path, "%s/%s", folder, entry->d_name) < (int)sizeof path)
            result = interface_judge_file(path, found);
    if (open != NULL)
        closedir(open);
    return result;
}

/* NIXL's library, then the backends that came with it. */
static int interface_judge(const char *library)
{
    char folder[1024];
    const char *slash = strrchr(library, '/');
    bool found;
    int result = interface_judge_file(library, &found);

    if (!found && slash != NULL &&
        snprintf(folder, sizeof folder, "%.*s/plugins", (int)(slash - library), library) <
            (int)sizeof folder)
        result = interface_judge_folder(folder, &found);
    if (!found)
        return error_set(TCPX_INVALID_USAGE,
                         "neither it nor a backend in the folder \"plugins\" beside it shows which "
                         "interface it has (%s)",
                         table_name);
    return result;
}

bool nixl_interface_is_known(const void *caller)
{
    Dl_info facts;

    if (dladdr(caller, &facts) == 0 || facts.dli_fname == NULL) {
        agent_say(NULL, "it is not known which library has loaded the plugin");
        return false;
    }
    if (interface_judge(facts.dli_fname) == TCPX_SUCCESS)
        return true;
    agent_say(NULL,
              "libplugin_TCPX.so %s is made for NIXL 1.0.0 to 1.5.1 and those with the same "
              "interface, and %s has another one: %s",
              tcpx_version(), facts.dli_fname, error_text());
    return false;
}
