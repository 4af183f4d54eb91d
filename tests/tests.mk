# How the tests are built and run. A suite is a program or script that prints TAP; tests/runner
# runs them with a time limit, some at the same time, and counts.

# Without cmocka the units are skipped, in words; nothing else needs it.
HAVE_CMOCKA   := $(shell printf '\043include <%s.h>\n' stdarg stddef stdint setjmp cmocka | \
	$(CC) $(CFLAGS) -E - >/dev/null 2>&1 && echo yes)
CMOCKA_LIBS   ?= -lcmocka
# CMOCKA=own: the part of it in tests/support, for targets that it is not packaged for.
ifeq ($(CMOCKA),own)
HAVE_CMOCKA   := yes
CMOCKA_LIBS   :=
TCPX_CFLAGS   += -isystem tests/support/cmocka
endif
CUDA_INCLUDE  ?= $(wildcard /usr/local/cuda/include)
FAKECUDA_DIR  := $(BUILD)/tests/fakecuda
RUNNER        := $(BUILD)/tests/runner
JOBS          ?= $(shell nproc)
# make check ONLY='unit/session* fuzz/*' CASE='test_cut*'
RUNNER_FLAGS  := $(if $(ONLY),--only '$(ONLY)') $(if $(CASE),--case '$(CASE)') $(if $(findstring thread,$(SANITIZE)),--no-aslr) $(if $(SECOND_TRIES),--second-tries $(SECOND_TRIES)) --lanes $(if $(filter 1,$(JOBS)),1,3)

UNIT_PROGRAMS := $(patsubst %.c,$(BUILD)/%,$(sort $(wildcard tests/unit/test_*.c)))
# The public calls, by subject.
CALLS_UNITS   := $(patsubst tests/unit/test_%.c,%,$(sort $(wildcard tests/unit/test_calls_*.c)))
GPU_PROGRAMS  := $(patsubst %.c,$(BUILD)/%,$(sort $(wildcard tests/gpu/test_*.c)))
PLUGIN_PROGRAMS := $(patsubst %.c,$(BUILD)/%,$(sort $(wildcard tests/plugin/test_*.c)))
# How fast something is, no sanitizer can tell; what is said does not depend on races; and networks
# that lose and delay bring out races, but no code that others do not run.
TIMED         := $(if $(SANITIZE),net_cost net_stages uneven_links)
SAID          := $(if $(findstring thread,$(SANITIZE)),completion connection docs doctor documents man matrix \
	net_devices old_names perf program runner)
BETWEEN_HOSTS := $(if $(SANITIZE),connection_hosts interfaces matrix_hosts perf_hosts) $(if $(findstring address,$(SANITIZE)),bad_network)
INTEGRATION   := $(filter-out $(patsubst %,tests/integration/%.sh,$(TIMED) $(SAID) $(BETWEEN_HOSTS)), \
	$(sort $(wildcard tests/integration/*.sh)))

# In every cmocka program: which of its tests run (TCPX_TEST_CASE), their list, and child processes.
FILTER        := $(BUILD)/obj/tests/filter.o $(patsubst %,$(BUILD)/obj/tests/support/%.o,child suite)
# What tests see inside of a comm.
INSIDE        := $(BUILD)/obj/tests/support/comm_inside.o
# Two ends of a comm in one process.
PAIR          := $(patsubst %,$(BUILD)/obj/tests/support/%.o,ahead_peer gpu_pair pair traffic unpack_pair) $(INSIDE)

# Sessions by their public calls, over whichever transport the environment names.
SESSION_UNITS := session_data session_order session_peers session_calls session_gpu session_close
SESSION_PROGRAMS := $(SESSION_UNITS:%=$(BUILD)/tests/unit/test_%)
# One-sided access, which only the built-in transport has.
ACCESS_UNITS    := session_access_calls session_access_data session_access_ends session_access_gpu \
	session_access_many session_access_misuse session_access_notes session_access_room
ACCESS_PROGRAMS := $(ACCESS_UNITS:%=$(BUILD)/tests/unit/test_%)

# Parts of the tests that register themselves with the library: software devmem, and a throttle for
# slow stages. Programs of the tests have them beside the library's objects, and so have the plugin
# and the program under $(SUPPORT), for suites that need them.
DOUBLES        := $(patsubst %,$(BUILD)/obj/tests/support/%.o,soft_devmem soft_devmem_pool throttle)
TESTED_OBJECTS := $(LIB_OBJECTS) $(NIXL_OBJECTS) $(DOUBLES)
SUPPORT        := $(BUILD)/tests/support
SUPPORT_PROGRAMS := $(SUPPORT)/libnccl-net-tcpx.so $(SUPPORT)/tcpx

$(SUPPORT)/libnccl-net-tcpx.so: $(PLUGIN_OBJECTS) $(DOUBLES) src/libnccl-net-tcpx.map
	$(call link,-shared -Wl$(comma)-soname$(comma)libnccl-net-tcpx.so -Wl$(comma)-Bsymbolic \
		-Wl$(comma)-z$(comma)nodelete $(NO_UNDEFINED) -Wl$(comma)--version-script=src/libnccl-net-tcpx.map)

$(SUPPORT)/tcpx: $(TESTED_OBJECTS) $(TOOL_OBJECTS)
	$(call link)

# Units over the library with redirected calls.
REDIRECTED_UNITS := $(BUILD)/tests/unit/test_session_syscalls

# Plugins that it loads get its sockets with small buffers, too.
$(BUILD)/tests/unit/test_session_silence: CMOCKA_LIBS += -Wl,--export-dynamic-symbol=socket
$(BUILD)/tests/unit/test_session_silence: | $(BUILD)/libnccl-net-tcpx.so

# In all of them tests/support/peer_text.c looks at every text that arrives from a peer.
$(filter-out $(REDIRECTED_UNITS),$(UNIT_PROGRAMS)) $(GPU_PROGRAMS): $(BUILD)/%: $(BUILD)/obj/%.o $(BUILD)/obj/tests/support/peer_text.o $(PAIR) $(FILTER) $(TESTED_OBJECTS)
	$(call link,$(CMOCKA_LIBS) $(patsubst %,-Wl$(comma)--wrap=%,error_keep $(WRAPPED)))

# Functions of the library that a unit has in place of the library's own.
$(BUILD)/tests/unit/test_net_processes: WRAPPED := process_registry_open
$(BUILD)/tests/unit/test_devmem_link: WRAPPED := $(patsubst %,devmem_pool_%,share give join leave)
$(BUILD)/tests/unit/test_devmem_pool: WRAPPED := devmem_queues_ops
$(BUILD)/tests/unit/test_devmem_source: WRAPPED := gpu_export_dmabuf \
	$(patsubst %,nic_%,computes_checksums kernel_binds bind_send unbind watch_begin watch_end watch_is_up)

# Objects as one, with some functions of libc under other names, so that a test can fail them or
# simulate them: $(call redirect,objects,list,prefix), where the list is of tests/*/*.def.
define redirect
	@mkdir -p $(@D)
	$(call say,LD,$@)
	@sed -n 's/LIBC[A-Z_]*(\([a-z0-9_]*\).*/\1 $(3)\1/p' $(2) >$@.names
	$(Q)$(CC) -r -nostdlib $(1) -o $@.whole
	$(Q)$(OBJCOPY) --redefine-syms=$@.names $@.whole $@
	@rm -f $@.whole
endef

# The library with calls of libc that fail or do less: by seed, or when a test says so.
FAULTY_OBJECTS := $(patsubst %,$(BUILD)/obj/tests/%.o,redirected/faults faults/faults faults/calls net_calls/net_calls)
$(BUILD)/obj/tests/redirected/faults.o: $(TESTED_OBJECTS) tests/faults/calls.def
	$(call redirect,$(TESTED_OBJECTS),tests/faults/calls.def,faulty_)

CALLS_PROGRAMS := $(patsubst %.c,$(BUILD)/%,$(sort $(wildcard tests/net_calls/test_*.c)))
CALLS_UNIT_SUITES = $(foreach program,$(CALLS_PROGRAMS), \
	'unit/$(patsubst test_%,%,$(notdir $(program))): $(on_host) $(program)')

$(CALLS_PROGRAMS) $(REDIRECTED_UNITS): $(BUILD)/%: $(BUILD)/obj/%.o $(FAULTY_OBJECTS) $(PAIR) $(FILTER)
	$(call link,$(CMOCKA_LIBS))

include tests/sim/sim.mk

# These load the plugin as NCCL does, and share no code with it.
$(BUILD)/tests/plugin/test_plugin_gpu: $(BUILD)/obj/tests/support/cuda_memory.o
$(PLUGIN_PROGRAMS): $(BUILD)/%: $(BUILD)/obj/%.o $(BUILD)/obj/tests/plugin/plugin_driver.o $(FILTER)
	$(call link,$(CMOCKA_LIBS))

# A plugin with the peculiarities of others, for each table version; and one without a name.
QUIRKY_PLUGINS := $(patsubst %,$(BUILD)/tests/quirky_plugin/lib%.so, \
	$(foreach version,6 7 8 9 10 11 12,quirky_v$(version)) nameless)
QUIRKY_HEADERS := $(wildcard tests/quirky_plugin/*.h src/abi/*.h) src/base/log.h $(patsubst %,tests/support/%.h,basics cuda_memory)

# $(call quirky,sources,further flags)
define quirky
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $(TCPX_CFLAGS) $(TCPX_LDFLAGS) -shared $(2) $(1:%=tests/%.c) -o $@
endef

$(BUILD)/tests/quirky_plugin/libquirky_v%.so: tests/quirky_plugin/quirky.c \
		tests/support/cuda_memory.c $(QUIRKY_HEADERS) $(BUILD)/flags
	$(call quirky,quirky_plugin/quirky support/cuda_memory,-DQUIRKY_VERSION=$*)

$(BUILD)/tests/quirky_plugin/libnameless.so: tests/quirky_plugin/nameless.c $(QUIRKY_HEADERS) $(BUILD)/flags
	$(call quirky,quirky_plugin/nameless)

$(CALLS_UNITS:%=$(BUILD)/tests/unit/test_%) $(BUILD)/tests/unit/test_import $(BUILD)/tests/gpu/test_import_cuda \
		$(BUILD)/tests/gpu/test_plugin_faults \
		$(BUILD)/tests/unit/test_session_faults $(SESSION_PROGRAMS) $(ACCESS_PROGRAMS): \
		| $(QUIRKY_PLUGINS) $(BUILD)/libnccl-net-tcpx.so $(BUILD)/libtcpx.so

$(BUILD)/obj/tests/unit/test_cuda_abi.o: TCPX_CFLAGS += $(CUDA_INCLUDE:%=-isystem %)

$(RUNNER): $(call objects_of,tests/runner/*.c)
	$(call link)

$(FAKECUDA_DIR)/libcuda.so.1: $(BUILD)/obj/tests/fakecuda/fakecuda.o $(LIB_OBJECTS) \
		tests/fakecuda/libcuda.map
	$(call link,-shared -Wl$(comma)-soname$(comma)libcuda.so.1 \
		-Wl$(comma)--version-script=tests/fakecuda/libcuda.map)

# --- suites --------------------------------------------------------------------------------------

# $(call gpu_suite,label,program,environment)
gpu_suite = 'gpu/$(1): $(3) $(BUILD)/tests/gpu/test_$(2)'

on_host := UCCL_TCPX_GPU=host
on_fake := UCCL_TCPX_GPU=cuda LD_LIBRARY_PATH=$(FAKECUDA_DIR)
small_devmem := UCCL_TCPX_DEVMEM_BYTES=1M TCPX_TEST_MESSAGES=600
small_pool := UCCL_TCPX_STAGING_BYTES=4M UCCL_TCPX_SLICE_BYTES=4K
# All kernels of a process behind each other, and whatever else takes their way.
one_channel := CUDA_DEVICE_MAX_CONNECTIONS=1
delayed := UCCL_TCPX_HOST_GPU_DELAY_US=20000 FAKECUDA_DELAY_US=20000

# A sanitizer looks at fewer: it is there for the accesses, not for the bytes. Races are the same in all.
LISTS       := $(if $(findstring thread,$(SANITIZE)),500,$(if $(SANITIZE),5000,100000))
FEWER_LISTS := $(if $(findstring thread,$(SANITIZE)),500,$(if $(SANITIZE),2000,20000))

# Percent of the processes that some units start and kill.
TURNS       := $(if $(findstring thread,$(SANITIZE)),5,$(if $(SANITIZE),20,100))
FEWER_TURNS := $(if $(SANITIZE),5,20)
# Suites run beside each other. One lane begins with those that mostly wait, for a timeout, a slow link
# or a peer, so that the others have the CPUs meanwhile.
unit_suites  = $(foreach name,$(1),'unit/$(name): TCPX_TEST_TURNS=$(TURNS) $(BUILD)/tests/unit/test_$(name)')
UNITS        := $(patsubst test_%,%,$(notdir $(UNIT_PROGRAMS)))
WAITING_UNITS := $(filter access_floods access_lies access_inline access_refused access_targets bootstrap bootstrap_flood bootstrap_strangers control \
	net_progress net_reasons net_silence net_stages session_access_ends session_faults \
	session_silence,$(UNITS))
LONG_UNITS   := $(filter net_process $(SESSION_UNITS) $(filter-out $(WAITING_UNITS),$(ACCESS_UNITS)) calls_data,$(UNITS))
ALONE_UNITS  := $(filter net_cost,$(UNITS))
AHEAD_UNITS  := $(filter net_ahead%,$(UNITS))
UNIT_SUITES  := $(call unit_suites,$(LONG_UNITS) \
	$(filter-out $(WAITING_UNITS) $(LONG_UNITS) $(ALONE_UNITS),$(UNITS)))
# The same with accesses that go over several channels, to GPUs that take their time.
UNIT_SUITES  += 'unit/nixl_agents-channels: UCCL_TCPX_NUM_CHANNELS=3 UCCL_TCPX_HOST_GPU_DELAY_US=200 TCPX_TEST_TURNS=$(TURNS) $(BUILD)/tests/unit/test_nixl_agents'
WAITING_UNIT_SUITES := $(call unit_suites,$(filter-out $(TIMED),$(WAITING_UNITS)))
ALONE_UNIT_SUITES := $(call unit_suites,$(filter-out $(TIMED),$(ALONE_UNITS)))
GPU_SUITES := \
	$(call gpu_suite,layer-host,gpu_layer,$(on_host)) \
	$(call gpu_suite,layer-standin,gpu_layer,$(on_fake)) \
	$(call gpu_suite,async-host,gpu_async,$(on_host) $(delayed)) \
	$(call gpu_suite,async-standin,gpu_async,$(on_fake) $(delayed)) \
	$(call gpu_suite,fault-host,gpu_fault,$(on_host)) \
	$(call gpu_suite,fault-standin,gpu_fault,$(on_fake)) \
	$(call gpu_suite,driver-standin,cuda_driver,$(on_fake)) \
	$(call gpu_suite,driver-failing,cuda_faults,$(on_fake)) \
	$(call gpu_suite,net-host,net_gpu,$(on_host)) \
	$(call gpu_suite,net-host-threads,net_gpu,$(on_host) UCCL_TCPX_THREADS=3) \
	$(call gpu_suite,net-host-calls,net_gpu,$(on_host) UCCL_TCPX_THREADS=0) \
	$(call gpu_suite,net-host-small,net_gpu,$(on_host) UCCL_TCPX_THREADS=2 $(small_pool)) \
	$(call gpu_suite,net-host-late,net_gpu,$(on_host) TCPX_TEST_MESSAGES=300 UCCL_TCPX_HOST_GPU_DELAY_US=300) \
	$(call gpu_suite,net-standin,net_gpu,$(on_fake)) \
	$(call gpu_suite,net-standin-small,net_gpu,$(on_fake) UCCL_TCPX_THREADS=2 $(small_pool)) \
	$(if $(SANITIZE),,$(call gpu_suite,net-failing@300,net_faults,$(on_fake))) \
	$(call gpu_suite,net-failing-threads@300,net_faults,$(on_fake) TCPX_TEST_CALLS=$(if $(findstring thread,$(SANITIZE)),1,2) UCCL_TCPX_THREADS=3) \
	$(call gpu_suite,pinned-pool,pinned_pool,$(on_fake) UCCL_TCPX_STAGING_BYTES=256K UCCL_TCPX_BOUNCE_BYTES=1M) \
	$(call gpu_suite,net-pinning,net_pinning,$(on_fake)) \
	$(call gpu_suite,net-pinning-calls,net_pinning,$(on_fake) UCCL_TCPX_THREADS=0) \
	$(call gpu_suite,net-pinning-devmem,net_pinning,$(on_fake) UCCL_TCPX_SOFT_DEVMEM=7 $(small_devmem)) \
	$(call gpu_suite,net-unpack-host,net_unpack,$(on_host)) \
	$(call gpu_suite,net-unpack-host-threads,net_unpack,$(on_host) UCCL_TCPX_THREADS=3) \
	$(call gpu_suite,net-unpack-standin,net_unpack,$(on_fake) UCCL_TCPX_THREADS=0) \
	$(call gpu_suite,net-devmem-host,net_gpu,$(on_host) UCCL_TCPX_SOFT_DEVMEM=3 $(small_devmem)) \
	$(call gpu_suite,net-devmem-host-threads,net_gpu,$(on_host) UCCL_TCPX_SOFT_DEVMEM=6 UCCL_TCPX_THREADS=3 $(small_devmem)) \
	$(call gpu_suite,net-devmem-host-late,net_gpu,$(on_host) UCCL_TCPX_SOFT_DEVMEM=4 UCCL_TCPX_HOST_GPU_DELAY_US=50 $(small_devmem)) \
	$(foreach way,auto $(if $(findstring thread,$(SANITIZE)),,d2d host kernel),$(call gpu_suite,net-devmem-standin-$(way),net_gpu,$(on_fake) UCCL_TCPX_SOFT_DEVMEM=8 UCCL_TCPX_UNPACK_IMPL=$(way) $(small_devmem))) \
	$(call gpu_suite,net-unpack-devmem,net_unpack,$(on_host) UCCL_TCPX_SOFT_DEVMEM=5) \
	$(call gpu_suite,net-unpack-devmem-split,net_unpack,$(on_host) UCCL_TCPX_SOFT_DEVMEM=21 UCCL_TCPX_THREADS=3) \
	$(call gpu_suite,net-unpack-devmem-small,net_unpack,$(on_host) UCCL_TCPX_SOFT_DEVMEM=18 UCCL_TCPX_DEVMEM_BYTES=1M) \
	$(call gpu_suite,net-in-place-host,net_in_place,$(on_host) UCCL_TCPX_SOFT_DEVMEM=16 UCCL_TCPX_DEVMEM_BYTES=16M) \
	$(call gpu_suite,net-in-place-host-threads,net_in_place,$(on_host) UCCL_TCPX_SOFT_DEVMEM=17 UCCL_TCPX_DEVMEM_BYTES=16M UCCL_TCPX_THREADS=3) \
	$(call gpu_suite,net-in-place-standin,net_in_place,$(on_fake) UCCL_TCPX_SOFT_DEVMEM=23 UCCL_TCPX_DEVMEM_BYTES=64M UCCL_TCPX_THREADS=0) \
	$(call gpu_suite,devmem-memory,devmem_memory,$(on_host)) \
	$(call gpu_suite,devmem-host,soft_devmem,$(on_host)) \
	$(call gpu_suite,devmem-standin,soft_devmem,$(on_fake)) \
	$(call gpu_suite,devmem-host-late,soft_devmem,$(on_host) UCCL_TCPX_HOST_GPU_DELAY_US=50) \
	$(if $(SANITIZE),,$(call gpu_suite,import-standin,import_cuda,$(on_fake))) \
	$(call gpu_suite,plugin-faults,plugin_faults,$(on_fake)) \
	$(call gpu_suite,unpack-host@300,unpack,$(on_host) TCPX_TEST_LISTS=$(LISTS)) \
	$(call gpu_suite,unpack-standin@300,unpack,$(on_fake) TCPX_TEST_LISTS=$(FEWER_LISTS)) \
	$(call gpu_suite,devmem-failing,devmem_faults,$(on_fake)) \
	$(call gpu_suite,queued-standin,gpu_queued,$(on_fake) $(one_channel)) \
	$(call gpu_suite,session-queued-standin,session_queued,$(on_fake) $(one_channel) UCCL_TCPX_THREADS=2) \
	$(call gpu_suite,queued-standin-threads,gpu_queued,$(on_fake) $(one_channel) UCCL_TCPX_THREADS=3) \
	$(call gpu_suite,queued-standin-small,gpu_queued,$(on_fake) $(one_channel) UCCL_TCPX_THREADS=2 $(small_pool))
# Whoever moves a comm's sockets on, the same must hold: as many I/O threads as the machine is good
# for, several, none; the last is nothing for the thread sanitizer.
NET_SUITES := $(foreach name,$(AHEAD_UNITS) net_cancel net_places net_comm $(if $(findstring thread,$(SANITIZE)),,net_process) net_progress net_strangers net_traffic, \
	$(foreach threads,$(if $(findstring thread,$(SANITIZE)),,0) 3, \
	'unit/$(name)-$(threads)-threads: TCPX_TEST_TURNS=$(FEWER_TURNS) UCCL_TCPX_THREADS=$(threads) $(BUILD)/tests/unit/test_$(name)'))

NET_SUITES += 'unit/net_reasons-3-threads: UCCL_TCPX_THREADS=3 $(BUILD)/tests/unit/test_net_reasons'

# Without a sanitizer every way is taken; under one, those that differ in the code they run.
unless_sanitized = $(if $(SANITIZE),,$(1))
unless_tsan      = $(if $(findstring thread,$(SANITIZE)),,$(1))

# Accesses that are given up, or not allowed.
# $(call refused_suite,label,program,environment)
refused_suite = 'unit/access_$(2)-$(1): TCPX_TEST_TURNS=$(FEWER_TURNS) $(3) $(BUILD)/tests/unit/test_access_$(2)'
REFUSED_SUITES := $(call refused_suite,3-threads,cancel,$(on_host) UCCL_TCPX_THREADS=3 UCCL_TCPX_SOCKETS=3 UCCL_TCPX_INLINE_BYTES=0)
REFUSED_SUITES += $(call unless_tsan, \
	$(foreach name,cancel refused silent,$(call refused_suite,0-threads,$(name),$(on_host) UCCL_TCPX_THREADS=0)) \
	$(call refused_suite,standin,cancel,$(on_fake)))
REFUSED_SUITES += $(call unless_sanitized, \
	$(call refused_suite,late,cancel,$(on_host) UCCL_TCPX_HOST_GPU_DELAY_US=300) \
	$(call refused_suite,small,cancel,$(on_host) UCCL_TCPX_STAGING_BYTES=64K UCCL_TCPX_SLICE_BYTES=4K UCCL_TCPX_EAGER_BYTES=0) \
	$(call refused_suite,devmem,cancel,$(on_host) UCCL_TCPX_SOFT_DEVMEM=5 UCCL_TCPX_DEVMEM_BYTES=1M))

# The public calls over every plugin; unit/calls_* without a label is the built-in one.
# $(call calls_suite,label,environment)
calls_suite   = $(foreach unit,$(CALLS_UNITS),'unit/$(unit)-$(1): TCPX_TEST_TURNS=$(FEWER_TURNS) $(2) $(BUILD)/tests/unit/test_$(unit)')
own_plugin   := UCCL_TCPX_PLUGIN_PATH=$(BUILD)/libnccl-net-tcpx.so
quirky_plugin = UCCL_TCPX_PLUGIN_PATH=$(BUILD)/tests/quirky_plugin/libquirky_v$(1).so
CALLS_SUITES := $(call calls_suite,own-unpack,$(on_fake) $(own_plugin) UCCL_TCPX_PLUGIN_MODE=unpack)
CALLS_SUITES += $(call unless_tsan, \
	$(call calls_suite,quirky-v6,$(on_host) QUIRKY_CUDA=0 $(call quirky_plugin,6)) \
	$(call calls_suite,3-threads,$(on_host) UCCL_TCPX_THREADS=3) \
	$(call calls_suite,devmem,$(on_host) UCCL_TCPX_SOFT_DEVMEM=5) \
	$(call calls_suite,standin,$(on_fake)) \
	$(call calls_suite,quirky-v7-standin,$(on_fake) $(call quirky_plugin,7)))
CALLS_SUITES += $(call unless_sanitized, \
	$(call calls_suite,0-threads,$(on_host) UCCL_TCPX_THREADS=0) \
	$(foreach impl,d2d host kernel,$(call calls_suite,$(impl),$(on_host) UCCL_TCPX_UNPACK_IMPL=$(impl))) \
	$(call calls_suite,standin-0-threads,$(on_fake) UCCL_TCPX_THREADS=0 UCCL_TCPX_UNPACK_IMPL=d2d) \
	$(call calls_suite,standin-3-threads,$(on_fake) UCCL_TCPX_THREADS=3 UCCL_TCPX_UNPACK_IMPL=kernel) \
	$(call calls_suite,standin-devmem,$(on_fake) UCCL_TCPX_SOFT_DEVMEM=5 UCCL_TCPX_UNPACK_IMPL=host) \
	$(call calls_suite,own-host,$(on_host) $(own_plugin) UCCL_TCPX_PLUGIN_MODE=host) \
	$(call calls_suite,own-unpack-emulated,$(on_host) $(own_plugin) UCCL_TCPX_PLUGIN_MODE=unpack) \
	$(call calls_suite,own-cuda,$(on_fake) $(own_plugin) UCCL_TCPX_PLUGIN_MODE=cuda) \
	$(foreach version,7 8 9 10 11 12, \
		$(call calls_suite,quirky-v$(version),$(on_host) QUIRKY_CUDA=0 $(call quirky_plugin,$(version)))) \
	$(call calls_suite,quirky-v8-standin,$(on_fake) UCCL_TCPX_UNPACK_IMPL=d2d $(call quirky_plugin,8)) \
	$(call calls_suite,quirky-v9-standin,$(on_fake) UCCL_TCPX_UNPACK_IMPL=host $(call quirky_plugin,9)) \
	$(call calls_suite,quirky-v10-standin,$(on_fake) UCCL_TCPX_UNPACK_IMPL=kernel $(call quirky_plugin,10)) \
	$(foreach version,11 12, \
		$(call calls_suite,quirky-v$(version)-standin,$(on_fake) $(call quirky_plugin,$(version)))))

# Sessions whose peer fails, over the other transports; unit/session_faults itself is the built-in one
# with whole messages.
# $(call faults_suite,label,transport,environment)
faults_suite = 'unit/session_faults-$(1): TCPX_TEST_TURNS=$(TURNS) TCPX_TEST_TRANSPORT=$(2) $(3) $(BUILD)/tests/unit/test_session_faults'
FAULTS_SUITES := $(if $(findstring thread,$(SANITIZE)),,$(call faults_suite,pieces,pieces,$(on_host)))
FAULTS_SUITES += $(call unless_tsan,$(call faults_suite,own-unpack,own,$(on_fake) UCCL_TCPX_PLUGIN_MODE=unpack))
FAULTS_SUITES += $(call unless_sanitized,$(call faults_suite,quirky-v7-standin,7,$(on_fake)))
FAULTS_SUITES += $(call unless_sanitized, \
	$(call faults_suite,own-host,own,$(on_host) UCCL_TCPX_PLUGIN_MODE=host) \
	$(call faults_suite,own-unpack-late,own,$(on_fake) UCCL_TCPX_PLUGIN_MODE=unpack FAKECUDA_DELAY_US=2000 TCPX_TEST_CASE=test_moved) \
	$(call faults_suite,quirky-v6,6,$(on_host)))

# Sessions over every transport; without a label it is the built-in one, with all rounds. What is the
# same for all transports is left out where it says brief.
# $(call session_suite,label,environment,brief or nothing)
session_suite = $(foreach unit,$(SESSION_UNITS),'unit/$(unit)-$(1): TCPX_TEST_TURNS=$(FEWER_TURNS) $(if $(3),TCPX_TEST_BRIEF=1) $(2) $(BUILD)/tests/unit/test_$(unit)')
least_pools  := UCCL_TCPX_STAGING_BYTES=64K UCCL_TCPX_SLICE_BYTES=4K UCCL_TCPX_DEVMEM_BYTES=1M UCCL_TCPX_EAGER_BYTES=0
SESSION_SUITES := \
	$(call session_suite,3-channels,$(on_host) UCCL_TCPX_NUM_CHANNELS=3,brief) \
	$(call session_suite,own-unpack,$(on_fake) $(own_plugin) UCCL_TCPX_PLUGIN_MODE=unpack,brief)
SESSION_SUITES += $(call unless_tsan, \
	$(call session_suite,quirky-v12-standin,$(on_fake) $(call quirky_plugin,12),brief) \
	$(call session_suite,3-threads,$(on_host) UCCL_TCPX_THREADS=3,brief) \
	$(call session_suite,standin,$(on_fake),brief) \
	$(call session_suite,quirky-v6,$(on_host) UCCL_TCPX_UNPACK_IMPL=host QUIRKY_CUDA=0 $(call quirky_plugin,6),brief))
SESSION_SUITES += $(call unless_sanitized, \
	$(call session_suite,0-threads,$(on_host) UCCL_TCPX_THREADS=0,brief) \
	$(call session_suite,small,$(on_host) $(least_pools),brief) \
	$(call session_suite,devmem-small,$(on_host) UCCL_TCPX_SOFT_DEVMEM=5 UCCL_TCPX_DEVMEM_BYTES=1M,brief) \
	$(call session_suite,own-host,$(on_host) $(own_plugin) UCCL_TCPX_PLUGIN_MODE=host) \
	$(call session_suite,own-host-standin,$(on_fake) $(own_plugin) UCCL_TCPX_PLUGIN_MODE=host UCCL_TCPX_UNPACK_IMPL=d2d,brief) \
	$(call session_suite,own-cuda,$(on_fake) $(own_plugin) UCCL_TCPX_PLUGIN_MODE=cuda,brief) \
	$(foreach version,7 12, \
		$(call session_suite,quirky-v$(version),$(on_host) QUIRKY_CUDA=0 $(call quirky_plugin,$(version)),brief)) \
	$(call session_suite,quirky-v7-standin,$(on_fake) $(call quirky_plugin,7)) \
	$(call session_suite,quirky-v8-standin,$(on_fake) UCCL_TCPX_UNPACK_IMPL=d2d $(call quirky_plugin,8),brief) \
	$(call session_suite,quirky-v9-standin,$(on_fake) UCCL_TCPX_UNPACK_IMPL=host $(call quirky_plugin,9),brief) \
	$(call session_suite,quirky-v10-standin,$(on_fake) UCCL_TCPX_UNPACK_IMPL=kernel $(call quirky_plugin,10),brief) \
	$(call session_suite,quirky-v11-standin,$(on_fake) $(call quirky_plugin,11),brief))

# $(call access_suite,label,environment)
access_suite = $(foreach unit,$(ACCESS_UNITS),'unit/$(unit)-$(1): TCPX_TEST_TURNS=$(FEWER_TURNS) TCPX_TEST_BRIEF=1 $(2) $(BUILD)/tests/unit/test_$(unit)')
in_parallel  := UCCL_TCPX_SOCKETS=4 UCCL_TCPX_THREADS=3
SESSION_SUITES += \
	$(call access_suite,3-channels,$(on_host) UCCL_TCPX_NUM_CHANNELS=3) \
	$(call access_suite,sockets,$(on_host) $(in_parallel) UCCL_TCPX_INLINE_BYTES=0) \
	$(call unless_tsan,$(call access_suite,standin,$(on_fake))) \
	$(call unless_sanitized, \
		$(call access_suite,0-threads,$(on_host) UCCL_TCPX_THREADS=0) \
		$(call access_suite,small,$(on_host) $(least_pools) UCCL_TCPX_INLINE_BYTES=0) \
		$(call access_suite,devmem-small,$(on_host) UCCL_TCPX_SOFT_DEVMEM=5 UCCL_TCPX_DEVMEM_BYTES=1M))

# $(call plugin_suite,label,program,environment)
plugin_suite = 'plugin/$(1): $(3) $(BUILD)/tests/plugin/test_plugin_$(2)'
all_turns    := TCPX_TEST_TURNS=$(TURNS)
fewer_turns  := TCPX_TEST_TURNS=$(FEWER_TURNS)
as_cuda      := UCCL_TCPX_PLUGIN_MODE=cuda
as_unpack    := UCCL_TCPX_PLUGIN_MODE=unpack
short_timeout := UCCL_TCPX_TIMEOUT_MS=1000
plugin_devmem := UCCL_TCPX_SOFT_DEVMEM=21 TCPX_TEST_PLUGIN=$(SUPPORT)/libnccl-net-tcpx.so
PLUGIN_SUITES := \
	$(call plugin_suite,load,load,$(all_turns)) \
	$(call plugin_suite,load-cuda,load,$(fewer_turns) $(as_cuda) $(on_host)) \
	$(call plugin_suite,load-unpack,load,$(fewer_turns) $(as_unpack) $(on_host)) \
	$(call plugin_suite,properties,properties,$(all_turns)) \
	$(call plugin_suite,properties-cuda,properties,$(as_cuda) $(on_host)) \
	$(call plugin_suite,properties-unpack,properties,$(as_unpack) $(on_host)) \
	$(call plugin_suite,connect,connect,$(all_turns)) \
	$(call plugin_suite,connect-sockets,connect,$(fewer_turns) $(in_parallel)) \
	$(call plugin_suite,connect-one-port,connect,$(fewer_turns) UCCL_TCPX_PORT=19500-19599) \
	$(call plugin_suite,connect-calls,connect,$(fewer_turns) UCCL_TCPX_THREADS=0) \
	$(call plugin_suite,data,data,$(all_turns)) \
	$(call plugin_suite,data-sockets,data,$(fewer_turns) $(in_parallel)) \
	$(call plugin_suite,data-calls,data,$(fewer_turns) UCCL_TCPX_THREADS=0) \
	$(call plugin_suite,data-unpack,data,$(fewer_turns) $(as_unpack) $(on_host)) \
	$(call plugin_suite,unpack,unpack,$(all_turns) $(as_unpack) $(on_host)) \
	$(call plugin_suite,unpack-sockets,unpack,$(fewer_turns) $(as_unpack) $(on_host) $(in_parallel)) \
	$(call plugin_suite,gpu-cuda,gpu,$(all_turns) $(as_cuda) $(on_fake) $(one_channel)) \
	$(call plugin_suite,gpu-cuda-devmem,gpu,$(fewer_turns) $(as_cuda) $(on_fake) $(plugin_devmem) $(one_channel)) \
	$(call plugin_suite,gpu-unpack,gpu,$(all_turns) $(as_unpack) $(on_fake) $(one_channel)) \
	$(call plugin_suite,gpu-unpack-sockets,gpu,$(fewer_turns) $(as_unpack) $(on_fake) $(in_parallel) $(one_channel)) \
	$(call plugin_suite,gpu-unpack-devmem,gpu,$(fewer_turns) $(as_unpack) $(on_fake) $(plugin_devmem) $(one_channel)) \
	$(call plugin_suite,silence,data,$(short_timeout)) \
	$(call plugin_suite,silence-sockets,data,$(short_timeout) UCCL_TCPX_SOCKETS=5) \
	$(call plugin_suite,silence-cuda,data,$(as_cuda) $(on_fake) $(short_timeout)) \
	$(call plugin_suite,silence-unpack,data,$(as_unpack) $(on_fake) $(short_timeout) UCCL_TCPX_SOCKETS=5) \
	$(call plugin_suite,silence-gpu-cuda,gpu,$(as_cuda) $(on_fake) $(short_timeout)) \
	$(call plugin_suite,silence-gpu-unpack,gpu,$(as_unpack) $(on_fake) $(short_timeout) UCCL_TCPX_SOCKETS=5) \
	$(call plugin_suite,fork,fork,$(all_turns)) \
	$(call plugin_suite,fork-sockets,fork,$(fewer_turns) $(in_parallel))
scripts = $(foreach script,$(1),'$(patsubst tests/%.sh,%,$(script)): sh $(script)')
# Only these compare rates, and have the machine for themselves.
ALONE_SCRIPTS := $(filter $(patsubst %,tests/integration/%.sh,doctor uneven_links),$(INTEGRATION))
WAITING_SCRIPTS := $(filter $(patsubst %,tests/integration/%.sh,bad_network connection connection_hosts \
	one_port perf_hosts relay runner session_cut transfer),$(INTEGRATION))
BESIDE_SCRIPTS := $(filter-out $(ALONE_SCRIPTS) $(WAITING_SCRIPTS),$(INTEGRATION))

# --- fuzz targets: each replays its checked-in inputs here, and is run by libFuzzer in `make fuzz`

FUZZ_TARGETS := $(patsubst tests/fuzz/fuzz_%.c,%,$(sort $(wildcard tests/fuzz/fuzz_*.c)))
REPLAYS      := $(FUZZ_TARGETS:%=$(BUILD)/tests/fuzz/replay_%)
FUZZERS      := $(FUZZ_TARGETS:%=$(BUILD)/tests/fuzz/fuzz_%)
FUZZ_SECONDS ?= 30

$(BUILD)/tests/fuzz/replay_%: $(BUILD)/obj/tests/fuzz/fuzz_%.o \
		$(BUILD)/obj/tests/fuzz/standalone.o $(INSIDE) $(LIB_OBJECTS)
	$(call link)

$(BUILD)/tests/fuzz/fuzz_%: $(BUILD)/obj/tests/fuzz/fuzz_%.o $(INSIDE) $(LIB_OBJECTS)
	$(call link,-fsanitize=fuzzer)

FUZZ_SUITES   := $(foreach target,$(FUZZ_TARGETS),'fuzz/$(target): $(BUILD)/tests/fuzz/replay_$(target) tests/fuzz/corpus/fuzz_$(target)')
FUZZER_SUITES := $(foreach target,$(FUZZ_TARGETS),'fuzz/$(target): sh tests/fuzz/run.sh $(BUILD)/tests/fuzz/fuzz_$(target) tests/fuzz/corpus/fuzz_$(target) $(FUZZ_SECONDS)')

.PHONY: fuzz fuzz-run
fuzz:
	@$(MAKE) --no-print-directory deps
	@$(MAKE) --no-print-directory $(parallel) fuzz-run CC=clang \
		BUILD=build/fuzz SANITIZE=address,undefined CFLAGS='-O1 -g1 -fsanitize=fuzzer-no-link'

fuzz-run: $(RUNNER) $(FUZZERS)
	@$(RUNNER) --timeout $$(($(FUZZ_SECONDS) + 60)) $(RUNNER_FLAGS) --lanes $(if $(filter 1,$(JOBS)),1,2) \
		beside $(FUZZER_SUITES)

include tests/faults/faults.mk

ifeq ($(HAVE_CMOCKA),yes)
TEST_PROGRAMS := $(FAULTY_PROGRAMS) $(UNIT_PROGRAMS) $(CALLS_PROGRAMS) $(GPU_PROGRAMS) $(PLUGIN_PROGRAMS)
SUITES        := waiting $(call scripts,$(WAITING_SCRIPTS)) $(WAITING_UNIT_SUITES) $(FAULTS_SUITES) $(CALLS_UNIT_SUITES) \
	beside $(call scripts,$(BESIDE_SCRIPTS)) $(GPU_SUITES) $(UNIT_SUITES) $(NET_SUITES) $(REFUSED_SUITES) $(CALLS_SUITES) \
	$(SESSION_SUITES) $(PLUGIN_SUITES) $(FUZZ_SUITES) $(SIM_SUITES) $(FAULTY_SUITES) alone $(ALONE_UNIT_SUITES) $(call scripts,$(ALONE_SCRIPTS))
else
TEST_PROGRAMS :=
SUITES        := 'skip unit+gpu+plugin: cmocka.h is not installed (Debian: libcmocka-dev)' \
	waiting $(call scripts,$(WAITING_SCRIPTS)) beside $(call scripts,$(BESIDE_SCRIPTS)) $(FUZZ_SUITES) $(SIM_SUITES) \
	alone $(call scripts,$(ALONE_SCRIPTS))
endif

# --- targets -------------------------------------------------------------------------------------

.PHONY: check check-run check-build check-list check-gpu check-gpu-run deps

# In two steps, so that the second sees what the first installed.
check:
	@$(MAKE) --no-print-directory deps
	@$(MAKE) --no-print-directory $(parallel) check-run

deps:
	@sh scripts/deps.sh

check-build: all $(NIXL_OBJECTS) $(RUNNER) $(SUPPORT_PROGRAMS) $(TEST_PROGRAMS) $(REPLAYS) $(if $(findstring thread,$(SANITIZE)),,$(SIM_PROGRAMS)) $(FAKECUDA_DIR)/libcuda.so.1

# Scripts that call make or the compiler themselves do it as this run does.
check-run: check-build
	@MAKEFLAGS= MAKELEVEL= CC='$(CC)' CFLAGS='$(CFLAGS)' LDFLAGS='$(LDFLAGS)' WERROR='$(WERROR)' \
		BUILD='$(BUILD)' SANITIZE='$(SANITIZE)' NVCC='$(NVCC)' $(RUNNER) $(RUNNER_FLAGS) --timeout 120 $(SUITES)

check-list: $(RUNNER)
	@$(RUNNER) --list $(RUNNER_FLAGS) $(SUITES)

# The same suites on a real GPU, and again under compute-sanitizer where that is installed. The
# faulting kernel is left out there: a fault is what it is for.
SANITIZER      := $(shell command -v compute-sanitizer 2>/dev/null)
on_gpu         := UCCL_TCPX_GPU=cuda
sanitized       = $(on_gpu) $(SANITIZER) --tool $(1) --error-exitcode 9 --report-api-errors no
# $(call session_gpu_suite,label,GB of mixed transfers,environment)
session_gpu_suite = $(foreach unit,$(SESSION_UNITS),'unit/$(unit)-$(1)-real@600: $(on_gpu) TCPX_TEST_LARGE=1 TCPX_TEST_SOAK=$(2)000000000 $(3) $(BUILD)/tests/unit/test_$(unit)')
SESSION_GPU_SUITES := \
	$(call session_gpu_suite,builtin,68,) \
	$(call session_gpu_suite,own-host,17,$(own_plugin) UCCL_TCPX_PLUGIN_MODE=host) \
	$(call session_gpu_suite,own-cuda,17,$(own_plugin) UCCL_TCPX_PLUGIN_MODE=cuda) \
	$(call session_gpu_suite,own-unpack,17,$(own_plugin) UCCL_TCPX_PLUGIN_MODE=unpack) \
	$(call session_gpu_suite,quirky-v7,4,$(call quirky_plugin,7)) \
	$(call session_gpu_suite,quirky-v12,4,$(call quirky_plugin,12))
ACCESS_GPU_SUITES := $(foreach unit,$(ACCESS_UNITS),'unit/$(unit)-real@600: $(on_gpu) TCPX_TEST_LARGE=1 $(BUILD)/tests/unit/test_$(unit)')
REAL_GPU_SUITES := $(SESSION_GPU_SUITES) $(ACCESS_GPU_SUITES) \
	$(call gpu_suite,layer-real,gpu_layer,$(on_gpu)) \
	$(call gpu_suite,driver-real,cuda_driver,$(on_gpu)) \
	$(call gpu_suite,fault-real,gpu_fault,$(on_gpu)) \
	$(call gpu_suite,unpack-real@300,unpack,$(on_gpu)) \
	$(call gpu_suite,net-real@300,net_gpu,$(on_gpu)) \
	$(call gpu_suite,net-real-small@300,net_gpu,$(on_gpu) $(small_pool)) \
	$(call gpu_suite,net-unpack-real@300,net_unpack,$(on_gpu)) \
	$(foreach way,auto d2d host kernel,$(call gpu_suite,net-devmem-real-$(way)@300,net_gpu,$(on_gpu) UCCL_TCPX_SOFT_DEVMEM=3 UCCL_TCPX_UNPACK_IMPL=$(way) $(small_devmem))) \
	$(call gpu_suite,net-unpack-devmem-real@300,net_unpack,$(on_gpu) UCCL_TCPX_SOFT_DEVMEM=5) \
	$(call gpu_suite,devmem-memory-real,devmem_memory,$(on_gpu)) \
	$(call gpu_suite,devmem-real,soft_devmem,$(on_gpu)) \
	$(call gpu_suite,net-real-calls@300,net_gpu,$(on_gpu) UCCL_TCPX_THREADS=0) \
	$(call gpu_suite,import-real@300,import_cuda,$(on_gpu)) \
	$(call gpu_suite,session-queued-real,session_queued,$(on_gpu) $(one_channel) UCCL_TCPX_THREADS=2) \
	$(call gpu_suite,queued-real,gpu_queued,$(on_gpu) $(one_channel)) \
	$(call gpu_suite,queued-real-threads,gpu_queued,$(on_gpu) $(one_channel) UCCL_TCPX_THREADS=3) \
	$(call gpu_suite,queued-real-small,gpu_queued,$(on_gpu) $(one_channel) UCCL_TCPX_THREADS=2 $(small_pool)) \
	$(foreach sockets,1 5, \
		$(call plugin_suite,silence-gpu-cuda-$(sockets)-real,gpu,$(on_gpu) $(as_cuda) $(short_timeout) UCCL_TCPX_SOCKETS=$(sockets)) \
		$(call plugin_suite,silence-gpu-unpack-$(sockets)-real,gpu,$(on_gpu) $(as_unpack) $(short_timeout) UCCL_TCPX_SOCKETS=$(sockets))) \
	$(call plugin_suite,gpu-cuda-real@300,gpu,$(on_gpu) $(as_cuda) $(one_channel)) \
	$(call plugin_suite,gpu-unpack-real@300,gpu,$(on_gpu) $(as_unpack) $(one_channel)) \
	$(call plugin_suite,gpu-cuda-devmem-real@300,gpu,$(on_gpu) $(as_cuda) $(plugin_devmem) $(one_channel)) \
	$(call plugin_suite,gpu-unpack-devmem-real@300,gpu,$(on_gpu) $(as_unpack) $(plugin_devmem) $(one_channel)) \
	$(call gpu_suite,plugin-faults-real@600,plugin_faults,$(on_gpu) TCPX_TEST_HANG_MS=6000) \
	$(if $(SANITIZER), \
		$(call gpu_suite,layer-memcheck@300,gpu_layer,$(call sanitized,memcheck)) \
		$(call gpu_suite,layer-racecheck@300,gpu_layer,$(call sanitized,racecheck)) \
		$(call gpu_suite,driver-memcheck@300,cuda_driver,$(call sanitized,memcheck)) \
		$(call gpu_suite,net-unpack-memcheck@300,net_unpack,$(call sanitized,memcheck)) \
		$(call gpu_suite,devmem-memcheck@300,soft_devmem,$(call sanitized,memcheck)) \
		$(call gpu_suite,net-memcheck@300,net_gpu,TCPX_TEST_MESSAGES=200 $(call sanitized,memcheck)) \
		$(call gpu_suite,unpack-memcheck@300,unpack,TCPX_TEST_LISTS=2000 $(call sanitized,memcheck)) \
		$(call gpu_suite,unpack-racecheck@300,unpack,TCPX_TEST_LISTS=2000 $(call sanitized,racecheck)), \
		'skip gpu/compute-sanitizer: it is not installed')

ifneq ($(HAVE_CMOCKA),yes)
REAL_GPU_SUITES := 'skip gpu: cmocka.h is not installed (Debian: libcmocka-dev)'
endif

check-gpu:
	@$(MAKE) --no-print-directory deps
	@$(MAKE) --no-print-directory $(parallel) check-gpu-run

check-gpu-run: all $(RUNNER) $(SUPPORT_PROGRAMS) $(filter $(GPU_PROGRAMS) $(PLUGIN_PROGRAMS) $(SESSION_PROGRAMS) $(ACCESS_PROGRAMS),$(TEST_PROGRAMS))
	@UCCL_TCPX_GPU=cuda $(BUILD)/tcpx devices
	@$(RUNNER) $(RUNNER_FLAGS) --timeout 120 $(REAL_GPU_SUITES)

.PHONY: check-faults check-faults-run
# More suites with faults than in `make check`, each with the seeds 1 to FAULT_SEEDS.
check-faults:
	@$(MAKE) --no-print-directory deps
	@$(MAKE) --no-print-directory $(parallel) check-faults-run

check-faults-run: all $(RUNNER) $(MORE_FAULTY_PROGRAMS) $(FAKECUDA_DIR)/libcuda.so.1
	@$(RUNNER) $(RUNNER_FLAGS) --timeout 120 beside $(MORE_FAULTY_SUITES)

# By hand: ten thousand transfers of every size class over each version of the plugin with faults, of
# which not one may cost it a page.
.PHONY: check-tokens
TRANSFERS ?= 10000
check-tokens: all $(RUNNER) $(BUILD)/tests/gpu/test_plugin_faults $(BUILD)/tests/unit/test_session_data \
		$(FAKECUDA_DIR)/libcuda.so.1
	@$(RUNNER) $(RUNNER_FLAGS) \
		'tokens/calls@3600: $(on_fake) TCPX_TEST_TRANSFERS=$(TRANSFERS) TCPX_TEST_CASE=test_tokens $(BUILD)/tests/gpu/test_plugin_faults' \
		'tokens/session-v6@3600: $(on_host) QUIRKY_CUDA=0 TCPX_TEST_TRANSFERS=$(TRANSFERS) TCPX_TEST_CASE=test_tokens $(call quirky_plugin,6) $(BUILD)/tests/unit/test_session_data' \
		$(foreach version,7 8 9 10 11 12,'tokens/session-v$(version)@3600: $(on_fake) TCPX_TEST_TRANSFERS=$(TRANSFERS) TCPX_TEST_CASE=test_tokens $(call quirky_plugin,$(version)) $(BUILD)/tests/unit/test_session_data')

.PHONY: check-vm check-vm-run
# The kernel's own devmem TCP, in a virtual machine. CASES='20_transfers ...': only these.
check-vm:
	@VM=1 $(MAKE) --no-print-directory deps
	@$(MAKE) --no-print-directory $(parallel) check-vm-run

$(patsubst %,$(BUILD)/tests/vm/%,by_reference unpackers): $(BUILD)/tests/vm/%: $(BUILD)/obj/tests/vm/%.o $(INSIDE) $(LIB_OBJECTS)
	$(call link)

VM_PROGRAMS := $(patsubst %,$(BUILD)/tests/vm/%,by_reference unpackers) \
	$(filter $(BUILD)/tests/gpu/test_devmem_memory,$(TEST_PROGRAMS))
# A kernel whose driver goes at the wrong moment crashes (docs/devmem.md): that case has a machine of its own, so that
# it can be tried again alone.
VM_CASES  := $(patsubst tests/vm/guest/cases/%.sh,%,$(sort $(wildcard tests/vm/guest/cases/*.sh)))
VM_LAST   := 90_driver_gone
VM_SUITES = $(if $(CASES),'vm@600: sh tests/vm/run.sh $(CASES)','vm@600: sh tests/vm/run.sh $(filter-out $(VM_LAST),$(VM_CASES))' \
	'vm/driver_gone@300: sh tests/vm/run.sh $(VM_LAST)')
check-vm-run: all $(RUNNER) $(SUPPORT)/tcpx $(VM_PROGRAMS)
	@MAKEFLAGS= MAKELEVEL= CC='$(CC)' WERROR='$(WERROR)' BUILD='$(BUILD)' \
		TCPX_VM_PROGRAMS='$(VM_PROGRAMS)' $(RUNNER) $(if $(SECOND_TRIES),--second-tries $(SECOND_TRIES)) alone $(VM_SUITES)

.PHONY: units check-portable check-portable-run
units: all $(UNIT_PROGRAMS)

# With musl, for aarch64, and with newer compilers. PARTS='musl ...': only these.
check-portable:
	@PORTABLE=1 $(MAKE) --no-print-directory deps
	@$(MAKE) --no-print-directory check-portable-run

check-portable-run: $(RUNNER)
	@MAKEFLAGS= MAKELEVEL= BUILD='$(BUILD)' JOBS='$(JOBS)' sh tests/portable/run.sh $(PARTS)

.PHONY: check-model check-model-run
# The protocol, in the model checker Spin.
check-model:
	@MODEL=1 $(MAKE) --no-print-directory deps
	@$(MAKE) --no-print-directory check-model-run

check-model-run: $(RUNNER)
	@MAKEFLAGS= MAKELEVEL= CC='$(CC)' BUILD='$(BUILD)' JOBS='$(JOBS)' $(RUNNER) 'model@600: sh tests/model/run.sh'

# The backend in NIXL: in those that most use and in the newest all cases, in others a part; before 1.0.0
# the interface was another one.
NIXL_REFUSED  := 0.7.1 0.8.0 0.9.0 0.10.0 0.10.1
NIXL_FULL     := 1.3.2 1.5.1
NIXL_VERSIONS ?= $(NIXL_REFUSED) 1.0.0 1.0.1 1.1.0 1.2.0 1.3.0 1.3.1 1.3.2 1.4.0 1.4.1 1.5.0 1.5.1
nixl_cases     = $(or $(NIXL_CASES),$(if $(filter $(1),$(NIXL_REFUSED)),refused,$(if $(filter $(1),$(NIXL_FULL)),all,short)))
NIXL_SUITES    = $(foreach version,$(NIXL_VERSIONS),'nixl/$(version)@300: sh tests/nixl/run.sh $(BUILD) $(version) $(call nixl_cases,$(version))')

.PHONY: check-nixl
check-nixl: $(RUNNER) $(if $(shell command -v $(CXX)),$(BUILD)/libplugin_TCPX.so)
	@MAKEFLAGS= MAKELEVEL= CC='$(CC)' CXX='$(CXX)' CFLAGS='$(CFLAGS)' LDFLAGS='$(LDFLAGS)' WERROR='$(WERROR)' \
		BUILD='$(BUILD)' PYTHON='$(PYTHON)' \
		$(RUNNER) $(RUNNER_FLAGS) alone 'nixl/library: sh tests/nixl/library.sh' $(NIXL_SUITES)

.PHONY: check-nccl
# CHECKS=queues or others: only these.
check-nccl: $(BUILD)/libnccl-net-tcpx.so $(BUILD)/bench/nccl_pair
	@CC='$(CC)' LIBNCCL='$(LIBNCCL)' sh tests/nccl/run.sh $(BUILD) $(CHECKS)

# --- sources -------------------------------------------------------------------------------------

.PHONY: ptx docs graph lint format

ptx:
	NVCC='$(NVCC)' scripts/make-ptx.sh

docs: all
	scripts/make-docs.sh $(BUILD)/tcpx

# docs/graph.svg: the folders of src, and which of them use which.
graph:
	scripts/make-graph.sh

C_SOURCES   := $(sort $(wildcard include/*.h src/*/*.[ch] src/*/*/*.[ch] tools/*.[ch] examples/*.c bench/*.[ch] python/src/*.[ch] tests/*.[ch] tests/*/*.[ch]))
OTHER_SOURCES := $(wildcard src/gpu/*.cu src/*/*.cpp src/*/*.hpp)
TIDY_SOURCES := $(filter-out tests/unit/test_cuda_abi.c,$(filter %.c,$(C_SOURCES)))

# $(call tidy,files,further flags): clang-tidy, on all CPUs.
tidy = printf '%s\n' $(1) | xargs -P $(JOBS) -n 6 \
	sh -c 'clang-tidy --quiet "$$@" -- $(TCPX_CFLAGS) $(PYTHON_HEADERS:%=-isystem %) $(2)' clang-tidy

# Of the tests the analyzer follows no call: that takes a ninth of the time, and the sanitizers run them.
TESTS_TIDY := $(filter tests/%,$(TIDY_SOURCES))
lint: deps
	clang-format --dry-run --Werror $(C_SOURCES) $(OTHER_SOURCES)
	$(call tidy,$(filter-out $(TESTS_TIDY) $(if $(PYTHON_HEADERS),,python/%),$(TIDY_SOURCES)))
	$(call tidy,$(TESTS_TIDY),-Xclang -analyzer-config -Xclang mode=shallow)

format:
	clang-format -i $(C_SOURCES) $(OTHER_SOURCES)
