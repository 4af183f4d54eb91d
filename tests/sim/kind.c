/* Which library this simulation is linked with: compiled once for each kind (sim.mk). */
#include "flow.h"

const unsigned flow_places = WIRE_SEQUENCE_BITS > 6 ? 32 : 1u << (WIRE_SEQUENCE_BITS - 1);
