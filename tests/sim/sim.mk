# How the simulation is built and run; part of tests/tests.mk.

# The library twice, as two processes have it. Of each copy only the calls of tests/sim/api.def can be
# seen, as a_... and b_...; its calls of libc go to the simulation. SIM_KINDS: with the usual
# sequence numbers, and with some of 3 bits.
SIM_KINDS    := sim sim3
SIM_COMMON   := $(patsubst %.c,$(BUILD)/obj/%.o,$(filter-out tests/sim/test_% tests/sim/kind.c,$(sort $(wildcard tests/sim/*.c))))
SIM_TESTS    := $(patsubst tests/sim/test_%.c,%,$(sort $(wildcard tests/sim/test_*.c)))
SIM_PROGRAMS := $(foreach kind,$(SIM_KINDS),$(SIM_TESTS:%=$(BUILD)/tests/$(kind)/test_%))
SIM3_NET     := $(patsubst $(BUILD)/obj/%,$(BUILD)/obj/sim3/%,$(filter $(BUILD)/obj/src/net/%,$(LIB_OBJECTS)))
sim_objects  := $(LIB_OBJECTS)
sim3_objects := $(filter-out $(BUILD)/obj/src/net/%,$(LIB_OBJECTS)) $(SIM3_NET)
sim_kind     := $(BUILD)/obj/tests/sim/kind.o
sim3_kind    := $(BUILD)/obj/sim3/tests/sim/kind.o
SIM_STEPS    ?= 100000000

$(BUILD)/obj/sim3/%.o: %.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CC,$< (3 bits))
	$(Q)$(CC) $(TCPX_CFLAGS) -DWIRE_SEQUENCE_BITS=3 -MMD -MP -c $< -o $@

# $(call sim_copies,kind)
define sim_copies
$(BUILD)/obj/tests/$(1)/whole.o: $$($(1)_objects) tests/sim/libc.def
	$$(call redirect,$$($(1)_objects),tests/sim/libc.def,sim_)

$(BUILD)/obj/tests/$(1)/copy_%.o: $(BUILD)/obj/tests/$(1)/whole.o tests/sim/api.def
	@sed -n 's/SIM_CALL(\(.*\))/\1 $$*_\1/p' tests/sim/api.def >$$@.names
	@sed 's/.* //' $$@.names >$$@.kept
	$$(Q)$$(OBJCOPY) --redefine-syms=$$@.names $$< $$@.renamed
	$$(Q)$$(OBJCOPY) --keep-global-symbols=$$@.kept $$@.renamed $$@
	@rm -f $$@.renamed

$(BUILD)/tests/$(1)/test_%: $(BUILD)/obj/tests/sim/test_%.o $(SIM_COMMON) $$($(1)_kind) \
		$(BUILD)/obj/tests/$(1)/copy_a.o $(BUILD)/obj/tests/$(1)/copy_b.o
	$$(call link)
endef
$(foreach kind,$(SIM_KINDS),$(eval $(call sim_copies,$(kind))))

# One thread of the machine runs everything: the thread sanitizer has nothing to look at. With the
# others a step takes ten times as long.
SIM_SUITES := $(if $(findstring thread,$(SANITIZE)),'skip sim: it has one thread', \
	$(foreach kind,$(SIM_KINDS),$(foreach test,$(SIM_TESTS),'$(kind)/$(test): $(if $(SANITIZE),SIM_STEPS=500000) $(BUILD)/tests/$(kind)/test_$(test)')))

.PHONY: sim
sim: $(SIM_PROGRAMS)
	@for program in $(SIM_PROGRAMS); do SIM_STEPS=$(SIM_STEPS) $$program || exit 1; done
