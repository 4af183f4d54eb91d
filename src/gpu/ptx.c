/* Takes the checked-in PTX into the library, by the assembler, so that no tool is needed. */
#include "gpu/ptx.h"

__asm__(".pushsection .rodata\n"
        ".global tcpx_ptx\n"
        ".hidden tcpx_ptx\n"
        ".type tcpx_ptx, @object\n"
        ".balign 16\n"
        "tcpx_ptx:\n"
        ".incbin \"src/gpu/unpack_kernels.ptx\"\n"
        ".byte 0\n"
        ".size tcpx_ptx, . - tcpx_ptx\n"
        ".popsection\n");
