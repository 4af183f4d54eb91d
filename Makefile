# make            build/libtcpx.so, build/libtcpx.a, build/libnccl-net-tcpx.so, build/tcpx, and the
#                 program by the names of the original tests, tests/test_tcpx_transfer and others
# make nixl       build/libplugin_TCPX.so, the backend for NIXL; needs a C++ compiler
# make demo       builds the program, with all CPUs, and moves 1 GiB between two processes over TCP, verified
# make check      every test that can run on this machine (installs what they need; DEPS=0 forbids);
#                 ONLY='unit/session*' only these suites, CASE=test_x only this test; make check-list
# make check-gpu  the tests that need a real GPU
# make check-faults  more suites whose system calls fail or do less on purpose; with FAULT_SEEDS=3 also
#                 those of make check, each three times
# make check-vm   devmem TCP on a stock kernel, in a virtual machine
# make check-portable  with musl, for aarch64 under qemu, and with newer compilers
# make check-model     every state of the models of the protocol, tests/model
# make python     the Python package, in build/python (pip install . needs no make before)
# make check-python its tests, with every CPython from 3.11 on that is there
# make check-python-gpu  with a real GPU, torch and cupy: GPU_MODEL_GIB=10
# make check-integrations  in a real Ray and LMCache, which are fetched (INTEGRATIONS=ray==2.60.0)
# make check-nccl the plugin under a real NCCL, on a real GPU (LIBNCCL=path)
# make check-nixl the backend in several versions of NIXL, from wheels that are fetched
#                 (NIXL_VERSIONS='1.5.1' NIXL_CASES=short)
# make sim        both ends over a simulated kernel: SIM_STEPS=100000000 steps of each scenario
# make fuzz       every fuzz target for FUZZ_SECONDS=30, with clang's libFuzzer
# make bench      the measurements of docs/performance.md
# make lint       clang-format and clang-tidy
# make graph      docs/graph.svg, a picture of src/rooms
# make install    PREFIX=/usr/local DESTDIR=
# make install-nixl  the backend, for the NIXL of PYTHON=python3 or into NIXL_PLUGINS=folder
# make dist       the source archive, and the wheel and source archive of the Python package, in dist/
# make deb        Debian's packages, in dist/ (DEB_BUILD_OPTIONS=nocheck leaves their tests out)
# make help       this text
#
# Options: CC=clang  SANITIZE=address,undefined|thread  WERROR=1  BUILD=folder  CFLAGS=...  V=1

PREFIX     ?= /usr/local
BINDIR     ?= $(PREFIX)/bin
LIBDIR     ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
MANDIR     ?= $(PREFIX)/share/man
COMPLETIONDIR ?= $(PREFIX)/share/bash-completion/completions
DESTDIR    ?=

comma := ,

# Each kind of build has its own folder, so that they never mix.
BUILD   ?= build$(if $(SANITIZE),/$(subst $(comma),-,$(SANITIZE)))
# A sanitizer's report has lines, and needs no more.
CFLAGS  ?= -O2 $(if $(SANITIZE),-g1,-g)
OBJCOPY ?= objcopy
NVCC    ?= nvcc
Q       := $(if $(V),,@)
# For a make of its own: as many jobs as CPUs, unless -j says how many.
parallel = $(if $(findstring -j,$(MAKEFLAGS)),,-j$(JOBS))
say      = $(if $(V),,@echo "  $(1)	$(patsubst $(CURDIR)/%,%,$(2))")

version_part = $(shell sed -n 's/^.define TCPX_VERSION_$(1) \([0-9]*\)$$/\1/p' include/tcpx.h)
VERSION     := $(call version_part,MAJOR).$(call version_part,MINOR).$(call version_part,PATCH)
SOVERSION   := $(call version_part,MAJOR)

TCPX_CFLAGS  := -std=gnu17 -D_GNU_SOURCE -Iinclude -Isrc -I. -fPIC -pthread -fvisibility=hidden \
	-Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith \
	$(if $(WERROR),-Werror) $(CFLAGS)
TCPX_LDFLAGS := -pthread $(LDFLAGS)
TCPX_LIBS    := -ldl $(LIBS)
ifneq ($(SANITIZE),)
TCPX_CFLAGS  += -DTCPX_CHECK_LOCKS -fsanitize=$(SANITIZE) -fno-sanitize-recover=all -fno-omit-frame-pointer
TCPX_LDFLAGS += -fsanitize=$(SANITIZE)
NO_UNDEFINED :=
else
NO_UNDEFINED := -Wl,-z,defs
endif

objects_of    = $(patsubst %.c,$(BUILD)/obj/%.o,$(sort $(wildcard $(1))))
NIXL_OBJECTS := $(call objects_of,src/nixl_plugin/*.c)
LIB_OBJECTS  := $(filter-out $(NIXL_OBJECTS),$(call objects_of,src/*/*.c src/*/*/*.c))
# What the plugin has of it: the transport, and NCCL's tables on top.
PLUGIN_OBJECTS := $(filter-out $(foreach folder,plugin_host session api,$(BUILD)/obj/src/$(folder)/%), \
	$(LIB_OBJECTS))
TOOL_OBJECTS := $(call objects_of,tools/*.c)
PTX          := src/gpu/unpack_kernels.ptx

# The program by the names of the original tests, where their users look for them: the plain build,
# so that no other kind takes its place.
OLD_NAMES    := test_tcpx_transfer test_connection test_tcpx_perf
OLD_LINKS    := $(if $(filter build,$(BUILD)),$(OLD_NAMES:%=tests/%))
# Likewise its unit tests, which make only on request: they need cmocka (or CMOCKA=own).
OLD_UNITS    := test_rx_cmsg_parser test_rx_descriptor

.PHONY: all
all: $(BUILD)/libtcpx.so $(BUILD)/libtcpx.a $(BUILD)/libnccl-net-tcpx.so $(BUILD)/tcpx $(OLD_LINKS)

.PHONY: help
help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

.PHONY: demo
demo:
	@$(MAKE) --no-print-directory $(parallel) $(BUILD)/tcpx
	$(BUILD)/tcpx perf --loopback --size 256M --iters 4

# --- compiling -----------------------------------------------------------------------------------

# Rewritten only when the compiler or its flags change; everything compiled depends on it.
flags_now := $(CC) $(TCPX_CFLAGS) $(TCPX_LDFLAGS) $(TCPX_LIBS)
$(BUILD)/flags: always
	@mkdir -p $(@D)
	@echo '$(flags_now)' | cmp -s - $@ || echo '$(flags_now)' >$@

.PHONY: always
always:

# Objects are worth keeping, also those that only a pattern mentions.
.SECONDARY:

$(BUILD)/obj/%.o: %.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(TCPX_CFLAGS) -MMD -MP -c $< -o $@

# The assembler reads these, so that the compiler's dependency files do not name them.
$(BUILD)/obj/src/gpu/cuda_kernels.o: $(PTX)
$(BUILD)/obj/tools/perf_html.o $(BUILD)/obj/tests/unit/test_perf_report.o: tools/perf_page.html
$(BUILD)/obj/tools/matrix_report.o: tools/matrix_page.html

-include $(shell find $(BUILD)/obj -name '*.d' 2>/dev/null)

# --- linking -------------------------------------------------------------------------------------

# nodelete: a thread, an exit handler or a fork handler of ours must not outlive our code.
$(BUILD)/libtcpx.so.$(VERSION): $(LIB_OBJECTS) src/libtcpx.map
	$(call say,LD,$@)
	$(Q)$(CC) $(TCPX_LDFLAGS) -shared -Wl,-soname,libtcpx.so.$(SOVERSION) -Wl,-Bsymbolic \
		-Wl,-z,nodelete $(NO_UNDEFINED) -Wl,--version-script=src/libtcpx.map \
		$(LIB_OBJECTS) $(TCPX_LIBS) -o $@

$(BUILD)/libtcpx.so: $(BUILD)/libtcpx.so.$(VERSION)
	@ln -sf libtcpx.so.$(VERSION) $(BUILD)/libtcpx.so.$(SOVERSION)
	@ln -sf libtcpx.so.$(SOVERSION) $@

# NCCL opens it by this name and unloads it as it likes: nodelete, as above.
$(BUILD)/libnccl-net-tcpx.so: $(PLUGIN_OBJECTS) src/libnccl-net-tcpx.map
	$(call say,LD,$@)
	$(Q)$(CC) $(TCPX_LDFLAGS) -shared -Wl,-soname,libnccl-net-tcpx.so -Wl,-Bsymbolic \
		-Wl,-z,nodelete $(NO_UNDEFINED) -Wl,--version-script=src/libnccl-net-tcpx.map \
		$(PLUGIN_OBJECTS) $(TCPX_LIBS) -o $@

# NIXL's backend, for which alone a C++ compiler is needed. Its templates of libstdc++ stay inside, so
# that they do not stand in for those of others; libstdc++ itself is NIXL's.
NIXL_CXXFLAGS := -std=c++17 -D_GNU_SOURCE -Iinclude -Isrc -fPIC -pthread -fvisibility=hidden \
	-fvisibility-inlines-hidden -fno-gnu-unique -Wall -Wextra $(if $(WERROR),-Werror) $(CFLAGS) \
	$(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-sanitize-recover=all)

.PHONY: nixl
nixl: $(BUILD)/libplugin_TCPX.so

$(BUILD)/obj/src/nixl_plugin/engine.o: src/nixl_plugin/engine.cpp $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CXX,$<)
	$(Q)$(CXX) $(NIXL_CXXFLAGS) -MMD -MP -c $< -o $@

$(BUILD)/libplugin_TCPX.so: $(BUILD)/obj/src/nixl_plugin/engine.o $(NIXL_OBJECTS) $(LIB_OBJECTS) \
		src/libplugin_TCPX.map
	$(call say,LD,$@)
	$(Q)$(CXX) $(TCPX_LDFLAGS) -shared -Wl,-soname,libplugin_TCPX.so -Wl,-Bsymbolic \
		-Wl,-z,nodelete $(NO_UNDEFINED) -Wl,--version-script=src/libplugin_TCPX.map \
		$(filter %.o,$^) $(TCPX_LIBS) -o $@

# One object whose internal names are local, so that they cannot meet the program's own.
$(BUILD)/libtcpx.a: $(LIB_OBJECTS)
	$(call say,AR,$@)
	$(Q)$(CC) -r -nostdlib $(LIB_OBJECTS) -o $(BUILD)/obj/libtcpx.o
	$(Q)$(OBJCOPY) --localize-hidden --wildcard --localize-symbol='ncclNetPlugin_*' \
		$(BUILD)/obj/libtcpx.o
	@rm -f $@
	$(Q)$(AR) rcs $@ $(BUILD)/obj/libtcpx.o

# $(call link,further flags): a program of all objects that it depends on.
define link
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $(TCPX_LDFLAGS) $(filter %.o,$^) $(TCPX_LIBS) $(1) -o $@
endef

# The program uses more of the library than the public header shows, so it takes the objects; tests
# and benchmarks do the same.
$(BUILD)/tcpx: $(LIB_OBJECTS) $(TOOL_OBJECTS)
	$(call link)

.PHONY: $(OLD_NAMES)
$(OLD_NAMES): $(BUILD)/tcpx $(OLD_LINKS)

$(OLD_LINKS): | $(BUILD)/tcpx
	@ln -sf ../$(BUILD)/tcpx $@

.PHONY: $(OLD_UNITS)
$(OLD_UNITS): %: $(BUILD)/tests/unit/%
	$(if $(OLD_LINKS),@ln -sf ../$< tests/$@)

# --- installing ----------------------------------------------------------------------------------

MAN_PAGES := $(wildcard man/*.1 man/*.3 man/*.7)

.PHONY: install uninstall
install: all
	install -d '$(DESTDIR)$(BINDIR)' '$(DESTDIR)$(LIBDIR)/pkgconfig' '$(DESTDIR)$(INCLUDEDIR)'
	install -m 755 $(BUILD)/tcpx '$(DESTDIR)$(BINDIR)/tcpx'
	install -m 755 $(BUILD)/libtcpx.so.$(VERSION) '$(DESTDIR)$(LIBDIR)/libtcpx.so.$(VERSION)'
	ln -sf libtcpx.so.$(VERSION) '$(DESTDIR)$(LIBDIR)/libtcpx.so.$(SOVERSION)'
	ln -sf libtcpx.so.$(SOVERSION) '$(DESTDIR)$(LIBDIR)/libtcpx.so'
	install -m 755 $(BUILD)/libnccl-net-tcpx.so '$(DESTDIR)$(LIBDIR)/libnccl-net-tcpx.so'
	install -m 644 $(BUILD)/libtcpx.a '$(DESTDIR)$(LIBDIR)/libtcpx.a'
	printf '%s\n' 'prefix=$(PREFIX)' 'libdir=$(LIBDIR)' 'includedir=$(INCLUDEDIR)' '' \
		'Name: tcpx' 'Description: GPU memory between hosts over TCP' 'Version: $(VERSION)' \
		'Libs: -L$${libdir} -ltcpx' 'Libs.private: -ldl -pthread' 'Cflags: -I$${includedir}' \
		>'$(DESTDIR)$(LIBDIR)/pkgconfig/tcpx.pc'
	install -m 644 include/tcpx.h include/tcpx_interface.h '$(DESTDIR)$(INCLUDEDIR)'
	install -D -m 644 scripts/completion/tcpx.bash '$(DESTDIR)$(COMPLETIONDIR)/tcpx'
	for page in $(MAN_PAGES); do \
		install -D -m 644 $$page '$(DESTDIR)$(MANDIR)'/man$${page##*.}/$${page#man/} || exit 1; \
	done

uninstall:
	rm -f '$(DESTDIR)$(BINDIR)/tcpx' '$(DESTDIR)$(LIBDIR)'/libtcpx.so.$(VERSION) \
		'$(DESTDIR)$(LIBDIR)/libtcpx.so.$(SOVERSION)' '$(DESTDIR)$(LIBDIR)/libtcpx.so' \
		'$(DESTDIR)$(LIBDIR)/libnccl-net-tcpx.so' '$(DESTDIR)$(LIBDIR)/libtcpx.a' \
		'$(DESTDIR)$(LIBDIR)/pkgconfig/tcpx.pc' \
		'$(DESTDIR)$(INCLUDEDIR)/tcpx.h' '$(DESTDIR)$(INCLUDEDIR)/tcpx_interface.h' \
		'$(DESTDIR)$(COMPLETIONDIR)/tcpx'
	for page in $(MAN_PAGES); do \
		rm -f '$(DESTDIR)$(MANDIR)'/man$${page##*.}/$${page#man/}; \
	done

# Where the NIXL of PYTHON looks for it, a folder or two, or into NIXL_PLUGINS. With DESTDIR or PREFIX set, to
# LIBDIR/nixl, from where it has to be copied.
PYTHON ?= python3
NIXL_PLUGINS ?= $(if $(DESTDIR)$(filter-out /usr/local,$(PREFIX)),$(LIBDIR)/nixl)

.PHONY: install-nixl
install-nixl: nixl
	@folders=$(if $(NIXL_PLUGINS),'$(NIXL_PLUGINS)',$$(sh scripts/nixl-plugins.sh '$(PYTHON)')) || \
		{ echo 'NIXL_PLUGINS=folder says where NIXL looks for it' >&2; exit 1; }; \
	printf '%s\n' "$$folders" | while IFS= read -r folder; do \
		install -D -m 755 $(BUILD)/libplugin_TCPX.so "$(DESTDIR)$$folder/libplugin_TCPX.so" || exit 1; \
		echo "  $(DESTDIR)$$folder/libplugin_TCPX.so"; \
	done

.PHONY: clean
clean:
	rm -rf $(BUILD) $(OLD_LINKS) $(if $(OLD_LINKS),$(OLD_UNITS:%=tests/%))

include tests/tests.mk
include bench/bench.mk
include python/python.mk
include scripts/release.mk
