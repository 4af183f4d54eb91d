# Measurements. They are built by `make bench` and run by hand: docs/performance.md says how.

# nccl_rank.c is a part of nccl_pair.
BENCHES := $(patsubst %.c,$(BUILD)/%,$(filter-out bench/nccl_rank.c,$(sort $(wildcard bench/*.c))))

.PHONY: bench
bench: $(BENCHES)

$(BUILD)/bench/%: $(BUILD)/obj/bench/%.o $(LIB_OBJECTS)
	$(call link)

$(BUILD)/bench/nccl_pair: $(BUILD)/obj/bench/nccl_rank.o
