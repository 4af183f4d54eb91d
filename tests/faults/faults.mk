# Suites a second time, with a library whose system calls fail or do less on purpose. One of them by
# hand: TCPX_TEST_FAULTS=SEED[:ONE_IN[:KIND,KIND...]] build/tests/faulty/test_NAME; the kinds are in
# tests/faults/faults.h. A failed suite has its seed in its name and prints it.

FAULTY        := $(BUILD)/tests/faulty
FAULTY_PLUGIN := $(FAULTY)/libnccl-net-tcpx.so

define faulty_program
$(FAULTY)/test_%: $(BUILD)/obj/tests/$(1)/test_%.o $(FAULTY_OBJECTS) $(PAIR) $(FILTER)
	$$(call link,$$(CMOCKA_LIBS))
endef
$(foreach folder,unit gpu faults,$(eval $(call faulty_program,$(folder))))

$(FAULTY_PLUGIN): $(FAULTY_OBJECTS) src/libnccl-net-tcpx.map
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $(TCPX_LDFLAGS) -shared -Wl,-soname,libnccl-net-tcpx.so -Wl,-Bsymbolic \
		-Wl,-z,nodelete -Wl,--version-script=src/libnccl-net-tcpx.map \
		$(FAULTY_OBJECTS) $(TCPX_LIBS) -o $@

FAULT_SEEDS ?= 1
fault_seeds := $(shell seq $(FAULT_SEEDS))

# Every suite must have met these: otherwise it has shown nothing.
of_bytes    := short_read,short_write,again,interrupted,no_buffers
of_links    := $(of_bytes),aborted,no_accept
# Those of the calls that make few connections may not meet all of that.
of_calls     = $(if $(filter %_data %_end,$(1)),$(of_links),$(of_bytes))

# $(call faulty_suite,label,program,one in,needed kinds,environment), for each seed
faulty_suite = $(foreach seed,$(fault_seeds), \
	'faults/$(1)-$(seed): TCPX_TEST_FAULTS=$(seed):$(3) TCPX_TEST_FAULTS_NEED=$(4) \
	TCPX_TEST_TURNS=$(FEWER_TURNS) $(5) $(FAULTY)/test_$(2)')
# $(call faulty_plugin_suite,label,program,environment): the plugin alone has faults; a test of what
# accept() lacks names the errno that it has made.
faulty_plugin_suite = $(foreach seed,$(fault_seeds), \
	'faults/plugin-$(1)-$(seed): TCPX_TEST_FAULTS=$(seed):4:$(of_bytes)$(comma)aborted TCPX_TEST_FAULTS_NEED=$(of_bytes) \
	TCPX_TEST_PLUGIN=$(FAULTY_PLUGIN) TCPX_TEST_TURNS=$(FEWER_TURNS) $(3) \
	$(BUILD)/tests/plugin/test_plugin_$(2)')

# $(call faulty_sessions,-label,needed kinds,environment,brief or nothing). Only unit/session_close makes so
# many connections that those of links certainly come.
needed_by = $(if $(filter session_close,$(1)),$(2),$(of_bytes))
faulty_sessions = $(foreach unit,$(SESSION_UNITS), \
	$(call faulty_suite,$(unit)$(1),$(unit),8,$(call needed_by,$(unit),$(2)),$(3) $(if $(4),TCPX_TEST_BRIEF=1)))

fewer_messages := TCPX_TEST_MESSAGES=300
FAULTY_SUITES := \
	'faults/faults: $(FAULTY)/test_faults' \
	$(call faulty_suite,net_traffic,net_traffic,3,$(of_links)) \
	$(call faulty_suite,access_cancel,access_cancel,8,$(of_bytes),$(on_host)) \
	$(call faulty_sessions,,$(of_links),$(on_host),brief)
FAULTY_SUITES += $(call unless_tsan, \
	'faults/lacks: $(on_host) UCCL_TCPX_THREADS=3 $(FAULTY)/test_lacks' \
	$(call faulty_suite,net_comm,net_comm,3,$(of_links)) \
	$(call faulty_suite,net_link,net_link,3,$(of_links)) \
	$(foreach unit,$(CALLS_UNITS),$(call faulty_suite,$(unit),$(unit),8,$(call of_calls,$(unit)),$(on_host))))
FAULTY_SUITES += $(call unless_sanitized, \
	$(foreach name,$(AHEAD_UNITS),$(call faulty_suite,$(name),$(name),3,$(of_links))) \
	$(call faulty_suite,net_gpu-devmem,net_gpu,8,$(of_bytes),$(on_host) UCCL_TCPX_SOFT_DEVMEM=3 UCCL_TCPX_DEVMEM_BYTES=1M $(fewer_messages)) \
	$(call faulty_plugin_suite,data,data))

# Beside those of `make check`, and those with further seeds. The scripted peers and the limits of
# unit/bootstrap* and unit/control allow only these kinds.
MORE_FAULTY_SUITES := $(if $(filter 1,$(FAULT_SEEDS)),,$(FAULTY_SUITES)) \
	$(foreach threads,0 3, \
		$(call faulty_suite,net_traffic-$(threads)-threads,net_traffic,3,$(of_links),UCCL_TCPX_THREADS=$(threads) TCPX_TEST_MESSAGES=3000) \
		$(foreach name,$(AHEAD_UNITS), \
			$(call faulty_suite,$(name)-$(threads)-threads,$(name),3,$(of_links),UCCL_TCPX_THREADS=$(threads)))) \
	$(call faulty_suite,net_process,net_process,3,$(of_links)) \
	$(foreach name,bootstrap bootstrap_strangers bootstrap_secret control, \
		$(call faulty_suite,$(name),$(name),3:short_read$(comma)interrupted$(comma)aborted,interrupted)) \
	$(call faulty_suite,net_gpu,net_gpu,8,$(of_bytes),$(on_host) $(fewer_messages)) \
	$(call faulty_suite,net_gpu-standin,net_gpu,8,$(of_bytes),$(on_fake) UCCL_TCPX_THREADS=2 $(fewer_messages)) \
	$(call faulty_suite,net_unpack,net_unpack,8,$(of_bytes),$(on_host)) \
	$(call faulty_suite,net_unpack-devmem,net_unpack,8,$(of_bytes),$(on_host) UCCL_TCPX_SOFT_DEVMEM=5) \
	$(call faulty_sessions,-whole,$(of_links),$(on_host)) \
	$(call faulty_sessions,-3-channels,$(of_links),$(on_host) UCCL_TCPX_NUM_CHANNELS=3,brief) \
	$(call faulty_sessions,-0-threads,$(of_links),$(on_host) UCCL_TCPX_THREADS=0,brief) \
	$(call faulty_sessions,-own-unpack,$(of_bytes),$(on_fake) UCCL_TCPX_PLUGIN_PATH=$(FAULTY_PLUGIN) UCCL_TCPX_PLUGIN_MODE=unpack,brief) \
	$(call faulty_suite,session_faults,session_faults,8,$(of_bytes),$(on_host)) \
	$(call faulty_suite,session_faults-pieces,session_faults,8,$(of_bytes),TCPX_TEST_TRANSPORT=pieces $(on_host)) \
	$(call faulty_plugin_suite,connect,connect) \
	$(call faulty_plugin_suite,data-sockets,data,$(in_parallel)) \
	$(call faulty_plugin_suite,unpack,unpack,$(as_unpack) $(on_host))

faulty_programs_of = $(sort $(filter $(FAULTY)/test_% $(BUILD)/tests/plugin/test_%,$(subst ', ,$(1)))) $(FAULTY_PLUGIN)
FAULTY_PROGRAMS      := $(call faulty_programs_of,$(FAULTY_SUITES))
MORE_FAULTY_PROGRAMS := $(call faulty_programs_of,$(MORE_FAULTY_SUITES))
$(FAULTY_PROGRAMS) $(MORE_FAULTY_PROGRAMS): | $(QUIRKY_PLUGINS) $(BUILD)/libnccl-net-tcpx.so $(BUILD)/libtcpx.so
