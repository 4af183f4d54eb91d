# Measurements. They are built by `make bench` and run by hand: docs/performance.md says how.

BENCHES := $(patsubst %.c,$(BUILD)/%,$(sort $(wildcard bench/*.c)))

.PHONY: bench
bench: $(BENCHES)

$(BUILD)/bench/%: $(BUILD)/obj/bench/%.o $(LIB_OBJECTS)
	$(call link)
