/* The name under which the original interface was known. */
#include "tcpx.h"
