# Measurements. They are built by `make bench` and run by hand: docs/performance.md says how.

# These are parts of programs: nccl_rank.c of nccl_pair, transfer.c of host and gpu.
BENCHES := $(patsubst %.c,$(BUILD)/%,$(filter-out bench/nccl_rank.c bench/transfer.c,$(sort $(wildcard bench/*.c))))

.PHONY: bench
bench: $(BENCHES)

$(BUILD)/bench/%: $(BUILD)/obj/bench/%.o $(LIB_OBJECTS)
	$(call link)

$(BUILD)/bench/nccl_pair: $(BUILD)/obj/bench/nccl_rank.o
$(BUILD)/bench/host $(BUILD)/bench/gpu: $(BUILD)/obj/bench/transfer.o
