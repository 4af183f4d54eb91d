# Measurements. They are built by `make bench` and run by hand: docs/performance.md says how.

BENCHES := $(patsubst %.c,$(BUILD)/%,$(sort $(wildcard bench/*.c)))

.PHONY: bench
bench: $(BENCHES)

$(BUILD)/bench/%: $(BUILD)/obj/bench/%.o $(LIB_OBJECTS)
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $(TCPX_LDFLAGS) $^ $(TCPX_LIBS) -o $@
